"""Programs written for accelerate and Lightning over the backend, each beside Gloo: the same losses to
the bit on two ranks."""

import installed

import importlib.util
import unittest

# The group is made first: accelerate takes the one that there is.
ACCELERATE = r"""
import os
import torch, torch.distributed as dist
from accelerate import Accelerator

dist.init_process_group(os.environ["BACKEND"], init_method=os.environ["STORE"],
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
torch.manual_seed(3)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randn(64, 16))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters(), lr=1e-2), loader)
for inputs, targets in loader:
    with accelerator.accumulate(model):
        loss = (model(inputs) - targets).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses = accelerator.gather(loss.detach().reshape(1))
    print("losses", accelerator.num_processes, [value.hex() for value in losses.tolist()])
print("backend", dist.get_backend())
""" + installed.LEAVE

LIGHTNING = r"""
import os, warnings
import torch, torch.distributed as dist
import lightning
from lightning.pytorch.strategies import DDPStrategy

warnings.filterwarnings("ignore")


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def training_step(self, batch, index):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        print("losses", self.trainer.world_size, float(outputs["loss"]).hex())

    def on_train_end(self):
        print("mean", float(self.trainer.callback_metrics["loss"]).hex())
        print("backend", dist.get_backend())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(5, verbose=False)
data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randn(64, 16))
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
    strategy=DDPStrategy(process_group_backend=os.environ["BACKEND"]))
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))
""" + installed.LEAVE


def printed(text: str, backend: str) -> list[list[str]]:
    """The lines of each rank that speak of losses."""
    with installed.programs(2, text, BACKEND=backend, LOCAL_WORLD_SIZE="2", GROUP_RANK="0",
                            TORCHELASTIC_RUN_ID="frameworks", GLOO_SOCKET_IFNAME="lo",
                            NODE_RANK="0") as ranks:
        outputs = []
        for rank in ranks:
            status = rank.wait()
            if status != 0 or f"backend {backend}" not in rank.output():
                raise AssertionError(f"status {status}:\n{rank.output()}")
            outputs.append([line for line in rank.output().splitlines()
                            if line.startswith(("losses ", "mean "))])
    return outputs


class Frameworks(unittest.TestCase):
    def compare(self, name: str, text: str, steps: int) -> None:
        if importlib.util.find_spec(name) is None:
            self.skipTest(f"there is no {name}: tools/dev test torch installs it")
        ours, gloos = printed(text, "weft"), printed(text, "gloo")
        for lines in ours:
            self.assertEqual(sum(line.startswith("losses 2 ") for line in lines), steps, lines)
        self.assertEqual(ours, gloos)

    def test_accelerate(self):
        self.compare("accelerate", ACCELERATE, 4)

    def test_lightning(self):
        self.compare("lightning", LIGHTNING, 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""PyTorch's own features over the backend, each beside Gloo: the same program, the same losses.

With two ranks a sum has one order, so that losses are equal to the bit; with four they are close.
"""

import installed

import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
WIDTH = 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 4 * WIDTH)
        self.second = nn.Linear(4 * WIDTH, WIDTH)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def model() -> nn.Module:
    torch.manual_seed(7)
    return Model()


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train(module, optimizer, rank: int) -> list[float]:
    losses = []
    for step in range(STEPS):
        loss = (module(batch(rank, step)) - batch(rank, step + 50)).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def sgd(module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def ddp(rank: int) -> list[float]:
    module = DistributedDataParallel(model(), find_unused_parameters=True)
    return train(module, sgd(module), rank)


def ddp_views_of_buckets_no_sync(rank: int) -> list[float]:
    inner = model()
    del inner.unused
    module = DistributedDataParallel(inner, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
    with module.no_sync():
        module(batch(rank, 99)).sum().backward()
    return train(module, sgd(module), rank)


def ddp_communication_hook(rank: int) -> list[float]:
    inner = model()
    del inner.unused
    module = DistributedDataParallel(inner)
    module.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return train(module, sgd(module), rank)


def ddp_zero_redundancy_optimizer(rank: int) -> list[float]:
    inner = model()
    del inner.unused
    module = DistributedDataParallel(inner)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-2)
    losses = train(module, optimizer, rank)
    optimizer.consolidate_state_dict()
    return losses


def fsdp1(rank: int) -> list[float]:
    inner = model()
    del inner.unused
    module = FullyShardedDataParallel(inner, device_id=torch.device("cpu"))
    return train(module, sgd(module), rank)


def _fsdp2(rank: int, **options) -> tuple[nn.Module, list[float]]:
    module = model()
    del module.unused
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (module.first, module.second, module):
        fully_shard(layer, mesh=mesh, **options)
    return module, train(module, sgd(module), rank)


def fsdp2(rank: int) -> list[float]:
    return _fsdp2(rank)[1]


def fsdp2_in_bfloat16(rank: int) -> list[float]:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return _fsdp2(rank, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))[1]


def distributed_checkpoint(rank: int, folder: str) -> list[float]:
    module, losses = _fsdp2(rank)
    state = {"model": module.state_dict()}
    checkpoint.save(state, checkpoint_id=folder)
    right = {name: value.full_tensor().clone() for name, value in state["model"].items()}
    other, _ = _fsdp2(rank)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    for name, value in state["model"].items():
        assert torch.equal(value.full_tensor(), right[name]), name
    return losses


def tensor_parallel(rank: int) -> list[float]:
    module = model()
    del module.unused
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(module, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return train(module, sgd(module), 0)


def dtensor(rank: int) -> list[float]:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(float(4 * size * 3)).view(4 * size, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    partial = DTensor.from_local(whole, mesh, [Partial()])
    assert torch.equal(partial.redistribute(mesh, [Replicate()]).to_local(), whole * size)
    assert torch.equal(partial.redistribute(mesh, [Shard(0)]).full_tensor(), whole * size)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    mean = DTensor.from_local(whole, mesh, [Partial("avg")])
    assert torch.equal(mean.redistribute(mesh, [Replicate()]).to_local(), whole)
    product = sharded @ distribute_tensor(whole.t(), mesh, [Replicate()])
    return [product.full_tensor().sum().item()]


def functional_collectives(rank: int) -> list[float]:
    size = dist.get_world_size()
    group = list(range(size))
    own = torch.full((size, 2), float(rank + 1))
    total = float(sum(range(1, size + 1)))
    assert functional.all_reduce(own, "sum", group).eq(total).all()
    gathered = functional.all_gather_tensor(own, 0, group)
    assert gathered.view(size, -1)[:, 0].tolist() == [float(r + 1) for r in range(size)]
    assert functional.reduce_scatter_tensor(own, "avg", 0, group).eq(total / size).all()
    exchanged = functional.all_to_all_single(own, [1] * size, [1] * size, group)
    assert exchanged[:, 0].tolist() == [float(r + 1) for r in range(size)]
    assert functional.broadcast(own, 0, group).eq(1).all()
    # Of one dimension: PyTorch takes the number of elements for that of rows.
    moved = functional.permute_tensor(own.view(-1), [(r + 1) % size for r in range(size)], group)
    assert moved.eq((rank - 1) % size + 1).all()
    return []


def compiled(rank: int) -> list[float]:
    size = dist.get_world_size()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x):
        dist.all_reduce(x)
        return functional.all_gather_tensor(x * 2, 0, list(range(size))).sum()

    right = float(4 * size * 2 * sum(range(1, size + 1)))
    value = step(torch.full((4,), float(rank + 1))).item()
    assert value == right, (value, right)
    return [value]


def pipeline(rank: int) -> list[float]:
    whole = model()
    part = whole.first if rank == 0 else nn.Sequential(nn.ReLU(), whole.second)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2,
                             loss_fn=lambda y, right: (y - right).square().mean())
    optimizer = sgd(part)
    losses = []
    for step in range(STEPS):
        if rank == 0:
            schedule.step(batch(0, step))
        else:
            found = []
            schedule.step(target=batch(0, step + 50), losses=found)
            losses.append(sum(loss.item() for loss in found) / 2)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def two_dimensions(rank: int) -> list[float]:
    """FSDP2 over tensor parallelism, on a mesh of 2 by 2."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    module = model()
    del module.unused
    parallelize_module(module, mesh["model"],
                       {"first": ColwiseParallel(), "second": RowwiseParallel()})
    for layer in (module.first, module.second, module):
        fully_shard(layer, mesh=mesh["data"])
    return train(module, sgd(module), mesh["data"].get_local_rank())


ON_TWO_AND_FOUR = (ddp, ddp_views_of_buckets_no_sync, ddp_communication_hook,
                   ddp_zero_redundancy_optimizer, fsdp1, fsdp2, fsdp2_in_bfloat16, tensor_parallel,
                   dtensor, functional_collectives)


class Features(unittest.TestCase):
    def compare(self, size: int, body, *arguments) -> None:
        ours = installed.fork_ranks(size, body, *arguments)
        gloos = installed.fork_ranks(size, body, *arguments, backend="gloo")
        if size == 2:
            self.assertEqual(ours, gloos)
        for own, right in zip(ours, gloos):
            torch.testing.assert_close(torch.tensor(own), torch.tensor(right), rtol=1e-3, atol=1e-4)

    def test_checkpoint_on_2_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            installed.fork_ranks(2, distributed_checkpoint, folder)

    def test_compiled_on_2_ranks(self):
        installed.fork_ranks(2, compiled)

    def test_pipeline_on_2_ranks(self):
        self.compare(2, pipeline)

    def test_two_dimensions_on_4_ranks(self):
        self.compare(4, two_dimensions)


def _add(body, size: int) -> None:
    def test(self):
        self.compare(size, body)

    setattr(Features, f"test_{body.__name__}_on_{size}_ranks", test)


for _body in ON_TWO_AND_FOUR:
    for _size in (2, 4):
        _add(_body, _size)

if __name__ == "__main__":
    unittest.main()

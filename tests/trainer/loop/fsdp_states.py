"""Two processes with FSDP2 and AdamW, for ckpt_dcp_run_test.

usage: fsdp_states.py save|load SOURCE FOLDER WHOLE RENDEZVOUS
"save" takes the tensors of the safetensors file SOURCE as parameters, does two steps, and saves
model and optimizer into FOLDER; "load" reads FOLDER into other shards. Both leave the whole tensors
in the safetensors file WHOLE. RENDEZVOUS is a path that nothing has yet.
"""
import datetime, json, os, pathlib, struct, sys, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


def read(path):
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    entries = json.loads(data[8:8 + length])
    entries.pop("__metadata__", None)
    return {name: torch.frombuffer(bytearray(data[8 + length + e["data_offsets"][0]:
                                                  8 + length + e["data_offsets"][1]]),
                                   dtype=torch.float32).reshape(e["shape"])
            for name, e in entries.items()}


def write(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


def build(tensors):
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        at = root
        for word in path:
            if not hasattr(at, word):
                at.add_module(word, torch.nn.Module())
            at = getattr(at, word)
        at.register_parameter(last, torch.nn.Parameter(tensor.clone()))
    return root


def job(rank, what, source, folder, whole, rendezvous):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2,
                            timeout=datetime.timedelta(minutes=3))
    tensors = read(source)
    if what == "load":
        tensors = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    model = build(tensors)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.01 * (number % 7 + 1 + step))
        optimizer.step()
    states, optim = get_state_dict(model, optimizer)
    both = {"model": states, "optim": optim}
    if what == "save":
        dcp.save(both, checkpoint_id=folder)
    else:
        dcp.load(both, checkpoint_id=folder, planner=DefaultLoadPlanner(allow_partial_load=True))
    out = {name: tensor.full_tensor() for name, tensor in states.items()}
    for name, state in optim["state"].items():
        for which in ("exp_avg", "exp_avg_sq"):
            out[f"{which}/{name}"] = state[which].full_tensor()
        assert state["step"].item() == 2, state["step"]
    if rank == 0:
        write(whole, out)
    # Gloo takes a peer that has ended for a lost one, in a barrier too: both are through it before
    # either ends.
    dist.barrier()
    pathlib.Path(f"{rendezvous}.{rank}").touch()
    end = time.monotonic() + 60
    while not pathlib.Path(f"{rendezvous}.{1 - rank}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.spawn(job, args=tuple(sys.argv[1:]), nprocs=2)

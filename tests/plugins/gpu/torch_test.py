#!/usr/bin/python3
"""PyTorch's NCCL backend over the plugin: two processes on one GPU, which NCCL takes for two hosts.

Collectives and point to point, each value checked, and a data-parallel model. Without a GPU
PyTorch and NCCL run all the same, on a CUDA runtime that is emulated (scripted/), as far as they need
no kernel of PyTorch's: the model is left out then. Skipped where there is no PyTorch with CUDA
(WEFT_BENCH_PYTHON names the interpreter that has it; `tools/dev test nccl` installs one).
"""

import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from ports import free_port  # noqa: E402

RANKS = 2
LIMIT_SECONDS = 150
COUNTS = (1, 1000, 1 << 20)
DEVICE = "cuda:0"
PYTHONS = (os.environ.get("WEFT_BENCH_PYTHON"),
           os.path.join(os.environ.get("WEFT_SOURCE", "."), ".deps/bench-venv/bin/python"))
LIBRARIES = pathlib.Path(os.environ.get("WEFT_BIN", "build/release/bin")).parent / "lib"
SCRIPTED_GPU = LIBRARIES / "scripted/libscripted_gpu.so"
HAS_GPU, HAS_NONE, HAS_NO_TORCH = 0, 3, 4
ASK = f"""
try: import torch
except ImportError: exit({HAS_NO_TORCH})
exit({HAS_NO_TORCH} if not torch.version.cuda else
     {HAS_GPU} if torch.cuda.is_available() else {HAS_NONE})
"""


def main() -> int:
    python = next((name for name in PYTHONS if name and shutil.which(name)), "python3")
    found = subprocess.run([python, "-c", ASK], capture_output=True, check=False).returncode
    if found not in (HAS_GPU, HAS_NONE):
        print(f"skipped: {python} has no PyTorch with CUDA: tools/dev test nccl")
        return 77
    scripted = found == HAS_NONE
    if scripted and platform.machine() != "x86_64":
        print("skipped: no GPU, and the scripted one writes jumps for x86-64")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        ranks = [start(python, rank, pathlib.Path(folder), port, scripted)
                 for rank in range(RANKS)]
        problems = []
        for rank, process in enumerate(ranks):
            try:
                printed, _ = process.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                printed, _ = process.communicate()
            path = pathlib.Path(folder, f"nccl{rank}")
            log = path.read_text(errors="replace") if path.exists() else ""
            if process.returncode != 0:
                problems.append(f"rank {rank} exited with {process.returncode}")
            if "Using network weft" not in log:
                problems.append(f"rank {rank} did not use the plugin")
            if problems:
                print(printed, log, sep="\n")
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


def start(python: str, rank: int, folder: pathlib.Path, port: int,
          scripted: bool) -> subprocess.Popen:
    environment = {
        **os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "NCCL_HOSTID": f"weft-{rank}", "NCCL_MNNVL_ENABLE": "0",
        "NCCL_NET_PLUGIN": str(LIBRARIES / "libnccl-net-weft.so"),
        "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(folder / f"nccl{rank}"),
        "NCCL_MAX_NCHANNELS": "4", "NCCL_RAS_ENABLE": "0"}
    if scripted:  # what is emulated: rings
        driver = folder / "libcuda.so.1"
        if not driver.exists():
            driver.symlink_to(SCRIPTED_GPU)
        environment |= {"LD_PRELOAD": str(SCRIPTED_GPU), "LD_LIBRARY_PATH": str(folder),
                        "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple",
                        "WEFT_TEST_SCRIPTED_GPU": str(SCRIPTED_GPU)}
    return subprocess.Popen([python, __file__, "rank"], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run_rank() -> None:
    import datetime

    import torch
    import torch.distributed as dist

    scripted = os.environ.get("WEFT_TEST_SCRIPTED_GPU")
    if scripted:
        attach(scripted)
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def values(count: int, of: int) -> torch.Tensor:  # whole numbers: sums are exact
        return (torch.arange(count) % 1009 + of).float()

    def given(count: int) -> torch.Tensor:
        return values(count, rank).to(DEVICE)

    def expect(what: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
        if not torch.equal(got.cpu(), wanted):
            raise SystemExit(f"rank {rank}: {what} of {got.numel()} is wrong")

    for count in COUNTS:
        total = given(count)
        dist.all_reduce(total)
        expect("all_reduce", total, sum(values(count, of) for of in range(ranks)))
        gathered = torch.empty(ranks * count, device=DEVICE)
        dist.all_gather_into_tensor(gathered, given(count))
        expect("all_gather", gathered, torch.cat([values(count, of) for of in range(ranks)]))
        part = torch.empty(count, device=DEVICE)
        dist.reduce_scatter_tensor(part, given(ranks * count))
        whole = sum(values(ranks * count, of) for of in range(ranks))
        expect("reduce_scatter", part, whole[rank * count:(rank + 1) * count])
        sent = given(count)
        dist.broadcast(sent, src=ranks - 1)
        expect("broadcast", sent, values(count, ranks - 1))
        received = torch.empty(count, device=DEVICE)
        for work in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, given(count), (rank + 1) % ranks),
                dist.P2POp(dist.irecv, received, (rank - 1) % ranks)]):
            work.wait()
        expect("send and receive", received, values(count, (rank - 1) % ranks))

    if not scripted:
        train(rank, ranks)
    dist.destroy_process_group()


def attach(scripted: str) -> None:
    """Has the NCCL that PyTorch has loaded use the scripted GPU too, which it has linked otherwise."""
    import ctypes

    nccl = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    call = ctypes.CDLL(scripted).WeftAttachScriptedGpu
    call.argtypes, call.restype = [ctypes.c_void_p], ctypes.c_char_p
    error = call(nccl._handle)
    if error:
        raise SystemExit(error.decode())


def train(rank: int, ranks: int) -> None:
    """The gradients of a data-parallel model are those of all inputs in one process."""
    import torch

    torch.manual_seed(7)
    model, alone = torch.nn.Linear(64, 8).to(DEVICE), torch.nn.Linear(64, 8).to(DEVICE)
    alone.load_state_dict(model.state_dict())
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    inputs = torch.randn(ranks, 16, 64).to(DEVICE)
    parallel(inputs[rank]).square().mean().backward()
    alone(inputs.flatten(0, 1)).square().mean().backward()
    if not torch.allclose(model.weight.grad, alone.weight.grad, rtol=1e-4, atol=1e-6):
        raise SystemExit(f"rank {rank}: the gradients differ from those of one process")


if __name__ == "__main__":
    sys.exit(run_rank() if sys.argv[1:] == ["rank"] else main())

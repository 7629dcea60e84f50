"""torch.distributed.checkpoint at every step: a line of JSON with the seconds that each step waits.

FOLDER KIND PARAMETERS SECONDS STEPS RANK RANKS: KIND is sync or async; a step multiplies matrices
for SECONDS, then AdamW's three fp32 arrays of PARAMETERS elements, of which each rank has its own,
change in place. async_save of a step begins when the one before is written, as PyTorch demands.
"""

import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def main() -> None:
    folder, kind = sys.argv[1:3]
    parameters, steps = int(sys.argv[3]), int(sys.argv[5])
    seconds = float(sys.argv[4])
    rank, ranks = int(sys.argv[6]), int(sys.argv[7])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo", init_method=f"file://{folder}-rendezvous", rank=rank,
                            world_size=ranks)
    # Names of its own: what has the same name on all ranks is saved once.
    state = {f"{name}.{rank}": torch.randn(parameters) for name in ("values", "mean", "square")}
    left = torch.randn(256, 256)
    pending, waits = None, []
    for step in range(steps):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            left @ left
        for tensor in state.values():
            tensor.mul_(0.999)
        begin = time.perf_counter()
        path = f"{folder}/{step}"
        if kind == "sync":
            dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=True))
        else:
            if pending is not None:
                pending.result()
            pending = dcp.async_save(
                state, storage_writer=dcp.FileSystemWriter(path, sync_files=True))
        waits.append(time.perf_counter() - begin)
        if step >= 2 and rank == 0:
            shutil.rmtree(f"{folder}/{step - 2}", ignore_errors=True)
    if pending is not None:
        pending.result()
    print(json.dumps(waits), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

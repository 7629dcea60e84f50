"""Times Gloo's collectives through torch.distributed: gloo_peer.py RENDEZVOUS-FILE REPEATS SECONDS SIZE..."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

K_MIN, K_MAX, TRIAL = 2, 2000, 3


def slowest(value: float) -> float:
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.item()


def timed(call, k: int) -> float:
    dist.barrier()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(k):
        call()
    return slowest((time.perf_counter() - start) / k)


def main() -> None:
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    repeats, seconds = int(sys.argv[2]), float(sys.argv[3])
    for size in map(int, sys.argv[4:]):
        whole, part = torch.ones(size // 4), torch.ones(size // 4 // ranks)
        other = torch.ones(size // 4)
        calls = {"all_reduce": lambda: dist.all_reduce(whole),
                 "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
                 "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
                 "broadcast": lambda: dist.broadcast(whole, 0),
                 "all_to_all": lambda: dist.all_to_all_single(other, whole)}
        for name, call in calls.items():
            if len(part) == 0 and name not in ("all_reduce", "broadcast"):
                continue
            timed(call, TRIAL)
            k = min(max(int(seconds / timed(call, TRIAL)), K_MIN), K_MAX)
            times = [timed(call, k) * 1e6 for _ in range(repeats)]
            if rank == 0:
                print(json.dumps({"op": name, "size": size, "repeats_us": times}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

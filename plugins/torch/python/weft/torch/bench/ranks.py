"""Processes of this host that measure together."""

import contextlib
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

LIMIT = 600.0  # seconds without a result; a bound on hangs alone
# The body of a rank: (rank, ranks, report, *arguments); what rank 0 reports is yielded by run().
Body = Callable[..., None]


def run(ranks: int, body: Body, *arguments, limit: float = LIMIT) -> Iterator:
    """Runs `body` in `ranks` processes, forked from this one, which has PyTorch loaded and has done
    nothing with it. Yields what rank 0 reports. RuntimeError where a rank dies, or where none has
    come for `limit` seconds."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    processes = []
    gc.freeze()  # or a child that collects garbage copies the pages of all that this process has
    try:
        for rank in range(ranks):
            pipe = there if rank == 0 else None
            process = context.Process(target=_run_rank, args=(body, rank, ranks, pipe, arguments),
                                      daemon=True)
            process.start()
            processes.append(process)
            there.close()  # so that the pipe ends with rank 0
        heard = time.monotonic()
        while True:
            with contextlib.suppress(EOFError):
                if here.poll(0.05):
                    yield here.recv()
                    heard = time.monotonic()
                    continue
            exits = [process.exitcode for process in processes]
            dead = [rank for rank, code in enumerate(exits) if code not in (None, 0)]
            if dead:
                raise RuntimeError(f"rank {dead[0]} of {ranks} ended with status {exits[dead[0]]}")
            if all(code == 0 for code in exits):
                return
            if time.monotonic() > heard + limit:
                raise RuntimeError(f"{ranks} ranks have measured nothing for {limit:.0f} s")
            time.sleep(0.005)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _run_rank(body: Body, rank: int, ranks: int, pipe, arguments) -> None:
    torch.set_num_threads(1)
    body(rank, ranks, pipe.send if pipe is not None else lambda _: None, *arguments)


def slowest(seconds: list[float]) -> list[float]:
    """The largest of all ranks of the default group, one by one."""
    tensor = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def timed(call: Callable[[], object], calls: int = 1) -> float:
    """Seconds a call."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def calls_within(seconds: float, call: Callable[[], object], most: int = 1000) -> int:
    """How many calls take about `seconds`, on the slowest rank; all ranks get the same number. Two
    calls are made."""
    call()
    once = slowest([timed(call)])[0]
    return max(1, min(most, int(seconds / max(once, 1e-7))))

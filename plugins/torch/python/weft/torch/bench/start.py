"""From a process to a group that works: init_process_group, and groups made later."""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from weft.torch import _library
from weft.torch.bench.ranks import run, slowest, timed
from weft.torch.bench.rows import Row

# In the order of _start()'s times.
CASES = ("init + first all_reduce", "new_group", "first all_reduce of a group")
_GROUPS = 3  # made one after the other, of which the median is taken


def measure(ranks: int, rounds: int) -> Iterator[Row]:
    """Three rows. Each round starts processes anew, for ours and for Gloo in turns. They have PyTorch
    and our library loaded and are connected to a TCPStore of another process, as torchrun's agent
    has one, when they start the clock together: its server looks up the name of every host that
    connects, which takes as long as that takes. The first row also has how long they take to meet
    at the store and do nothing else: less is not possible."""
    _library.operators()
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    times = {"weft": [], "gloo": []}
    for turn in range(rounds):
        for backend, rows in times.items():
            together = multiprocessing.get_context("fork").Barrier(ranks)
            rows += run(ranks, _start, backend, server.port, f"{backend}{turn}", together)
    for i, case in enumerate(CASES):
        ours, gloos = (statistics.median(row[i] for row in times[backend]) * 1e6
                       for backend in ("weft", "gloo"))
        more = {}
        if i == 0:
            more["meeting_alone_us"] = 1e6 * statistics.median(
                row[-1] for of in times.values() for row in of)
        yield Row("start", case, ranks, 0, ours, gloos, rounds, more)


def _meet(store: dist.Store, ranks: int) -> None:
    if store.add("came", 1) == ranks:
        store.set("all", "")
    store.wait(["all"])


def _start(rank, ranks, report, backend, port, prefix, together) -> None:
    tensor = torch.ones(256)
    limit = timedelta(minutes=5)
    store = dist.PrefixStore(prefix, dist.TCPStore("127.0.0.1", port, None, False, limit))
    together.wait(limit.total_seconds())
    start = time.perf_counter()
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=limit)
    dist.all_reduce(tensor)
    times = [time.perf_counter() - start]
    made, first = [], []
    for _ in range(_GROUPS):
        dist.barrier()
        groups = []
        made.append(timed(lambda: groups.append(dist.new_group())))
        first.append(timed(lambda: dist.all_reduce(tensor, group=groups[0])))
    times += [statistics.median(made), statistics.median(first)]
    together.wait(limit.total_seconds())
    times.append(timed(lambda: _meet(store, ranks)))
    report(slowest(times))
    dist.barrier()
    dist.destroy_process_group()

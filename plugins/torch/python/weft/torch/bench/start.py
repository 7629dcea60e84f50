"""From a process to a group that works: init_process_group, and groups made later."""

import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from weft.torch import _library
from weft.torch.bench.ranks import LIMIT, run, slowest, timed
from weft.torch.bench.rows import Row

# In the order of _start()'s times.
CASES = ("init + first all_reduce", "new_group", "first all_reduce of a group")
PROCESS_CASE = "process + imports + init + first all_reduce"
# Processes that import PyTorch each for itself, which takes seconds of CPU and 0.3 GB.
PROCESSES_MOST, QUICK_PROCESSES_MOST = 16, 4
_GROUPS = 3  # made one after the other, of which the median is taken


def measure(ranks: int, rounds: int, processes_most: int) -> Iterator[Row]:
    """Three rows, and a fourth of up to `processes_most` ranks. Each round starts processes anew, for
    ours and for Gloo in turns.

    Those of the first rows are forked: they have PyTorch and our library loaded and are connected
    to a TCPStore of another process, as torchrun's agent has one, when they start the clock
    together: its server looks up the name of every host that connects, which takes as long as that
    takes. The first row also has how long they take to meet at the store and do nothing else: less
    is not possible. The last row, of one round, is from nothing, as torchrun starts workers, and has
    how long the processes take until PyTorch is imported."""
    _library.operators()
    times: dict[str, list[list[float]]] = {"weft": [], "gloo": []}
    with _store_server() as port:
        for turn in range(rounds):
            for backend, rows in times.items():
                together = multiprocessing.get_context("fork").Barrier(ranks)
                rows += run(ranks, _start, backend, port, f"{backend}{turn}", together)
    for i, case in enumerate(CASES):
        ours, gloos = (statistics.median(row[i] for row in times[backend]) * 1e6
                       for backend in ("weft", "gloo"))
        more = {}
        if i == 0:
            more["meeting_alone_us"] = 1e6 * statistics.median(
                row[-1] for of in times.values() for row in of)
        yield Row("start", case, ranks, 0, ours, gloos, rounds, more)
    if ranks <= processes_most:
        yield _measure_processes(ranks)


@contextlib.contextmanager
def _store_server() -> Iterator[int]:
    """The port of a TCPStore in a process of its own: whoever serves one looks up names of hosts in
    a thread, and a process that is forked meanwhile waits for ever where it looks up one."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    server = context.Process(target=_serve, args=(there,), daemon=True)
    server.start()
    try:
        if not here.poll(LIMIT):
            raise RuntimeError(f"no TCPStore listened within {LIMIT:.0f} s")
        yield here.recv()
    finally:
        server.kill()
        server.join()


def _serve(pipe) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.poll(None)  # until it is killed


_PROGRAM = """
import sys
import torch, torch.distributed as dist

torch.set_num_threads(1)
if sys.argv[1] == "none":
    print("ready", flush=True)
else:
    if sys.argv[1] == "weft":
        import weft.torch
    dist.init_process_group(sys.argv[1])
    dist.all_reduce(torch.ones(256))
    print("ready", flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""


def _measure_processes(ranks: int) -> Row:
    with _store_server() as port:
        ours, gloos, none = (1e6 * _start_processes(ranks, backend, port)
                             for backend in ("weft", "gloo", "none"))
    return Row("start", PROCESS_CASE, ranks, 0, ours, gloos, 1, {"imports_alone_us": none})


def _start_processes(ranks: int, backend: str, port: int) -> float:
    """Seconds from the start of the first process to the first all-reduce of the last one."""
    start = time.perf_counter()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, backend], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                 # The store is the launcher's, and each attempt has a part of it.
                 "TORCHELASTIC_USE_AGENT_STORE": "True",
                 "TORCHELASTIC_RESTART_COUNT": "1" if backend == "gloo" else "0"})
        for rank in range(ranks)]
    try:
        for rank, process in enumerate(processes):
            assert process.stdout is not None  # noqa: S101 -- a pipe, as Popen was told
            if process.stdout.readline() != "ready\n":
                _, errors = process.communicate(timeout=LIMIT)
                raise RuntimeError(f"process {rank} of {ranks}, {backend}, ended with status "
                                   f"{process.returncode}: {errors[-2000:]}")
        seconds = time.perf_counter() - start
        for process in processes:
            process.wait(LIMIT)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
    return seconds


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

"""From a process to a group that works: init_process_group, and groups made later."""

import contextlib
import multiprocessing
import os
import select
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

CASES = {"init + first all_reduce": "start", "new_group": "new_group",
         "first all_reduce of a group": "first_call"}
PROCESS_CASE = "process + imports + init + first all_reduce"
_GROUPS = 3  # made one after the other, of which the median is taken


def measure(ranks: int, rounds: int) -> Iterator[Row]:
    """Three rows. Each round starts processes anew, for ours and for Gloo in turns, and for PyTorch's
    backend "fake", which does nothing.

    The processes are forked: they have PyTorch and our library loaded and are connected to a TCPStore
    of another process, as torchrun's agent has one, when they start the clock together: its server
    looks up the name of every host that connects, which takes as long as that takes. The first row
    also has what init_process_group() takes of it; how long the ranks take to meet at the store and
    do nothing else, and how long init_process_group() and all_reduce() take by "fake": no backend
    takes less than either; and the processor time of a rank by each, which the turns of other
    programs do not add to."""
    _library.operators()
    times: dict[str, list[dict[str, float]]] = {"weft": [], "gloo": [], "fake": []}
    with _store_server() as port:
        for turn in range(rounds):
            for backend, rows in times.items():
                together = multiprocessing.get_context("fork").Barrier(ranks)
                rows += run(ranks, _start, backend, port, f"{backend}{turn}", together)

    def of(name: str, *backends: str) -> float:
        return 1e6 * statistics.median(row[name] for backend in backends for row in times[backend])

    for case, name in CASES.items():
        more = {} if name != "start" else {
            "init_us": of("init", "weft"), "gloo_init_us": of("init", "gloo"),
            "meeting_alone_us": of("meeting", "weft", "gloo"), "pytorch_alone_us": of(name, "fake"),
            **{f"{backend}_cpu_us": of("cpu", backend) for backend in times}}
        yield Row("start", case, ranks, 0, of(name, "weft"), of(name, "gloo"), rounds, more)


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


def measure_processes(ranks: int) -> Row:
    """From nothing, as torchrun starts workers; and how long the processes take until PyTorch is
    imported, each by itself, in seconds of CPU and 0.3 GB. One round."""
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
            if not _is_ready(process, start + LIMIT):
                process.kill()  # unless it has ended
                _, errors = process.communicate()
                raise RuntimeError(f"process {rank} of {ranks}, {backend}, was not ready within "
                                   f"{LIMIT:.0f} s or ended, with status {process.returncode}: "
                                   f"{errors[-2000:]}")
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


def _is_ready(process: subprocess.Popen, deadline: float) -> bool:
    """Whether it says so before `deadline`."""
    assert process.stdout is not None  # noqa: S101 -- a pipe, as Popen was told
    left = max(0.0, deadline - time.perf_counter())
    said, _, _ = select.select([process.stdout], [], [], left)
    return bool(said) and process.stdout.readline() == "ready\n"


def _meet(store: dist.Store, ranks: int) -> None:
    if store.add("came", 1) == ranks:
        store.set("all", "")
    store.wait(["all"])


def _start(rank, ranks, report, backend, port, prefix, together) -> None:
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 -- registers "fake"

    tensor = torch.ones(256)
    limit = timedelta(minutes=5)
    store = dist.PrefixStore(prefix, dist.TCPStore("127.0.0.1", port, None, False, limit))
    together.wait(limit.total_seconds())
    start, cpu = time.perf_counter(), time.process_time()
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=limit)
    init = time.perf_counter() - start
    dist.all_reduce(tensor)
    start, cpu = time.perf_counter() - start, time.process_time() - cpu
    made, first = [], []
    for _ in range(_GROUPS):
        dist.barrier()
        groups = []
        made.append(timed(lambda: groups.append(dist.new_group())))
        first.append(timed(lambda: dist.all_reduce(tensor, group=groups[0])))
    together.wait(limit.total_seconds())
    meeting = timed(lambda: _meet(store, ranks))
    total = torch.tensor(cpu, dtype=torch.float64)
    dist.all_reduce(total)
    # By "fake" each rank sees itself alone.
    mean = total.item() / (1 if backend == "fake" else ranks)
    names = ("start", "init", "new_group", "first_call", "meeting")
    times = slowest([start, init, statistics.median(made), statistics.median(first), meeting])
    report({**dict(zip(names, times, strict=True)), "cpu": mean})
    dist.barrier()
    dist.destroy_process_group()

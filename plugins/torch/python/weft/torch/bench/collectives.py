"""Collectives through torch.distributed, ours beside Gloo's; and what our Python path costs."""

import statistics
import tempfile
from collections.abc import Iterator

import torch
import torch.distributed as dist

from weft.torch import _library
from weft.torch.bench.ranks import calls_within, run, slowest, timed
from weft.torch.bench.rows import Row

OPERATIONS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast",
              "all_to_all_single", "barrier")
BACKENDS = ("weft", "gloo")
ELEMENT_BYTES = 4  # of float32
_TURNS, _TURN_SECONDS = 20, 0.002  # of the overhead: turns a round, and how long one is


def cases_of(operations: list[str], sizes: list[int]) -> list[tuple[str, int]]:
    return [(operation, size) for operation in operations
            for size in ([0] if operation == "barrier" else sizes)]


def measure(ranks: int, cases: list[tuple[str, int]], rounds: int, seconds: float) -> Iterator[Row]:
    """A row for each (operation, bytes), in order. Both backends live in the same processes and are
    measured in turns, for `seconds` each time, so that what else the machine does meets both."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        for operation, size, times in run(ranks, _measure, f"{folder}/store", cases, rounds, seconds):
            yield Row("collectives", operation, ranks, size, times["weft"] * 1e6,
                      times["gloo"] * 1e6, rounds)


def measure_overhead(ranks: int, size: int, rounds: int) -> Iterator[Row]:
    """One row: an all-reduce by torch.distributed, and by a loop of C++ over the same communicator;
    and what torch.distributed takes for one by PyTorch's backend "fake", which does nothing: no
    backend takes less. Medians, and the fastest of the turns, which are short and many: what else
    the machine does meets some of them and not all."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        for times in run(ranks, _overhead, f"{folder}/store", size, rounds * _TURNS):
            (python, core, nothing), (python_min, core_min, nothing_min) = (
                [of(times[name]) * 1e6 for name in ("python", "core", "nothing")]
                for of in (statistics.median, min))
            yield Row("overhead", "all_reduce, Python and core", ranks, size, python, None,
                      len(times["python"]),
                      {"core_us": core, "overhead_us": python - core, "pytorch_alone_us": nothing,
                       "fastest_us": python_min, "core_fastest_us": core_min,
                       "overhead_by_minima_us": python_min - core_min,
                       "pytorch_alone_fastest_us": nothing_min})


def prepared(operation: str, size: int, group):
    """A call that moves `size` bytes a rank: of the whole result, as nccl-tests count."""
    ranks = dist.get_world_size(group)
    part = torch.ones(max(size // ELEMENT_BYTES // ranks, 1))
    whole = torch.ones(part.numel() * ranks)
    other = torch.empty_like(whole) if operation == "all_to_all_single" else None
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(other, whole, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }[operation]


def _join(rank: int, ranks: int, store: str) -> None:
    dist.init_process_group("weft", init_method=f"file://{store}", rank=rank, world_size=ranks)


def _measure(rank, ranks, report, store, cases, rounds, seconds) -> None:
    _join(rank, ranks, store)
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for operation, size in cases:
        calls = {name: prepared(operation, size, group) for name, group in groups.items()}
        counts = {name: calls_within(seconds, call) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in BACKENDS}
        for _ in range(rounds):
            for name in BACKENDS:
                dist.barrier()
                times[name] += slowest([timed(calls[name], counts[name])])
        report((operation, size, {name: statistics.median(times[name]) for name in BACKENDS}))
    dist.barrier()
    dist.destroy_process_group()


def _overhead(rank, ranks, report, store, size, turns) -> None:
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 -- registers "fake"

    _join(rank, ranks, store)
    call = prepared("all_reduce", size, None)
    does_nothing = prepared("all_reduce", size, dist.new_group(backend="fake"))
    count = calls_within(_TURN_SECONDS, call, most=100_000)
    world = dist.distributed_c10d._get_default_group().boxed()
    core = _library.operators().time_all_reduce
    core(world, size, count)
    times: dict[str, list[float]] = {"python": [], "core": [], "nothing": []}
    for _ in range(turns):
        for name, turn in (("python", lambda: timed(call, count)),
                           ("core", lambda: core(world, size, count)),
                           ("nothing", lambda: timed(does_nothing, count))):
            dist.barrier()
            times[name] += slowest([turn()])
    report(times)
    dist.barrier()
    dist.destroy_process_group()

"""python -m weft.torch.bench: collectives of this machine's processes, ours beside Gloo's.

Ranks are processes of this host; both backends are measured in them, in turns, so that what else
the machine does meets both. Times are medians over the rounds, of the slowest rank."""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import weft.torch  # noqa: F401 -- registers the backend

OPERATIONS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast",
              "all_to_all_single", "barrier")
# So that the fast and the slow take about as long.
_BYTES_EACH_ROUND = 8 << 20
_CALLS_MAX = 50
_BACKENDS = ("weft", "gloo")


def _calls(operation: str, size: int) -> int:
    return _CALLS_MAX if operation == "barrier" else max(
        1, min(_CALLS_MAX, _BYTES_EACH_ROUND // max(size, 1)))


def _prepared(operation: str, size: int, group):
    """A call that moves `size` bytes a rank: of the whole result, as nccl-tests count."""
    ranks = dist.get_world_size(group)
    part = torch.ones(max(size // 4 // ranks, 1))
    whole = torch.ones(part.numel() * ranks)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty_like(whole), whole,
                                                            group=group),
        "barrier": lambda: dist.barrier(group=group),
    }[operation]


def _measure(call, calls: int) -> float:
    """Seconds a call."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def _rank(rank: int, ranks: int, store: str, cases, rounds: int, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("weft", init_method=f"file://{store}", rank=rank, world_size=ranks)
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for operation, size in cases:
        calls = _calls(operation, size)
        prepared = {name: _prepared(operation, size, group) for name, group in groups.items()}
        times = {name: [] for name in _BACKENDS}
        for call in prepared.values():
            _measure(call, min(calls, 3))
        for _ in range(rounds):
            for name in _BACKENDS:
                dist.barrier()
                slowest = torch.tensor([_measure(prepared[name], calls)], dtype=torch.float64)
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                times[name].append(slowest.item())
        if rank == 0:
            results.put((operation, size, {name: statistics.median(times[name])
                                           for name in _BACKENDS}))
    dist.barrier()
    dist.destroy_process_group()


def measure(ranks: int, cases: list[tuple[str, int]], rounds: int):
    """Yields (operation, bytes, {backend: seconds}) for each case, in order. RuntimeError where a
    rank dies."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        processes = [context.Process(target=_rank, args=(rank, ranks, f"{folder}/store", cases,
                                                         rounds, results), daemon=True)
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        for _ in cases:
            while results.empty():
                dead = [r for r, p in enumerate(processes) if p.exitcode not in (None, 0)]
                if dead:
                    raise RuntimeError(f"rank {dead[0]} of {ranks} ended with status "
                                       f"{processes[dead[0]].exitcode}")
                time.sleep(0.01)
            yield results.get()
        for process in processes:
            process.join()


def parse_size(text: str) -> int:
    """Bytes of "1K", "16M", "4096"."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    scale = units.get(text[-1:].upper(), 1)
    digits = text[:-1] if scale > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; right are 4096, 64K, 16M")
    return int(digits) * scale


def _size_text(size: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def _options(arguments):
    parser = argparse.ArgumentParser(prog="python -m weft.torch.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], metavar="N",
                        help="processes; default: 2 4")
    parser.add_argument("--sizes", type=parse_size, nargs="+", metavar="BYTES",
                        default=[1 << 10, 64 << 10, 1 << 20, 16 << 20],
                        help="of a rank's whole buffer: 1K 64K 1M 16M by default")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS),
                        metavar="NAME", help=f"of {', '.join(OPERATIONS)}; default: all")
    parser.add_argument("--rounds", type=int, default=9, metavar="N",
                        help="of which the median is taken; default: 9")
    parser.add_argument("--json", action="store_true", help="one object a line, for programs")
    options = parser.parse_args(arguments)
    if min(options.ranks) < 2 or options.rounds < 1:
        parser.error("at least 2 ranks and 1 round are needed")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    cases = [(operation, size) for operation in options.operations
             for size in ([0] if operation == "barrier" else options.sizes)]
    if not options.json:
        print(f"{'ranks':>5}  {'operation':24}{'size':>10}{'weft us':>12}{'gloo us':>12}"
              f"{'ratio':>8}")
    for ranks in options.ranks:
        for operation, size, seconds in measure(ranks, cases, options.rounds):
            ratio = seconds["gloo"] / seconds["weft"]
            if options.json:
                print(json.dumps({"ranks": ranks, "operation": operation, "bytes": size,
                                  "weft_us": seconds["weft"] * 1e6,
                                  "gloo_us": seconds["gloo"] * 1e6, "ratio": ratio}), flush=True)
            else:
                print(f"{ranks:5}  {operation:24}{_size_text(size) if size else '-':>10}"
                      f"{seconds['weft'] * 1e6:12.1f}{seconds['gloo'] * 1e6:12.1f}{ratio:8.2f}",
                      flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

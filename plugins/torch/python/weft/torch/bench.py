"""python -m weft.torch.bench: collectives of this machine's processes, ours beside Gloo's.

Ranks are processes of this host; both backends are measured in them, in turns, so that what else
the machine does meets both. Times are medians over the rounds, of the slowest rank."""

import argparse
import json
import math
import multiprocessing
import os
import pathlib
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


_PANEL, _HEIGHT, _MARGIN = 300, 210, 46  # of the picture, in pixels
_COLOURS = {"weft": "#1f6fb4", "gloo": "#d1495b"}


def picture(rows: list[dict]) -> str:
    """An SVG of time over size, both logarithmic: a panel for each operation (across) and number
    of ranks (down). Barriers have no size and are left out."""
    rows = [row for row in rows if row["bytes"] > 0]
    operations = list(dict.fromkeys(row["operation"] for row in rows))
    ranks = list(dict.fromkeys(row["ranks"] for row in rows))
    width, height = _PANEL * max(len(operations), 1), _HEIGHT * max(len(ranks), 1) + 30
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             'font-family="Helvetica,Arial,sans-serif" font-size="11">',
             '<rect width="100%" height="100%" fill="white"/>']
    for i, (name, colour) in enumerate(_COLOURS.items()):
        parts.append(f'<rect x="{_MARGIN + i * 80}" y="10" width="14" height="4" fill="{colour}"/>'
                     f'<text x="{_MARGIN + 20 + i * 80}" y="16">{name}</text>')
    for column, operation in enumerate(operations):
        for line, count in enumerate(ranks):
            panel = [row for row in rows if (row["operation"], row["ranks"]) == (operation, count)]
            if panel:
                parts.append(_panel(panel, f"{operation}, {count} ranks", column * _PANEL,
                                    30 + line * _HEIGHT))
    return "\n".join([*parts, "</svg>\n"])


def _panel(rows: list[dict], title: str, left: int, top: int) -> str:
    wide, high = _PANEL - _MARGIN - 14, _HEIGHT - 60
    x0, y0 = left + _MARGIN, top + 24
    sizes = [math.log2(row["bytes"]) for row in rows]
    times = [math.log10(row[f"{name}_us"]) for row in rows for name in _BACKENDS]
    low, top_decade = math.floor(min(times)), max(math.ceil(max(times)), math.floor(min(times)) + 1)

    def x(size: float) -> float:
        return x0 + wide * (size - min(sizes)) / max(max(sizes) - min(sizes), 1)

    def y(time_: float) -> float:
        return y0 + high * (1 - (time_ - low) / (top_decade - low))

    parts = [f'<text x="{x0}" y="{top + 14}" font-weight="bold">{title}</text>']
    for decade in range(low, top_decade + 1):
        parts.append(f'<path d="M{x0} {y(decade):.1f}h{wide}" stroke="#ddd"/>'
                     f'<text x="{x0 - 6}" y="{y(decade) + 4:.1f}" text-anchor="end">'
                     f'{_time_text(decade)}</text>')
    for row, size in zip(rows, sizes, strict=True):
        parts.append(f'<text x="{x(size):.1f}" y="{y0 + high + 16}" text-anchor="middle">'
                     f'{_size_text(row["bytes"]).replace("iB", "")}</text>')
    for name in _BACKENDS:
        points = [(x(size), y(math.log10(row[f"{name}_us"])))
                  for row, size in zip(rows, sizes, strict=True)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_COLOURS[name]}" '
                     'stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{_COLOURS[name]}">'
                  f'<title>{name}, {_size_text(row["bytes"])}: {row[f"{name}_us"]:.1f} us</title>'
                  '</circle>' for row, (a, b) in zip(rows, points, strict=True)]
    return "\n".join(parts)


def _time_text(decade: int) -> str:
    if decade < 3:
        return f"{10 ** decade:g} us"
    return f"{10 ** (decade - 3):g} ms" if decade < 6 else f"{10 ** (decade - 6):g} s"


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
    parser.add_argument("--svg", type=pathlib.Path, metavar="FILE",
                        help="also draw time over size into this file")
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
    rows = []
    for ranks in options.ranks:
        for operation, size, seconds in measure(ranks, cases, options.rounds):
            ratio = seconds["gloo"] / seconds["weft"]
            rows.append({"ranks": ranks, "operation": operation, "bytes": size,
                         "weft_us": seconds["weft"] * 1e6, "gloo_us": seconds["gloo"] * 1e6,
                         "ratio": ratio})
            if options.json:
                print(json.dumps(rows[-1]), flush=True)
            else:
                print(f"{ranks:5}  {operation:24}{_size_text(size) if size else '-':>10}"
                      f"{seconds['weft'] * 1e6:12.1f}{seconds['gloo'] * 1e6:12.1f}{ratio:8.2f}",
                      flush=True)
    if options.svg:
        options.svg.write_text(picture(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

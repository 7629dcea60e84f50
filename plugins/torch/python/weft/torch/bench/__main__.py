"""python -m weft.torch.bench: what this backend does on this machine, beside Gloo.

Ranks are processes of this host; both backends are measured in them, in turns, so that what else
the machine does meets both. Times are medians over the rounds, of the slowest rank. The parts:

  collectives  through torch.distributed; beside mpi4py over Open MPI too, where that is installed
  overhead     of a 1 KiB all-reduce through Python over the C++ core
  start        init_process_group and first all_reduce, and new_group, of 16 and 64 processes; with
               --imports also with the start of the processes and their import of PyTorch
  steps        of DDP, FSDP2 and tensor parallelism, and how much of it is exposed communication
"""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Iterator

import weft.torch  # noqa: F401 -- registers the backend
from weft.torch.bench import collectives, mpi, picture, start, steps
from weft.torch.bench.rows import HEADER, Row

PARTS = ("collectives", "overhead", "start", "steps")
_RANKS, _QUICK_RANKS = [2, 4, 8], [2, 4, 8]
_SIZES = [1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
_QUICK_SIZES = [1 << 10, 1 << 20, 16 << 20]
_ROUNDS, _QUICK_ROUNDS = 9, 3
_SECONDS, _QUICK_SECONDS = 0.05, 0.02  # of one measurement
_STARTED, _START_ROUNDS = (16, 64), 5
_OVERHEAD_RANKS, _OVERHEAD_BYTES = (1, 2, 4), 1 << 10


def parse_size(text: str) -> int:
    """Bytes of "1K", "16M", "4096"."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    scale = units.get(text[-1:].upper(), 1)
    digits = text[:-1] if scale > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; right are 4096, 64K, 16M")
    return int(digits) * scale


def _options(arguments):
    parser = argparse.ArgumentParser(prog="python -m weft.torch.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true",
                        help="fewer sizes, rounds and a smaller model: within two minutes")
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N",
                        help="processes of the collectives; default: 2 4 8")
    parser.add_argument("--sizes", type=parse_size, nargs="+", metavar="BYTES",
                        help="of a rank's whole buffer; default: 1K 64K 1M 16M 64M; "
                             "with --quick 1K 1M 16M")
    parser.add_argument("--operations", nargs="+", choices=collectives.OPERATIONS,
                        default=list(collectives.OPERATIONS), metavar="NAME",
                        help=f"of {', '.join(collectives.OPERATIONS)}; default: all")
    parser.add_argument("--rounds", type=int, metavar="N",
                        help="of which the median is taken; default: 9, with --quick 3; those of "
                             "start are 5, with --quick 1")
    parser.add_argument("--processes", type=int, nargs="+", metavar="N", default=list(_STARTED),
                        help="of the part start; default: 16 64")
    parser.add_argument("--imports", action="store_true",
                        help="of the part start also a row from the start of processes that import "
                             "PyTorch each for itself: some 3 s of CPU for each, three times")
    parser.add_argument("--svg", type=pathlib.Path, metavar="FILE",
                        help="also draw the collectives' time over size into this file")
    parser.add_argument("--json", action="store_true", help="one object a line, for programs")
    options = parser.parse_args(arguments)
    options.start_rounds = options.rounds or (1 if options.quick else _START_ROUNDS)
    if options.ranks is None:
        options.ranks = _QUICK_RANKS if options.quick else _RANKS
    if options.sizes is None:
        options.sizes = _QUICK_SIZES if options.quick else _SIZES
    if options.rounds is None:
        options.rounds = _QUICK_ROUNDS if options.quick else _ROUNDS
    _check(options, parser)
    return options


def _check(options, parser) -> None:
    for name, counts in (("--ranks", options.ranks), ("--processes", options.processes)):
        if min(counts) < 2:
            parser.error(f"{name} {min(counts)}: at least 2 processes are needed")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1 round is needed")
    ranks, size, part = max(options.ranks), min(options.sizes), collectives.ELEMENT_BYTES
    if size < part * ranks:
        parser.error(f"--sizes {size}: each of {ranks} ranks has a part of {part} bytes at least, "
                     f"together {part * ranks}")
    if options.svg is None:
        return
    if "collectives" not in options.parts:
        parser.error(f"--svg {options.svg}: the picture is of the part collectives, which --parts "
                     "leaves out")
    place = options.svg if options.svg.exists() else options.svg.parent
    if options.svg.is_dir() or not os.access(place, os.W_OK):  # before minutes of measuring
        parser.error(f"--svg {options.svg}: no file can be written there")


def _collectives(options, seconds: float) -> Iterator[Row]:
    cases = collectives.cases_of(options.operations, options.sizes)
    missing = mpi.why_not()
    if missing:
        print(f"without mpi4py over Open MPI: {missing}", file=sys.stderr)
    for ranks in options.ranks:
        by_mpi = {} if missing else mpi.measure(ranks, cases, options.rounds, seconds)
        for row in collectives.measure(ranks, cases, options.rounds, seconds):
            if (row.operation, row.bytes) in by_mpi:
                row.more["mpi4py_us"] = by_mpi[row.operation, row.bytes] * 1e6
            yield row


def measure(options) -> Iterator[Row]:
    seconds = _QUICK_SECONDS if options.quick else _SECONDS
    if "collectives" in options.parts:
        yield from _collectives(options, seconds)
    if "overhead" in options.parts:
        for ranks in _OVERHEAD_RANKS:
            yield from collectives.measure_overhead(ranks, _OVERHEAD_BYTES, options.rounds)
    if "start" in options.parts:
        for ranks in options.processes:
            yield from start.measure(ranks, options.start_rounds)
            if options.imports:
                yield start.measure_processes(ranks)
    if "steps" in options.parts:
        yield from steps.measure(steps.QUICK if options.quick else steps.Shape(), options.rounds)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not options.json:
        print(HEADER)
    rows = []
    for row in measure(options):
        rows.append(row)
        print(json.dumps(row.object()) if options.json else row.text(), flush=True)
    if options.svg:
        options.svg.write_text(picture.picture(
            [row.object() for row in rows if row.part == "collectives"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

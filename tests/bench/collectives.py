"""Collectives on host memory against Gloo, Open MPI, MPICH, oneCCL and what memory allows; and the planner's regret.

Method, the same for all: barrier, barrier, k calls one after the other, time / k, the largest over
ranks; k so that a repeat takes about --repeat-ms (2 to 2000 calls). float32, sum; all-reduce and
broadcast in place. Sizes are of the whole buffer. Buffers are the program's own memory on all sides. A round runs
ours and the peers in turn; a row's number is the median over the repeats of all rounds.

peer_name "floor": one process reads every input and writes every output of all ranks once, by
streaming loops on all cores; but no less than a hand-over of a store to a load between two cores.
peer_name "own NAME": the fastest of our algorithms, ours the planner's choice, both of weft-bw
--compare, which times all in turns: the planner's regret is 1 / ratio - 1.
peer_name "Gloo" in a case "..., tcp": ours over tcp alone.
peer_name "weft, shared buffers": ours, with memory that peers map (weft-bw --buffers shared).
peer_name "before": another build's programs (--before), which plan by their own costs.

Ours plan by costs that are measured first, as users do it once a machine (weft-bw --calibrate; some seconds), or by
--costs FILE, or by the defaults: --costs defaults, and where other programs disturb the measurement.

A peer that cannot be had or takes longer than the limit has no rows, and standard error says so. Sizes up to 4 MiB are
one program's run, each larger one is a run of its own, so that a peer that is too slow for one has rows of the others.
What needs more memory than there is left is left out, and said (64 MiB and more are some 3 times ranks x size; to compare
all algorithms, which keep what they receive, up to ranks + 6 times ranks x size).

--corners: 8 B, 1 KiB, 256 KiB, 4 MiB, 64 MiB and 256 MiB on 2, 4 and 8 ranks, one round: a quarter of an hour.
"""
# needs: torch openmpi
# wants: mpich oneccl

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import _before
from _collectives import BIN, OPERATIONS, SIZES, Compared, Unavailable, bw_rows, bw_words, run, say

FOLDER = pathlib.Path(__file__).resolve().parent / "collectives"
QUICK = {"rounds": 1, "ranks": [2, 4], "sizes": ["1KiB", "256KiB", "4MiB"], "repeat_ms": 20,
         "limit": 60}
CORNERS = {"rounds": 1, "ranks": [2, 4, 8], "repeat_ms": 20, "limit": 40, "compare_max": "4MiB", "budget": 20,
           "sizes": ["8B", "1KiB", "256KiB", "4MiB", "64MiB", "256MiB"]}
WHOLE = ("all_reduce", "broadcast")  # whose ranks all have the whole buffer
SMALL = SIZES["4MiB"]  # sizes up to it are measured by one run of a program
FULL = {"rounds": 3, "ranks": [2, 4, 8], "repeat_ms": 60, "limit": 300,
        "sizes": ["8B", "1KiB", "16KiB", "256KiB", "4MiB", "64MiB", "256MiB"]}


def parse(text: str) -> dict:
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {(row["op"], row["size"]): row["repeats_us"] for row in rows}


class Ours:
    """weft-bw; the times of its choice, and of every algorithm where it compares them. Its memory is what peers have,
    unless `buffers` is "shared"."""

    def __init__(self, options, name="weft", words=(), operations=OPERATIONS, programs=BIN, buffers="private"):
        self.options, self.name, self.operations, self.programs = options, name, operations, programs
        costs = ["--set", f"collective.costs={options.costs}"] if options.costs and programs == BIN else []
        self.words = ["--buffers", buffers, *costs, *options.weft.split(), *words]
        self.compared = {}  # by operation and size

    def measure(self, ranks: int, sizes: list) -> dict:
        times = {}
        if "--compare" in self.words:
            sizes = [size for size in sizes if size <= SIZES[self.options.compare_max] and
                     fits(f"comparing all algorithms, {size} bytes on {ranks} ranks", (ranks + 6) * ranks * size)]
        for operation in self.operations:
            for size in sizes:
                if size // 4 < ranks and operation not in WHOLE:
                    continue  # a rank's part would be empty
                text = run([*bw_words(operation, size, self.options.repeats, self.options.repeat_ms, self.programs),
                            "--ranks", ranks, *self.words], self.options.limit)
                for row in bw_rows(text):
                    if row.get("chosen", True):
                        times[operation, size] = row["times"]
                if "--compare" in self.words:
                    self.compared.setdefault((operation, size), Compared()).add(text)
        return times


class Gloo:
    name = "Gloo"

    def __init__(self, options):
        self.options = options
        self.python = os.environ["WEFT_BENCH_PYTHON"]

    def measure(self, ranks: int, sizes: list) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
                               WORLD_SIZE=str(ranks))
            command = [self.python, FOLDER / "gloo_peer.py", f"{folder}/rendezvous",
                       self.options.repeats, self.options.repeat_ms / 1e3, *sizes]
            others = [subprocess.Popen([str(word) for word in command],
                                       env=dict(environment, RANK=str(rank)))
                      for rank in range(1, ranks)]
            try:
                text = run(command, self.options.limit, env=dict(environment, RANK="0"))
            finally:
                for other in others:
                    try:
                        other.wait(timeout=20)
                    except subprocess.TimeoutExpired:
                        other.kill()
                        other.wait()
        return parse(text)


class Program:
    """A peer that is a program of one source file, compiled here, and what starts its ranks."""

    def __init__(self, options, name, compiler, source, launcher, environment=None):
        self.options, self.name, self.launcher = options, name, launcher
        self.environment = dict(os.environ, **(environment or {}))
        self.folder = tempfile.TemporaryDirectory()
        self.program = f"{self.folder.name}/{source.partition('.')[0]}"
        # Libraries come after what needs them.
        run([compiler[0], "-O3", "-march=native", "-o", self.program, FOLDER / source,
             *compiler[1:]], 120)

    def measure(self, ranks: int, sizes: list) -> dict:
        return parse(run([*self.launcher(ranks), self.program, self.options.repeats,
                          self.options.repeat_ms / 1e3, *sizes], self.options.limit,
                         env=self.environment))


def open_mpi(options):
    return Program(options, "Open MPI", ["mpicc.openmpi"], "mpi_peer.c", lambda ranks: [
        "mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-n", ranks, "--mca", "pml",
        "ob1", "--mca", "btl", "self,vader"])


def mpich(options):
    return Program(options, "MPICH", ["mpicc.mpich"], "mpi_peer.c",
                   lambda ranks: ["mpiexec.mpich", "-n", ranks])


def one_ccl(options):
    folder = os.environ.get("WEFT_BENCH_ONECCL")
    if folder is None:
        raise Unavailable("oneCCL is not installed")
    return Program(options, "oneCCL",
                   ["g++", "-std=c++17", f"-I{folder}/include", f"-L{folder}/lib", "-lccl", "-lmpi",
                    f"-Wl,-rpath,{folder}/lib"],
                   "oneccl_peer.cc", lambda ranks: [f"{folder}/bin/mpiexec.hydra", "-n", ranks],
                   {"LD_LIBRARY_PATH": f"{folder}/lib", "I_MPI_ROOT": folder, "CCL_ROOT": folder,
                    "FI_PROVIDER_PATH": f"{folder}/lib"})


class Floor:
    name = "floor"

    def __init__(self, options):
        self.program = Program(options, self.name, ["gcc", "-pthread"], "floor.c", lambda _: [])

    def measure(self, ranks: int, sizes: list) -> dict:
        self.program.launcher = lambda _: ["env", f"WEFT_FLOOR_RANKS={ranks}"]
        return self.program.measure(ranks, sizes)


def ours_shared(options):
    return Ours(options, "weft, shared buffers", buffers="shared")


PEERS = {"gloo": Gloo, "openmpi": open_mpi, "mpich": mpich, "oneccl": one_ccl, "floor": Floor, "shared": ours_shared}


def measure_costs(costs: pathlib.Path) -> pathlib.Path | None:
    """The file; None where the machine is too busy to measure them."""
    try:
        say(run([BIN / "weft-bw", "--ranks", 2, "--calibrate", "--set", f"collective.costs={costs}"], 60))
    except Unavailable as reason:
        say(f"planned by the default costs: {reason}")
        return None
    return costs


def median(times: dict, key: tuple) -> float:
    return statistics.median(times[key])


def row(options, case: str, ours: float, peer: float, peer_name: str) -> None:
    print(json.dumps({"name": "collectives", "case": case, "ours": round(ours, 3),
                      "peer": round(peer, 3), "peer_name": peer_name, "unit": "us",
                      "ratio": round(peer / ours, 3),
                      "repeats": options.rounds * options.repeats}), flush=True)


def fits(what: str, needed: int) -> bool:
    """Whether so many bytes are half of the memory that is left, or less."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    left = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    if needed > left / 2:
        say(f"no rows of {what}: up to {needed >> 20} MiB, of {left >> 20} MiB that are left")
    return needed <= left / 2


def measure_in_turn(options, ranks: int, programs: list, sizes: list) -> dict:
    """Times of each program by name; those that fail, and after the budget all but ours, are left out."""
    times = {program.name: {} for program in programs}
    for turn in range(options.rounds):
        for program in programs:
            if program.name not in times:
                continue
            if program is not programs[0] and time.monotonic() > options.end:
                say(f"no rows of {program.name} with {ranks} ranks, {sizes} bytes: the budget of {options.budget} minutes is spent")
                del times[program.name]
                continue
            say(f"{ranks} ranks, round {turn + 1} of {options.rounds}: {program.name}")
            try:
                measured = program.measure(ranks, sizes)
            except Unavailable as reason:
                say(f"no rows of {program.name} with {ranks} ranks, {sizes} bytes: {reason}")
                del times[program.name]
                continue
            for key, values in measured.items():
                times[program.name].setdefault(key, []).extend(values)
    return times


def compare(options, ranks: int, peers: list, sizes: dict) -> None:
    ours, *before = [Ours(options, name, programs=programs) for name, programs in _before.builds(options).items()]
    peers = [*before, *peers]
    over_tcp = Ours(options, "weft over tcp", ["--transport", "tcp"], OPERATIONS[:1])
    compared = [Ours(options, "weft --compare", ["--compare"])] if options.regret else []
    values = list(sizes.values())
    runs = [[size for size in values if size <= SMALL], *([size] for size in values if size > SMALL)]
    times = {}
    for together in runs:
        if not together or not fits(f"{together} bytes on {ranks} ranks", 3 * ranks * together[-1]):
            sizes = {name: size for name, size in sizes.items() if size not in together}
            continue
        measured = measure_in_turn(options, ranks, [ours, over_tcp, *peers, *compared], together)
        if ours.name not in measured:
            raise SystemExit("weft-bw has no times")
        for name, found in measured.items():
            times.setdefault(name, {}).update(found)
    for operation in OPERATIONS:
        for name, size in sizes.items():
            key, case = (operation, size), f"{operation} {name} {ranks} ranks"
            if key not in times[ours.name]:
                continue  # a rank's part would be empty
            mine = median(times[ours.name], key)
            for peer in peers:
                if key in times.get(peer.name, {}):
                    row(options, case, mine, median(times[peer.name], key), peer.name)
            if key in times.get(over_tcp.name, {}) and key in times.get("Gloo", {}):
                row(options, f"{case}, tcp", median(times[over_tcp.name], key),
                    median(times["Gloo"], key), "Gloo")
            for case_of in compared:
                if found := case_of.compared.get(key):
                    row(options, f"{case}, chosen {found.chosen}", found.median(found.chosen), found.median(found.best),
                        f"own {found.best}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true",
                        help="1 KiB, 256 KiB and 4 MiB on 2 and 4 ranks: under 3 minutes")
    parser.add_argument("--corners", action="store_true",
                        help="8 B to 256 MiB on 2, 4 and 8 ranks, one round: a quarter of an hour")
    parser.add_argument("--budget", type=float, help="minutes after which no peer is started any more")
    parser.add_argument("--compare-max", choices=list(SIZES), help="largest size to compare all our algorithms at")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--repeats", type=int, default=3, help="in each round (default 3)")
    parser.add_argument("--repeat-ms", type=float, help="of one repeat, milliseconds")
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES))
    _before.add_argument(parser)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--limit", type=float, help="seconds for one program of one round")
    parser.add_argument("--costs", help="a file of weft-bw --calibrate, or defaults (default: measured anew)")
    parser.add_argument("--no-regret", dest="regret", action="store_false",
                        help="do not compare all our algorithms")
    parser.add_argument("--weft", default="", help="more words for weft-bw, as one argument")
    options = parser.parse_args()
    form = QUICK if options.quick else CORNERS if options.corners else FULL
    for name, value in ({"budget": 600, "compare_max": "256MiB"} | form).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.end = time.monotonic() + 60 * options.budget
    with tempfile.TemporaryDirectory(prefix="weft-costs-") as folder:
        if options.costs is None:
            options.costs = measure_costs(pathlib.Path(folder) / "costs")
        elif options.costs == "defaults":
            options.costs = None
        measure(options)


def measure(options) -> None:
    peers = []
    for name in options.peers:
        try:
            peers.append(PEERS[name](options))
        except (Unavailable, KeyError) as reason:
            say(f"no rows of {name}: {reason}")
    for ranks in options.ranks:
        compare(options, ranks, peers, {name: SIZES[name] for name in options.sizes})


if __name__ == "__main__":
    main()

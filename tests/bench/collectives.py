"""All-reduce, all-gather and reduce-scatter on host memory against Gloo and Open MPI's shared memory.

Method, the same for all three: barrier, barrier, k calls one after the other, time / k, the largest
over ranks; k so that a repeat takes about 60 ms (2 to 2000). float32, sum, all-reduce in place. Sizes
are of the whole buffer. A round runs ours, Gloo and Open MPI in turn, on 2 and then on 4 ranks; a
row's number is the median over the repeats of all rounds.
"""
# needs: torch openmpi

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent / "collectives"
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
SIZES = {"1KiB": 1 << 10, "16KiB": 1 << 14, "256KiB": 1 << 18, "4MiB": 1 << 22, "64MiB": 1 << 26}
LIMIT_S = 300  # for one program of one round


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list, **more) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, **more)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


class Ours:
    name = "weft"

    def __init__(self, options):
        self.program = pathlib.Path(os.environ["WEFT_BIN"]) / "weft-bw"
        self.more = options.weft.split()

    def measure(self, ranks: int, sizes: dict, repeats: int) -> dict:
        times = {}
        for place, operations in (("in", OPERATIONS[:1]), ("out", OPERATIONS[1:])):
            for operation in operations:
                for size in sizes.values():
                    self.one(times, ranks, operation, place, size, repeats)
        return times

    def one(self, times, ranks, operation, place, size, repeats):
        text = run([self.program, "--ranks", ranks, "--op", operation, "--place", place, "-b", size,
                    "-a", 3, "--repeats", repeats, "--repeat-time", "60ms", "-w", 3, "--json",
                    *self.more])
        for row in json.loads(text)["rows"]:
            result = row["in_place" if place == "in" else "out_of_place"]
            if result["wrong"] != 0:
                raise SystemExit(f"weft-bw: wrong data: {row}")
            times[operation, size] = result["repeats_us"]


class Gloo:
    name = "Gloo"

    def __init__(self, _):
        self.python = os.environ["WEFT_BENCH_PYTHON"]

    def measure(self, ranks: int, sizes: dict, repeats: int) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
                               WORLD_SIZE=str(ranks))
            command = [self.python, FOLDER / "gloo_peer.py", f"{folder}/rendezvous", repeats,
                       *sizes.values()]
            others = [subprocess.Popen([str(word) for word in command],
                                       env=dict(environment, RANK=str(rank)))
                      for rank in range(1, ranks)]
            try:
                text = run(command, env=dict(environment, RANK="0"))
            finally:
                for other in others:
                    try:
                        other.wait(timeout=20)
                    except subprocess.TimeoutExpired:
                        other.kill()
        return parse(text)


class OpenMpi:
    name = "Open MPI"

    def __init__(self, _):
        self.folder = tempfile.TemporaryDirectory()
        self.program = f"{self.folder.name}/mpi_peer"
        run(["mpicc", "-O2", "-o", self.program, FOLDER / "mpi_peer.c"])

    def measure(self, ranks: int, sizes: dict, repeats: int) -> dict:
        return parse(run(["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", ranks, "--mca",
                          "pml", "ob1", "--mca", "btl", "self,vader", self.program, repeats,
                          *sizes.values()]))


def parse(text: str) -> dict:
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {(row["op"], row["size"]): row["repeats_us"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="in each round (default 3)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--peers", nargs="+", default=["gloo", "openmpi"],
                        choices=["gloo", "openmpi"])
    parser.add_argument("--weft", default="", help="more words for weft-bw, as one argument")
    options = parser.parse_args()
    sizes = {name: SIZES[name] for name in options.sizes}
    peers = [{"gloo": Gloo, "openmpi": OpenMpi}[name](options) for name in options.peers]
    programs = [Ours(options), *peers]
    for ranks in options.ranks:
        times = {program.name: {} for program in programs}
        for turn in range(options.rounds):
            for program in programs:
                say(f"{ranks} ranks, round {turn + 1} of {options.rounds}: {program.name}")
                for key, values in program.measure(ranks, sizes, options.repeats).items():
                    times[program.name].setdefault(key, []).extend(values)
        for operation in OPERATIONS:
            for name, size in sizes.items():
                for peer in peers:
                    ours = statistics.median(times["weft"][operation, size])
                    theirs = statistics.median(times[peer.name][operation, size])
                    print(json.dumps({
                        "name": "collectives", "case": f"{operation} {name} {ranks} ranks",
                        "ours": round(ours, 2), "peer": round(theirs, 2), "peer_name": peer.name,
                        "unit": "us", "ratio": round(theirs / ours, 3),
                        "repeats": options.rounds * options.repeats}), flush=True)


if __name__ == "__main__":
    main()

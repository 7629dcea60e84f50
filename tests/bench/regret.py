"""The planner's regret: how much longer its choice takes than the best of all algorithms, each measured.

On this host with 2, 4 and 8 ranks, and, as root, with a rank on each of 8 hosts of a fabric of namespaces (4 leaves,
2 spines, links of 200 Mbit/s between them). weft-bw --compare runs every algorithm that the kind has in the same
processes, over the same links, a repeat of each in turn; rounds go over all cases. The costs are measured first, as
users do it (weft-bw --calibrate). A case's number is the median over the repeats of all rounds, of the slowest rank.

`ours` is the planner's choice and `peer` the fastest, peer_name says which; regret is 1 / ratio - 1. The last rows
give median and worst: `ours` 1 + regret, `peer` 1.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fabric"))
import netns  # noqa: E402
import planned  # noqa: E402
from _collectives import (BIN, OPERATIONS, SIZES, Compared, bw_words, compare_in_rounds,  # noqa: E402
                          regret_rows, run, say)

FULL = {"rounds": 3, "ranks": [2, 4, 8], "sizes": ["1KiB", "16KiB", "256KiB", "4MiB", "64MiB"],
        "operations": [*OPERATIONS, "reduce", "gather", "scatter"], "fabric_sizes": ["1KiB", "64KiB", "1MiB"]}
QUICK = {"rounds": 1, "ranks": [2, 4, 8], "sizes": ["1KiB", "16KiB", "256KiB", "4MiB"], "operations": [*OPERATIONS],
         "fabric_sizes": ["1KiB", "64KiB"]}
MBIT = 200
LEAVES, SPINES, HOSTS_PER_LEAF = 4, 2, 2
PORT = 29500


class OneHost:
    def __init__(self, ranks: int, options):
        self.name, self._ranks, self._options = f"{ranks} ranks", ranks, options

    def compare(self, operation: str, size: int) -> str:
        return run([*case_words(operation, size, self._options), "--ranks", self._ranks], self._options.limit)


class Namespaces:
    """A rank a host; every host knows the fabric and its own name there."""

    def __init__(self, fabric, folder, options):
        self.name = f"{fabric.hosts} hosts"
        self._fabric, self._options = fabric, options
        self._known, _ = planned.write_fabric(fabric, folder)

    def compare(self, operation: str, size: int) -> str:
        hosts = range(self._fabric.hosts)
        environment = {name: value for name, value in os.environ.items() if name != netns.INSIDE}
        environment["WEFT_JOB_SECRET"] = "11" * 32
        return planned.wait_all([
            self._fabric.start(host, [BIN / "weft-run", "-n", 1, "--nnodes", len(hosts), "--node-rank", host,
                                      "--master-addr", self._fabric.address(0), "--master-port", PORT, "--no-prefix",
                                      "--", *case_words(operation, size, self._options), "--set",
                                      f"collective.fabric={self._known}", "--set", f"collective.fabric_host=h{host}"],
                               env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for host in hosts], self._options.limit)


def case_words(operation: str, size: int, options) -> list:
    return [*bw_words(operation, size, options.repeats, options.repeat_ms), "--compare", "--set",
            f"collective.costs={options.costs}", *options.weft.split()]


def row(**values) -> None:
    print(json.dumps({"name": "regret", **values}), flush=True)


def measure(place, sizes: list, options) -> list:
    """The regrets of all cases."""
    cases = {(operation, size): Compared() for operation in options.operations for size in sizes}
    compare_in_rounds(cases, options.rounds, place.name, place.compare)
    for (operation, size), case in cases.items():
        times = ", ".join(f"{name} {case.median(name):.4g}" for name in sorted(case.times, key=case.median))
        say(f"{operation} {size} {place.name}: {case.chosen}, regret {100 * case.regret:.1f} %; us: {times}")
        row(case=f"{operation} {size} {place.name}, chosen {case.chosen}", ours=round(case.median(case.chosen), 3),
            peer=round(case.median(case.best), 3), peer_name=case.best, unit="us", ratio=round(1 / (1 + case.regret), 3),
            repeats=options.rounds * options.repeats)
    return [case.regret for case in cases.values()]


def summarize(where: str, regrets: list) -> None:
    for values in regret_rows(where, regrets):
        row(**values)


def measure_namespaces(options, folder: pathlib.Path) -> None:
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    with netns.Fabric(leaves=LEAVES, spines=SPINES, hosts_per_leaf=HOSTS_PER_LEAF, mbit=MBIT) as fabric:
        summarize("namespaces", measure(Namespaces(fabric, folder, options), options.fabric_sizes, options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of less: some four minutes")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--repeats", type=int, default=5, help="in each round (default 5)")
    parser.add_argument("--repeat-ms", type=float, default=10, help="of one repeat, milliseconds (default 10)")
    parser.add_argument("--ranks", type=int, nargs="*", help="of this host")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES))
    parser.add_argument("--fabric-sizes", nargs="*", choices=list(SIZES), help="none: no namespaces")
    parser.add_argument("--operations", nargs="+")
    parser.add_argument("--costs", help="a file of weft-bw --calibrate (default: measured anew)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one case of one round")
    parser.add_argument("--weft", default="", help="more words for weft-bw, as one argument")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    with tempfile.TemporaryDirectory(prefix="weft-regret-") as name:
        folder = pathlib.Path(name)
        if options.inside:
            measure_namespaces(options, folder)
            return
        if options.costs is None:
            options.costs = folder / "costs"
            say(run([BIN / "weft-bw", "--ranks", 2, "--calibrate", "--force", "--set", f"collective.costs={options.costs}"], 60))
        regrets = []
        for ranks in options.ranks:
            regrets += measure(OneHost(ranks, options), options.sizes, options)
        if regrets:
            summarize("one host", regrets)
        if options.fabric_sizes:
            inside = subprocess.run([sys.executable, "-B", __file__, *sys.argv[1:], "--inside", "--costs",
                                     options.costs])
            if inside.returncode not in (0, netns.SKIPPED):
                raise SystemExit(inside.returncode)


if __name__ == "__main__":
    main()

"""Collectives between shaped hosts against the bound that their links give; levels against flat; the planner's regret.

Fabrics of network namespaces (need root), whose links, NICs too, are shaped by tbf. Every case runs weft-bw --compare
under one weft-run a host: all algorithms in the same processes, over the same links, a repeat of each in turn; its time
is the median over the repeats of all rounds, of the slowest rank. The planner knows the fabric, as a user's job does:
by the plan directory of `weft-plan paths` (weft-run --plan) where there are several spines, else by collective.fabric.

    planned         8 hosts under 4 leaves and 2 spines, as many cables up as hosts, Linux's ECMP: with a plan
    oversubscribed  8 hosts under 2 leaves and one cable up: 4 to 1
    ranks           4 hosts of 4 ranks
    rails           4 hosts of 2 NICs and 2 ranks, each rank by a NIC of its own

Rows of a case: the choice beside the bound (peer_name "bound"; `ratio` is its share; sizes of --bound-from on), beside
the fastest algorithm (its name; regret is 1 / ratio - 1), and the fastest of hierarchical and three_level beside the
fastest of the others. The bound is what no algorithm beats, with TCP's headers: the bytes that must leave or enter the
fullest host, or leaf, over the rate of its NICs, or cables. The last rows give the worst share and the regret's median and
worst; a table goes to standard error. Sizes below 64 KiB would measure how the hosts share this machine's cores, which
no planner knows: at 100 Mbit/s the links take 5 ms for those.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fabric"))
import all_reduce  # noqa: E402
import netns  # noqa: E402
import planned  # noqa: E402
from _collectives import (BIN, OPERATIONS, SIZES, Compared, bw_words, compare_in_rounds,  # noqa: E402
                          regret_rows, run, say)

LEVELS = ("hierarchical", "three_level")
PORT = 29500
BURST_MS = 2  # what an idle link saves of its rate
FULL = {"rounds": 3, "sizes": ["64KiB", "256KiB", "1MiB", "4MiB"], "operations": [*OPERATIONS, "reduce"]}
QUICK = {"rounds": 1, "sizes": ["64KiB", "1MiB"], "operations": [*OPERATIONS]}


class Layout:
    """Hosts, and ranks on them. `mbit`: of a NIC; `up`: of a cable to a spine, in such."""

    def __init__(self, name, leaves, hosts_per_leaf, spines, up=1, ranks=1, nics=1):
        self.name, self.leaves, self.hosts_per_leaf, self.spines = name, leaves, hosts_per_leaf, spines
        self.up, self.ranks, self.nics = up, ranks, nics
        self.hosts = leaves * hosts_per_leaf

    def __str__(self):
        text = f"{self.hosts} hosts" + (f" of {self.ranks} ranks" if self.ranks > 1 else "")
        return text + (f" and {self.nics} NICs" if self.nics > 1 else "") + f", {self.name}"

    def fabric(self, mbit):
        return netns.Fabric(leaves=self.leaves, spines=self.spines, hosts_per_leaf=self.hosts_per_leaf, nics=self.nics,
                            mbit=mbit * self.up, host_mbit=mbit, burst_ms=BURST_MS)

    def bound(self, operation: str, size: int, mbit: float) -> float:
        """Microseconds: hosts by their NICs, leaves by their cables."""
        byte_us = 8 / mbit * all_reduce.WIRE
        return max(crossing(operation, size, self.hosts, self.hosts * self.ranks) / self.nics,
                   crossing(operation, size, self.leaves, self.hosts * self.ranks) / (self.spines * self.up)) * byte_us


def crossing(operation: str, size: int, parts: int, ranks: int) -> float:
    """Bytes out of, or into, the fullest of equal parts of the ranks, at least (Patarasuk and Yuan 2009)."""
    others = (parts - 1) / parts
    return {"all_reduce": 2 * size * others, "all_gather": size * others, "reduce_scatter": size * others,
            "broadcast": size, "reduce": size, "gather": size * others, "scatter": size * others,
            "all_to_all": ranks / parts * size * others}[operation] if parts > 1 else 0


LAYOUTS = [Layout("planned", 4, 2, 2), Layout("oversubscribed", 2, 4, 1), Layout("ranks", 2, 2, 1, up=2, ranks=4),
           Layout("rails", 2, 2, 1, up=4, ranks=2, nics=2)]


class Job:
    """weft-bw --compare on every host of a fabric that is up."""

    def __init__(self, layout, fabric, folder, options):
        self._layout, self._fabric, self._folder, self._options = layout, fabric, folder, options
        self._known, self._hashes = planned.write_fabric(fabric, folder)
        self._plans = {}

    def _plan(self, operation: str) -> pathlib.Path:
        """All but an exchange go along a ring."""
        kind = "all_to_all" if operation == "all_to_all" else "all_reduce"
        if kind not in self._plans:
            out = self._folder / f"plan-{kind}"
            planned.run("weft-plan", "paths", "--fabric", self._known, "--hash", self._hashes, "--transport", "tcp",
                        "--node", "gpus=1", "--layout", f"dp={self._layout.hosts}", "--traffic",
                        f"name=dp,axes=dp,collective={kind},bytes={1 << 20}", "--out", out)
            self._plans[kind] = out
        return self._plans[kind]

    def compare(self, operation: str, size: int) -> str:
        options, layout = self._options, self._layout
        words = [*bw_words(operation, size, options.repeats, options.repeat_ms), "--compare", "--transport", "auto", "--set",
                 f"collective.costs={options.costs}", "--set", "tcp.sockets=1", *options.weft.split()]
        environment = {name: value for name, value in os.environ.items() if name != netns.INSIDE}
        environment["WEFT_JOB_SECRET"] = "11" * 32
        plan = self._plan(operation) if layout.spines > 1 else None
        order = list(range(layout.hosts))
        if plan is not None:
            order = [int(name[1:]) for name in dict.fromkeys(planned.Plan(plan).host_of_rank.values())]
        programs = []
        for node, host in enumerate(order):
            own = [] if plan else ["--set", f"collective.fabric={self._known}", "--set", f"collective.fabric_host=h{host}"]
            command = [BIN / "weft-run", *(["--plan", plan] if plan else []), "-n", layout.ranks, "--nnodes", len(order),
                       "--node-rank", node, "--master-addr", self._fabric.address(order[0]), "--master-port", PORT,
                       "--no-prefix", "--"]
            line = " ".join(map(str, [*words, *own]))
            by_nic = layout.nics > 1  # a rank's number on the host chooses its NIC
            command += ["sh", "-c", f"WEFT_TCP_INTERFACE==eth$LOCAL_RANK exec {line}"] if by_nic else [*words, *own]
            programs.append(self._fabric.start(host, command, env=environment, text=True, stdout=subprocess.PIPE,
                                               stderr=subprocess.PIPE))
        return planned.wait_all(programs, options.limit)


def row(**values) -> None:
    print(json.dumps({"name": "bounds", **values}), flush=True)


class Cell:
    """One case: what the rows and the table have of it."""

    def __init__(self, layout, operation, size, case, options):
        self.layout, self.operation, self.size = layout, operation, size
        self.name = f"{operation} {size} {layout}"
        self.chosen, self.best = case.chosen, case.best
        self.time, self.least, self.regret = case.median(case.chosen), case.median(case.best), case.regret
        self.bound = layout.bound(operation, SIZES[size], options.mbit)
        self.share = self.bound / self.time if SIZES[size] >= SIZES[options.bound_from] else None
        levels = [name for name in case.times if name in LEVELS]
        flat = [name for name in case.times if name not in LEVELS]
        self.levels = min(levels, key=case.median) if levels and layout.ranks > 1 else None
        self.flat = min(flat, key=case.median)
        if self.levels:
            self.levels_us, self.flat_us = case.median(self.levels), case.median(self.flat)
        say(f"{self.name}: {self.chosen}, bound {self.bound:.4g} us; us: " +
            ", ".join(f"{name} {case.median(name):.4g}" for name in sorted(case.times, key=case.median)))

    def rows(self, repeats: int) -> None:
        if self.share is not None:
            row(case=f"{self.name}, chosen {self.chosen}", ours=round(self.time, 1), peer=round(self.bound, 1),
                peer_name="bound", unit="us", ratio=round(self.share, 3), repeats=repeats)
        row(case=f"{self.name}, chosen {self.chosen}", ours=round(self.time, 1), peer=round(self.least, 1),
            peer_name=self.best, unit="us", ratio=round(1 / (1 + self.regret), 3), repeats=repeats)
        if self.levels:
            row(case=f"{self.name}, {self.levels}", ours=round(self.levels_us, 1), peer=round(self.flat_us, 1),
                peer_name=self.flat, unit="us", ratio=round(self.flat_us / self.levels_us, 3), repeats=repeats)

    def line(self) -> str:
        share = f"{self.share:.3f}" if self.share is not None else ""
        levels = f"{self.levels} {self.levels_us:.4g}, {self.flat} {self.flat_us:.4g}" if self.levels else ""
        return f"| {self.layout} | {self.operation} | {self.size} | {self.chosen} {self.time:.4g} | {share} | " \
               f"{self.best} {self.least:.4g} | {100 * self.regret:.0f} % | {levels} |"


def measure(layout, options, folder) -> list:
    cases = {(operation, size): Compared() for size in options.sizes for operation in options.operations}
    with layout.fabric(options.mbit) as fabric:
        job = Job(layout, fabric, folder, options)
        compare_in_rounds(cases, options.rounds, str(layout), job.compare)
    cells = [Cell(layout, operation, size, case, options) for (operation, size), case in cases.items()]
    for cell in cells:
        cell.rows(options.rounds * options.repeats)
    return cells


def summarize(where: str, cells: list) -> None:
    shares = [cell.share for cell in cells if cell.share is not None]
    for what, of in (("median", statistics.median), ("worst", min)) if shares else ():
        row(case=f"{where}: {what} share of the bound, {len(shares)} cases", ours=round(of(shares), 3), peer=1,
            peer_name="bound", unit="share", ratio=round(of(shares), 3), repeats=len(shares))
    for values in regret_rows(where, [cell.regret for cell in cells]):
        row(**values)


def inside(options, folder) -> None:
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    cells = []
    for layout in LAYOUTS:
        if layout.name in options.layouts:
            cells.append(measure(layout, options, folder))
            summarize(str(layout), cells[-1])
    if len(cells) > 1:
        summarize("all", sum(cells, []))
    say("| | | size | chosen, us | of the bound | fastest, us | regret | levels, fastest flat, us |\n|---|---|---|---|---|---|---|---|")
    for cell in sum(cells, []):
        say(cell.line())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of two sizes")
    parser.add_argument("--layouts", default=",".join(layout.name for layout in LAYOUTS), help="comma list of these")
    parser.add_argument("--mbit", type=int, default=100, help="of a NIC")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--repeats", type=int, default=3, help="in each round (default 3)")
    parser.add_argument("--repeat-ms", type=float, default=20, help="of one repeat, milliseconds; two calls at least")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES))
    parser.add_argument("--bound-from", default="1MiB", choices=list(SIZES), help="smaller sizes are held up by latency")
    parser.add_argument("--operations", nargs="+")
    parser.add_argument("--costs", help="a file of weft-bw --calibrate (default: measured anew)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one case of one round")
    parser.add_argument("--weft", default="", help="more words for weft-bw, as one argument")
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.layouts = options.layouts.split(",")
    if unknown := set(options.layouts) - {layout.name for layout in LAYOUTS}:
        parser.error(f"--layouts: there is no {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="weft-bounds-") as name:
        folder = pathlib.Path(name)
        if os.environ.get(netns.INSIDE) is None and options.costs is None:
            # Outside, where the machine is as a user has it; inside again by enter(), which starts this program anew.
            costs = folder / "costs"
            say(run([BIN / "weft-bw", "--ranks", 2, "--calibrate", "--force", "--set", f"collective.costs={costs}"], 60))
            sys.argv += ["--costs", str(costs)]
        inside(options, folder)


if __name__ == "__main__":
    main()

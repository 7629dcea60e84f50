"""Predicted against measured on a fabric of network namespaces: ports, completion times.

All-reduce: 8 ranks on 4 leaves with 2 spines, links of 40 Mbit/s, 20 random placements: source
ports that are planned against ports that the kernel draws. `ratio` is the gain; the last rows
compare both with the bound that no choice of paths beats. Completion times: 12 workloads of TCP
transfers; `ours` is what was measured, `peer` what a simulator says, `ratio` is measured /
predicted: 1 is right. Links save up to 20 ms of their rate while idle (tbf's burst): what is faster
than the bound, or than predicted, is that. Needs root.
"""
import argparse
import json
import pathlib
import statistics
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "fabric"
sys.path.insert(0, str(FOLDER))
import all_reduce  # noqa: E402
import netns  # noqa: E402
import oracle  # noqa: E402
import traffic  # noqa: E402
import workloads  # noqa: E402
from _bench import say  # noqa: E402

MBIT = 40  # what two busy cores carry without being what is measured


def row(**values) -> None:
    print(json.dumps({"name": "fabric", **values}), flush=True)


def bench_all_reduce(count: int, size: int, repeats: int) -> None:
    shares = {"planned": [], "unplanned": []}
    with netns.Fabric(leaves=4, spines=2, hosts_per_leaf=2, mbit=MBIT) as fabric:
        for number, placement in enumerate(all_reduce.placements(fabric.hosts, count)):
            ring = all_reduce.Ring(fabric, placement, size)
            seconds = {"planned": ring.measure(True, repeats),
                       "unplanned": ring.measure(False, repeats)}
            for name, value in seconds.items():
                shares[name].append(ring.bound / value)
            case = f"all-reduce {size >> 20} MiB, placement {','.join(map(str, placement))}"
            say(f"{number + 1} of {count}: {case}: planned {shares['planned'][-1]:.3f} of the "
                f"bound, unplanned {shares['unplanned'][-1]:.3f}")
            row(case=case, ours=seconds["planned"] * 1e3, peer=seconds["unplanned"] * 1e3,
                peer_name="unplanned ports", unit="ms",
                ratio=seconds["unplanned"] / seconds["planned"], repeats=repeats)
    for name, values in shares.items():
        for what, value in (("mean", statistics.mean(values)), ("worst", min(values))):
            row(case=f"{what} of {count} placements, {name}", ours=value, peer=1.0,
                peer_name="bound", unit="share", ratio=value, repeats=count)


def bench_workloads(repeats: int) -> None:
    with netns.Fabric(leaves=4, spines=2, hosts_per_leaf=2, mbit=MBIT) as fabric:
        for workload in workloads.ALL:
            flows = workloads.make(workload, MBIT)
            measured = []
            for _ in range(repeats):
                flows = workloads.make(workload, MBIT)
                measured.append(traffic.run(fabric, flows))
            seconds = statistics.median(measured)
            for level in ("flow", "packet"):
                predicted = oracle.ask(op="simulate", level=level, **oracle.describe(fabric),
                                       flows=[flow.row() for flow in flows])["end"]
                say(f"{workload.__name__}: measured {seconds:.3f} s, "
                    f"{level} level {predicted:.3f} s")
                row(case=workload.__name__, ours=seconds * 1e3, peer=predicted * 1e3,
                    peer_name=f"{level} level", unit="ms", ratio=seconds / predicted,
                    repeats=repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--placements", type=int, default=20)
    parser.add_argument("--size", type=int, default=3 << 20, help="bytes of the all-reduce")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement")
    parser.add_argument("--no-workloads", action="store_true")
    options = parser.parse_args()
    if options.placements:
        bench_all_reduce(options.placements, options.size, options.repeats)
    if not options.no_workloads:
        bench_workloads(options.repeats)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    main()

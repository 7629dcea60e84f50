"""The flow level of the simulator against its goals: cost of a large step, and agreement with packets.

A step of a 175B-parameter job on 12,288 GPUs, its time and memory; then, at 32 and at 1,024 hosts
(400 Gb/s and 1 us a link), the ends of collectives, the 99th percentile of completion times and the
ranking of algorithms, each against the packet level with the same paths. There a connection may
have 600 KB in flight, 1.5 times what the longest path holds; `peer` is the goal.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys

STEP = "step:tp=8,pp=8,vpp=6,dp=192,micro_batches=32"
WINDOW = 600_000
SMALL, LARGE = "4x8x8", "32x32x32"  # leaves, hosts a leaf, spines
# Fabric, workload, and which figures have a goal: the end within 3 %, the p99 within 10 %.
CASES = [
    (SMALL, "all_reduce:algorithm=ring,bytes=16MiB", "end"),
    (SMALL, "all_reduce:algorithm=direct,bytes=4MiB", "end"),
    (SMALL, "all_reduce:algorithm=tree,bytes=8MiB,chunk=256KiB", "end"),
    (SMALL, "all_reduce:algorithm=halving_doubling,bytes=16MiB", "end p99"),
    (SMALL, "all_reduce:algorithm=hierarchical,group=8,bytes=16MiB", "end"),
    (LARGE, "all_reduce:algorithm=ring,bytes=16MiB", "end"),
    (LARGE, "all_reduce:algorithm=halving_doubling,bytes=4MiB", "end p99"),
    (LARGE, "all_reduce:algorithm=hierarchical,group=32,bytes=16MiB", "end"),
    (LARGE, "permutation:bytes=2MB", "end p99"),
    (LARGE, "incast:fan_in=256,bytes=1MB", "p99"),
    (LARGE, "full_mesh:bytes=64KiB,ranks=256", "end p99"),
]
GOALS = {"end": 3.0, "p99": 10.0}  # per cent
MESH = "all_reduce:algorithm=direct,bytes=64MiB"
ALGORITHMS = ("ring", "direct", "halving_doubling", "recursive_doubling", "tree,chunk=64KiB")
SIZES = ("4KiB", "256KiB", "8MiB")
EQUAL = 0.95  # nearer than that, packets do not rank them


def levels(fabric: str, workload: str, *options) -> dict:
    output = subprocess.run(
        [os.environ["WEFT_BIN"] + "/sim-levels", "--json", "--fabric", fabric, "--workload",
         workload, *options], check=True, stdout=subprocess.PIPE, text=True).stdout
    result = json.loads(output)
    print(f"{fabric} {workload}: " + ", ".join(
        f"{level} {result[level]['end_us']:.1f} us in {result[level]['wall_seconds']:.2f} s"
        for level in ("flow", "packet") if level in result), file=sys.stderr, flush=True)
    return result


def both(fabric: str, workload: str) -> tuple[dict, dict]:
    result = levels(fabric, workload, "--ack", "--window", str(WINDOW))
    return result["flow"], result["packet"]


def report(case: str, ours: float, goal: float, unit: str, ratio: float, **more) -> None:
    print(json.dumps({"name": "sim_flow", "case": case, "ours": round(ours, 3), "peer": goal,
                      "peer_name": "goal", "unit": unit, "ratio": round(ratio, 2), "repeats": 1,
                      **more}), flush=True)


def large_step() -> None:
    for balance in ("ecmp", "spray"):
        flow = levels("megascale:1536", STEP, "--level", "flow", "--load-balance", balance)["flow"]
        case = f"step of 175B on 12,288 GPUs, {balance}"
        report(f"{case}: time", flow["wall_seconds"], 60, "s", 60 / flow["wall_seconds"],
               step_seconds=flow["end_us"] / 1e6)
        report(f"{case}: memory", flow["max_rss_mb"], 4096, "MiB", 4096 / flow["max_rss_mb"])


def mesh() -> None:
    flow = levels(LARGE, MESH, "--level", "flow")["flow"]
    report("hashed mesh of 1,024, twice: time", flow["wall_seconds"], 60, "s",
           60 / flow["wall_seconds"], max_rss_mb=flow["max_rss_mb"])


def accuracy(cases) -> None:
    for fabric, workload, figures in cases:
        flow, packet = both(fabric, workload)
        for figure in figures.split():
            value, reference = flow[f"{figure}_us"], packet[f"{figure}_us"]
            off = abs(value / reference - 1) * 100
            hosts = 32 if fabric == SMALL else 1024
            report(f"{hosts:,} hosts, {workload}: {figure}", off, GOALS[figure], "% off",
                   GOALS[figure] / max(off, 0.01), flow_us=value, packet_us=reference,
                   speed=round(packet["wall_seconds"] / flow["wall_seconds"]))


def ranking() -> None:
    pairs = alike = 0
    for size in SIZES:
        ends = [tuple(one["end_us"] for one in both(
            SMALL, f"all_reduce:bytes={size},algorithm={algorithm}")) for algorithm in ALGORITHMS]
        for (flow, packet), (other_flow, other_packet) in itertools.permutations(ends, 2):
            if packet <= EQUAL * other_packet:
                pairs += 1
                alike += flow < other_flow
    report("pairs of algorithms ranked alike, three sizes", alike, pairs, "pairs", alike / pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="+", choices=("step", "mesh", "accuracy", "ranking"),
                        default=("step", "mesh", "accuracy", "ranking"))
    parser.add_argument("--small", action="store_true", help="accuracy at 32 hosts only")
    options = parser.parse_args()
    if "step" in options.part:
        large_step()
    if "mesh" in options.part:
        mesh()
    if "accuracy" in options.part:
        accuracy([case for case in CASES if case[0] == SMALL or not options.small])
    if "ranking" in options.part:
        ranking()


if __name__ == "__main__":
    main()

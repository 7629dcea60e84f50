"""Weft's multipath transport over a real ECMP fabric against one flow of TCP, and on loopback against our TCP.

Fabric (network namespaces, Linux's own hash, shaped links, jumbo frames): permutation and ring all-reduce over 2 and 4
spines, `ours` and `peer` being shares of the bound that no choice of paths beats, each with its own headers counted;
one spine at a tenth of its rate, as a share of what is left; a spine that dies in mid-transfer, `ours` being the
longest stall of in-order delivery in ms, against a goal of 50. Loopback: goodput and CPU seconds a GB beside our TCP's,
in turns. Ratios above 1: ours is better. Needs root.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "fabric"
sys.path.insert(0, str(FOLDER))
import all_reduce  # noqa: E402
import multipath  # noqa: E402
import netns  # noqa: E402
from _bench import say  # noqa: E402


def row(**values) -> None:
    print(json.dumps({"name": "multipath", **values}), flush=True)


def bench_collectives(spines: int, mbit: int, mib: int, repeats: int) -> None:
    size = mib << 20
    with multipath.Fabric(leaves=2, spines=spines, hosts_per_leaf=spines, mbit=mbit) as fabric:
        placement = multipath.alternating(fabric)
        for op, name in (("sendrecv", "permutation"), ("all_reduce", "ring all-reduce")):
            each = size if op == "sendrecv" else all_reduce.ring_bytes(len(placement), size)
            shares = {"multipath": [], "tcp": []}
            for _ in range(repeats):
                for transport, of in shares.items():
                    seconds = multipath.job(fabric, placement, transport, op, size)["time_us"] / 1e6
                    bound = each * multipath.WIRE[transport] * 8 / (mbit * 1e6)
                    of.append(bound / seconds)
                    say(f"{spines} spines, {name} of {mib} MiB: {transport} {of[-1]:.3f} of the "
                        "bound")
            ours, peer = (statistics.mean(shares[transport]) for transport in shares)
            row(case=f"{name} of {mib} MiB, {spines} spines", ours=ours, peer=peer,
                peer_name="one TCP flow, mean", unit="of the bound", ratio=ours / peer,
                repeats=repeats)


def bench_faults(spines: int, mbit: int, repeats: int) -> None:
    left, stalls = [], []
    for _ in range(repeats):
        with multipath.Fabric(leaves=2, spines=spines, hosts_per_leaf=1, mbit=mbit) as fabric:
            fabric.shape_spine(0, mbit / 10)
            with multipath.Flow(fabric, 0, 1, seconds=5) as flow:
                goodput = flow.result()["mbit"] * multipath.WIRE["multipath"]
            left.append(goodput / (mbit * (spines - 0.9)))
        with multipath.Fabric(leaves=2, spines=spines, hosts_per_leaf=1, mbit=mbit) as fabric:
            with multipath.Flow(fabric, 0, 1, seconds=2) as flow:
                time.sleep(0.3)  # since the first message
                fabric.kill_spine(0)
                stalls.append(flow.result()["stall_ms"])
        say(f"{spines} spines: one at a tenth: {left[-1]:.3f} of what is left; one dead: longest "
            f"stall {stalls[-1]:.1f} ms")
    ours = statistics.median(left)
    row(case=f"one of {spines} spines at a tenth", ours=ours, peer=0.9, peer_name="goal",
        unit="of what is left", ratio=ours / 0.9, repeats=repeats)
    ours = statistics.median(stalls)
    row(case=f"one of {spines} spines dies", ours=ours, peer=50.0, peer_name="goal",
        unit="ms stalled", ratio=50 / ours, repeats=repeats)


def loopback(transport: str, mib: int, more: list) -> tuple:
    """GB/s of each direction, and CPU seconds of both ranks a GB that they exchange."""
    calls, warm = 60, 2
    words = [multipath.binary("weft-bw"), "--ranks", 2, "--op", "sendrecv", "-b", f"{mib}M", "-n",
             calls, "-w", warm, "--place", "out", "-c", 0, "--json", "--set",
             f"transport={transport}"]
    for setting in more:
        words += ["--set", setting]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in words], text=True, stdout=subprocess.PIPE,
                          check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    exchanged = 2 * (calls + warm) * mib * 2**20 / 1e9
    return json.loads(done.stdout)["rows"][0]["out_of_place"]["algbw_GBps"], cpu / exchanged


def bench_loopback(repeats: int) -> None:
    cases = (("as it is set", []),
             ("no segments", ["multipath.segments=false"]),
             ("with checksums", ["multipath.checksum=true"]),
             ("packets of 9000, with checksums", ["multipath.mtu=9000", "multipath.checksum=true"]))
    seen = {name: [] for name in ("tcp", *(case for case, _ in cases))}
    for _ in range(repeats):
        seen["tcp"].append(loopback("tcp", 16, []))
        for case, more in cases:
            seen[case].append(loopback("multipath", 16, more))
    median = {name: [statistics.median(values) for values in zip(*runs)]
              for name, runs in seen.items()}
    for case, _ in cases:
        for i, unit in enumerate(("GB/s", "CPU s/GB")):
            ours, peer = median[case][i], median["tcp"][i]
            row(case=f"loopback, {case}", ours=ours, peer=peer, peer_name="our tcp", unit=unit,
                ratio=ours / peer if i == 0 else peer / ours, repeats=repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement")
    parser.add_argument("--mbit", type=int, default=50, help="of each link between switches")
    parser.add_argument("--mib", default="8,32", help="sizes of the permutation and the all-reduce")
    parser.add_argument("--parts", default="collectives,faults,loopback")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if "loopback" in parts:
        netns.call(["ip", "link", "set", "lo", "up"])
        bench_loopback(options.repeats)
    for spines in (2, 4):
        if "collectives" in parts:
            for mib in options.mib.split(","):
                bench_collectives(spines, options.mbit, int(mib), options.repeats)
        if "faults" in parts:
            bench_faults(spines, options.mbit, options.repeats)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    main()

"""Planned paths against ports that kernels draw: on a fabric of network namespaces, and on 12,288 GPUs.

Namespaces (need root): 4 leaves of two hosts and 2 or 3 spines, links of 40 Mbit/s, Linux's hash. In each random
placement of 8 ranks `weft-plan paths` plans and `weft-run --plan` runs weft-bw: a ring all-reduce, an all-to-all, and
the all-reduces of a 3D job's groups (tp 2, pp 2, dp 2) at once, whose algorithm the scheduler chooses; then the same
ranks without a plan, one socket a link both ways. `ours` and `peer` are times of the slowest rank; "share of the bound"
is the least time that any choice of paths allows, by `weft-plan`'s own bound and with TCP's headers, over the time.

Unequal: the same over 3 spines, one of which has links of half the bandwidth.

A spine that is cut in mid-job, under the ring: its links go down (routers know), or it drops what it is sent and tells
nobody. `ours` is the time from the cut until the leaves send a share of what is left, and go on for half a second:
0.4, where data flows again but two flows may share a link, and 0.9.

NCCL itself (--parts nccl) over the plugin's tcp, its GPU scripted, on 2 leaves of two hosts and 2 spines: jobs of one
channel and one ring with a plan and without, in turns; of each the time beyond that of a job which moves nothing, and
the bound: the bytes that left a leaf, on all its uplinks alike.

The planner's rows: `ours` and `peer` of "worst link" are the time that the most loaded link needs for what it
carries; those of "time to plan" are wall time against what is allowed.
"""

import argparse
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fabric"))
import all_reduce  # noqa: E402
import nccl_job  # noqa: E402
import netns  # noqa: E402
import planned  # noqa: E402
from _bench import BIN, say  # noqa: E402

MBIT = 40  # what two cores carry without being what is measured
LEAVES, HOSTS_PER_LEAF = 4, 2
RANKS = LEAVES * HOSTS_PER_LEAF
BACK = (0.4, 0.9)  # of what is left
WINDOW_S = 0.5  # over which that must hold
PATIENCE_S = 10  # for it
AXES = ("tp", "pp", "dp")
LEARN_LEAVES, LEARN_HOSTS = 4, 16
NCCL_BYTES = 4 << 20  # of a rank


def row(**values) -> None:
    print(json.dumps({"name": "paths", **values}), flush=True)


class Traffic:
    """What a job does: weft-plan's words for it, and weft-bw's."""

    def __init__(self, name, size, layout, kinds, words):
        self.name, self.size, self.words = name, size, words
        self.plan = ["--layout", layout]
        for axis, collective, rank_bytes in kinds:
            self.plan += ["--traffic", f"name={axis},axes={axis},collective={collective},bytes={rank_bytes}"]


def all_traffic(size: int) -> list:
    return [
        Traffic("ring all-reduce", size, f"dp={RANKS}", [("dp", "all_reduce", size)],
                ["--place", "in", "--algorithm", "ring"]),
        Traffic("all-to-all", size, f"dp={RANKS}", [("dp", "all_to_all", size)],
                ["--op", "all_to_all", "--place", "out"]),
        Traffic("groups of tp 2, pp 2, dp 2 at once", size, "tp=2,pp=2,dp=2",
                [(axis, "all_reduce", size) for axis in AXES],
                ["--place", "in", "--groups", "tp=2,pp=2,dp=2"]),
    ]


def make_plan(fabric, folder, traffic, seed, spines, subflows=1) -> tuple:
    """The folder of a random placement's plan, for the fabric or for `spines` of it, and the bound in seconds."""
    known, hashes = planned.write_fabric(fabric, folder)
    text = known.read_text().replace(f"spines = {fabric.spines}", f"spines = {spines}")
    if fabric.spine_mbit:
        text += "\n[faults.degraded]\n" + "".join(
            f'"leaf[0-{fabric.leaves - 1}]>spine{spine}" = "{mbit}Mbps"\n' for spine, mbit in fabric.spine_mbit.items())
    known.write_text(text)
    out = folder / "plan"
    planned.run("weft-plan", "paths", "--fabric", known, "--hash", hashes, "--transport", "tcp", "--node", "gpus=1",
                "--at-once", *traffic.plan, "--order", "random", "--seed", seed, "--subflows", subflows, "--out", out,
                "--json", folder / "plan.json")
    return out, json.loads((folder / "plan.json").read_text())["bound_ms"] / 1e3 * all_reduce.WIRE


def bw(traffic, *more) -> list:
    return [BIN / "weft-bw", "--transport", "tcp", *traffic.words, "-b", traffic.size, "-a", 3, "-c", 0, "--json",
            "--set", "tcp.sockets=1", *more]


def start(fabric, plan, traffic, with_plan, *more) -> list:
    """The ranks in the plan's order, with its paths or without."""
    return planned.start_job(fabric, plan, bw(traffic, *more), lambda name: int(name[1:]), with_plan=with_plan)


def seconds(fabric, plan, traffic, with_plan, repeats) -> float:
    text = planned.wait_all(start(fabric, plan, traffic, with_plan, "-n", 1, "-w", 1, "--repeats", repeats))
    found = next(json.loads(line) for line in text.splitlines() if line.startswith("{"))["rows"][0]
    return (found["in_place"] or found["out_of_place"])["time_us"] / 1e6


def bench_placements(traffic, spines: int, options, folder, slow=None) -> None:
    """`slow`: {spine: Mbit/s} of its links, where that is not MBIT."""
    count, repeats = options.placements, options.repeats
    shares = {True: [], False: []}
    times = {True: [], False: []}
    with netns.Fabric(leaves=LEAVES, spines=spines, hosts_per_leaf=HOSTS_PER_LEAF, mbit=MBIT,
                      spine_mbit=slow) as fabric:
        for seed in range(1, count + 1):
            plan, bound = make_plan(fabric, folder, traffic, seed, spines, options.subflows)
            for with_plan in (True, False):
                times[with_plan].append(seconds(fabric, plan, traffic, with_plan, repeats))
                shares[with_plan].append(bound / times[with_plan][-1])
            say(f"{traffic.name}, {spines} spines, placement {seed} of {count}: bound {bound:.3f} s; planned "
                f"{shares[True][-1]:.3f} of it, kernel's ports {shares[False][-1]:.3f}")
    case = f"{traffic.name}, {spines} spines" + (", one of half the bandwidth" if slow else "")
    case += f", {options.subflows} sockets a flow" if options.subflows > 1 else ""
    row(case=f"{case}: median time", ours=statistics.median(times[True]) * 1e3,
        peer=statistics.median(times[False]) * 1e3, peer_name="kernel's ports", unit="ms",
        ratio=statistics.median(b / a for a, b in zip(times[True], times[False])), repeats=count)
    for what, of in (("median", statistics.median), ("worst", min)):
        row(case=f"{case}: {what} share of the bound", ours=of(shares[True]), peer=of(shares[False]),
            peer_name="kernel's ports", unit="share", ratio=of(shares[True]) / of(shares[False]), repeats=count)
    good = {with_plan: sum(share >= 0.95 for share in values) for with_plan, values in shares.items()}
    row(case=f"{case}: placements at 0.95 or more of {count}", ours=good[True], peer=good[False],
        peer_name="kernel's ports", unit="placements", ratio=good[True] / max(good[False], 1), repeats=count)


class Meter:
    """Bytes that the leaves have sent to spines, read through a process that sleeps in each."""

    def __init__(self, fabric):
        self._programs = [subprocess.Popen(["ip", "netns", "exec", f"l{leaf}", "sleep", "infinity"])
                          for leaf in range(fabric.leaves)]

    def read(self) -> int:
        total = 0
        for program in self._programs:
            for line in pathlib.Path(f"/proc/{program.pid}/net/dev").read_text().splitlines():
                name, _, numbers = line.partition(":")
                if name.strip().startswith("s"):
                    total += int(numbers.split()[8])
        return total

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.wait()


def sample(meter, limit_s: float, is_done=lambda _: False) -> list:
    """(time, bytes), one each 20 ms, until they are enough or the limit."""
    out = [(time.monotonic(), meter.read())]
    while out[-1][0] - out[0][0] < limit_s and not is_done(out):
        time.sleep(0.02)
        out.append((time.monotonic(), meter.read()))
    return out


def first_window(out: list, rate: float) -> float | None:
    """When the first WINDOW_S begins that carries `rate` bytes a second; None: there is none yet."""
    end = 0
    for begin, sent in out:
        while end < len(out) and out[end][0] - begin < WINDOW_S:
            end += 1
        if end == len(out):
            return None
        if (out[end][1] - sent) / (out[end][0] - begin) >= rate:
            return begin
    return None


def wait_until_it_runs(meter, programs) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(program.poll() is not None for program in programs):
            raise RuntimeError(f"a rank has ended: {[program.communicate() for program in programs]}")
        if first_window(sample(meter, 2 * WINDOW_S), 0.3 * LEAVES * MBIT * 1e6 / 8) is not None:
            return
    raise RuntimeError("the job does not send")


def cut(fabric, spine: int, silent: bool) -> None:
    if silent:
        fabric.at(f"s{spine}", ["sysctl", "-qw", "net.ipv4.ip_forward=0"])
        return
    for leaf in range(fabric.leaves):
        fabric.link(leaf, spine, up=False)


def recovery(traffic, spines: int, seed: int, silent: bool, with_plan: bool, folder) -> list:
    """Seconds from the cut, of each share of BACK; PATIENCE_S: not within that time."""
    with netns.Fabric(leaves=LEAVES, spines=spines, hosts_per_leaf=HOSTS_PER_LEAF, mbit=MBIT) as fabric:
        # Without the spine, the bytes of a round take as long as the bound of what is left.
        _, bound_left = make_plan(fabric, folder, traffic, seed, spines - 1)
        plan, _ = make_plan(fabric, folder, traffic, seed, spines)
        crossing = sum(1 for _, _, choices in planned.Plan(plan).flows if choices)
        left = crossing * all_reduce.ring_bytes(RANKS, traffic.size) * all_reduce.WIRE / bound_left
        meter = Meter(fabric)
        programs = start(fabric, plan, traffic, with_plan, "-n", 100_000)
        try:
            wait_until_it_runs(meter, programs)
            begin = time.monotonic()
            cut(fabric, 0, silent)
            out = sample(meter, PATIENCE_S, lambda so_far: first_window(so_far, BACK[-1] * left) is not None)
            times = [first_window(out, share * left) for share in BACK]
            return [PATIENCE_S if at is None else at - begin for at in times]
        finally:
            meter.close()
            for program in programs:
                program.kill()
                program.communicate()


def bench_recovery(traffic, spines: int, count: int, silent: bool, folder) -> None:
    times = {True: [], False: []}
    how = "drops everything silently" if silent else "loses its links"
    for seed in range(1, count + 1):
        for with_plan in times:
            times[with_plan].append(recovery(traffic, spines, seed, silent, with_plan, folder))
        say(f"a spine of {spines} {how}, placement {seed} of {count}: {BACK} of what is left after "
            f"{times[True][-1]} s planned, {times[False][-1]} s by kernel's ports ({PATIENCE_S}: not then)")
    for number, share in enumerate(BACK):
        ours, theirs = ([one[number] for one in times[with_plan]] for with_plan in (True, False))
        for what, of in (("median", statistics.median), ("worst", max)):
            row(case=f"a spine of {spines} {how}: {what} time to {share} of what is left", ours=of(ours),
                peer=of(theirs), peer_name=f"kernel's ports ({PATIENCE_S}: never)", unit="s",
                ratio=of(theirs) / max(of(ours), 0.02), repeats=count)


# Switches as black boxes: what the simulator's switches hash is asked flow by flow, learned, and planned with. "#": a
# number of each switch's own. Polarised: all hash alike, so that tiers choose alike.
FOUR, THREE = ("leaf-spine:leaves=4,hosts_per_leaf=4,spines=4", "leaf-spine:leaves=4,hosts_per_leaf=4,spines=3")
SIX = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=6"
PODS = "three-tier:pods=2,leaves_per_pod=2,hosts_per_leaf=4,spines_per_pod=4,cores=8"
SWITCHES = (
    ("Linux", FOUR, "linux:seed=#"),
    ("Linux, 3 spines", THREE, "linux:seed=#"),
    ("CRC-16-CCITT", FOUR, "crc16-ccitt:offset=3,seed=#"),
    ("CRC-16-CCITT, 3 spines", THREE, "crc16-ccitt:offset=3,seed=#"),
    ("CRC-16-ARC, threshold", FOUR, "crc16-arc:select=threshold,seed=#"),
    ("CRC-32", FOUR, "crc32:offset=7,seed=#"),
    ("CRC-32, threshold, 3 spines", THREE, "crc32:select=threshold,seed=#"),
    ("CRC-32C", FOUR, "crc32c:offset=13,seed=#"),
    ("CRC-32C, resilient, 3 spines", THREE, "crc32c:select=resilient,buckets=256,seed=#"),
    ("exclusive-or", FOUR, "xor16:offset=2,seed=#"),
    ("exclusive-or, resilient, 3 spines", THREE, "xor16:select=resilient,buckets=128,seed=#"),
    ("CRC-16 of ports alone", FOUR, "crc16-ccitt:fields=0x30,seed=#"),
    ("Linux, three tiers", PODS, "linux:seed=#"),
    ("CRC-32, three tiers, polarised", PODS, "crc32:seed=77"),
    ("CRC-32 modulo 3", THREE, "crc32:seed=#"),
    ("CRC-32 modulo 6", SIX, "crc32:seed=#"),
    ("CRC-32C modulo 3", THREE, "crc32c:seed=#"),
    ("CRC-32C modulo 6", SIX, "crc32c:seed=#"),
    # Of no form that is looked for: planned by tables.
    ("CRC-32C, resilient with 100 buckets", FOUR, "crc32c:select=resilient,buckets=100,seed=#"),
    ("as good as random", FOUR, "mix:seed=#"),
)
# Polarised spines send all that one leaf's choice brings them to one of their two cores: no port reaches more.
REACHED = {"CRC-32, three tiers, polarised": PODS.replace("cores=8", "cores=4")}


def bench_learning(options, folder) -> None:
    """Leaves with seeds of their own that nobody tells, 32 bits each, as kernels draw them at boot."""
    times, shares = [], []
    for repeat in range(options.learns):
        seeds = [random.SystemRandom().randrange(1, 1 << 32) for _ in range(LEARN_LEAVES)]
        with netns.Fabric(leaves=LEARN_LEAVES, spines=4, hosts_per_leaf=LEARN_HOSTS // LEARN_LEAVES,
                          seeds=seeds) as fabric:
            begin, found = time.monotonic(), folder / f"learned{repeat}"
            parts = []
            for words in (["weft-topo", "discover", "--out", found], ["weft-topo", "learn-hash", found]):
                for status, output, errors in planned.on_all_hosts(fabric, *words, port=29600 + 2 * repeat + len(parts)):
                    if status != 0:
                        raise RuntimeError(f"seeds {seeds}: {words}: status {status}: {output}{errors}")
                    said = output if "checked" in output else ""
                    if said:
                        right, told = map(int, re.search(r"(\d+) of (\d+) fresh ports take the path", said).groups())
                        shares.append(right / told)
                parts.append(time.monotonic() - begin - sum(parts))
        times.append(sum(parts))
        say(f"{LEARN_HOSTS} hosts, 4 spines, seeds {seeds}: discovered in {parts[0]:.1f} s, learned in {parts[1]:.1f} s; "
            f"{right} of {told} fresh ports as predicted")
    case = f"{LEARN_HOSTS} hosts, 4 spines, seeds of 32 bits that nobody tells"
    for what, of in (("median", statistics.median), ("longest", max)):
        row(case=f"{case}: {what} time of discover and learn-hash", ours=of(times), peer=60, peer_name="allowed",
            unit="s", ratio=60 / of(times), repeats=options.learns)
    row(case=f"{case}: worst share of fresh ports that take the predicted path", ours=min(shares), peer=0.995,
        peer_name="wanted", unit="share", ratio=min(shares) / 0.995, repeats=options.learns)


def bench_nccl(options, folder) -> None:
    count = NCCL_BYTES // 4
    with netns.Fabric(leaves=2, spines=2, hosts_per_leaf=2, mbit=MBIT) as fabric:
        plan = nccl_job.make_plan(fabric, folder, count)
        times = {True: [], False: []}
        shares = {True: [], False: []}
        for repeat in range(options.repeats):
            for with_plan in (True, False):
                way = plan if with_plan else None
                empty = nccl_job.run(fabric, folder, 1, way)[0]
                whole, _, uplinks, _ = nccl_job.run(fabric, folder, count, way)
                bound = max(map(sum, uplinks)) / fabric.spines / (MBIT * 1e6 / 8)
                times[with_plan].append(whole - empty)
                shares[with_plan].append(bound / (whole - empty))
                say(f"NCCL, {'plan' if with_plan else 'ports of the kernel'}, {repeat + 1} of {options.repeats}: "
                    f"{whole:.2f} s, {empty:.2f} s of it without data, bytes of uplinks {uplinks}: "
                    f"{shares[with_plan][-1]:.3f} of the bound")
    case = f"NCCL, a job of 4 hosts over 2 spines, {NCCL_BYTES >> 20} MiB a collective"
    row(case=f"{case}: median time", ours=statistics.median(times[True]) * 1e3,
        peer=statistics.median(times[False]) * 1e3, peer_name="kernel's ports", unit="ms",
        ratio=statistics.median(times[False]) / statistics.median(times[True]), repeats=options.repeats)
    ours, peer = statistics.median(shares[True]), statistics.median(shares[False])
    row(case=f"{case}: median share of the bound", ours=ours, peer=peer, peer_name="kernel's ports", unit="share",
        ratio=ours / peer, repeats=options.repeats)


def bench_switches(folder) -> None:
    for name, fabric, words in SWITCHES:
        switches = [f"leaf{i}" for i in range(4)]
        if fabric == PODS:
            switches += [f"{kind}{i}" for kind in ("spine", "core") for i in range(8)]
        hashes, out = folder / "switches.hashes", folder / "switches.json"
        hashes.write_text("weft-hashes 1\n" + "".join(
            f"hash {switch} {words.replace('#', str(1000 + 31 * i))}\n" for i, switch in enumerate(switches)))
        words = ["--layout", "dp=16", "--node", "gpus=1", "--order", "random", "--traffic",
                 "name=ring,axes=dp,collective=all_reduce,bytes=64MiB", "--json", out]
        bound = None
        if name in REACHED:
            planned.run("weft-plan", "paths", "--fabric", REACHED[name], *words)
            bound = json.loads(out.read_text())["bound_ms"]
        said = planned.run("weft-plan", "paths", "--fabric", fabric, "--hash", hashes, "--black-box", *words).stdout
        times = json.loads(out.read_text())
        bound = bound or times["bound_ms"]
        say(f"{name}: {said.splitlines()[0]}; planned {bound / times['after_ms']:.3f} of the bound, "
            f"hashed {bound / times['before_ms']:.3f}")
        learned, switches = map(int, re.search(r"learned (\d+) of (\d+) switches", said).groups())
        row(case=f"black box {name}: share of switches learned", ours=learned / switches, peer=1, peer_name="all",
            unit="share", ratio=learned / switches, repeats=1)
        row(case=f"black box {name}: share of the bound", ours=bound / times["after_ms"], peer=bound / times["before_ms"],
            peer_name="hashed ports", unit="share", ratio=times["before_ms"] / times["after_ms"], repeats=1)


def bench_job(folder) -> None:
    """A whole job of 12,288 ranks on MegaScale's fabric, three axes, with detours; 10 s are allowed."""
    begin = time.monotonic()
    planned.run("weft-plan", "paths", "--fabric", "rail-optimised:groups=48,hosts_per_group=32,rails=8,spines=32", "--layout",
                "tp=8,pp=8,dp=192", "--model", "gpt-175b", "--transport", "verbs", "--out", folder / "job")
    seconds = time.monotonic() - begin
    row(case="12,288 ranks, tp 8, pp 8, dp 192, with detours: time of weft-plan paths", ours=seconds, peer=10,
        peer_name="allowed", unit="s", ratio=10 / seconds, repeats=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="learning,placements,unequal,recovery,nccl,switches,planner",
                        help="comma list of these")
    parser.add_argument("--placements", type=int, default=20, help="random ones, of each kind of traffic")
    parser.add_argument("--cuts", type=int, default=5, help="repeats of each way of cutting a spine")
    parser.add_argument("--learns", type=int, default=5, help="fabrics that are discovered and learned")
    parser.add_argument("--spines", default="2,3", help="comma list: fabrics of so many")
    parser.add_argument("--traffic", default="", help="only kinds of traffic with this in their name: all-to-all")
    parser.add_argument("--subflows", type=int, default=1, help="sockets of a flow, at most")
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes of a collective")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="three placements, one cut: about two minutes")
    options = parser.parse_args()
    if options.quick:
        options.placements, options.cuts, options.spines, options.repeats, options.learns = 3, 1, "2", 2, 1
    parts = options.parts.split(",")
    with tempfile.TemporaryDirectory(prefix="weft-paths-") as name:
        folder = pathlib.Path(name)
        if "learning" in parts:
            bench_learning(options, folder)
        kinds = [traffic for traffic in all_traffic(options.size) if options.traffic in traffic.name]
        for spines in map(int, options.spines.split(",")):
            for traffic in kinds if "placements" in parts else ():
                bench_placements(traffic, spines, options, folder)
        for silent in (False, True) if "recovery" in parts else ():
            bench_recovery(kinds[0], 3, options.cuts, silent, folder)
        if "nccl" in parts:
            if nccl_job.missing():
                say(f"without NCCL: {nccl_job.missing()}")
            else:
                bench_nccl(options, folder)
        if "switches" in parts:
            bench_switches(folder)
        for traffic in kinds if "unequal" in parts else ():
            bench_placements(traffic, 3, options, folder, slow={2: MBIT // 2})
    if "planner" in parts:
        bench_job(folder)
        subprocess.run([BIN / "tests/paths_bench", "seeds"], check=True)
        subprocess.run([BIN / "tests/paths_bench"], check=True)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    main()

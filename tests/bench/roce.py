"""The verbs transport against perftest over Soft-RoCE, in one virtual machine, in turns.

Bandwidth of one queue pair, 16 messages outstanding, against ib_write_bw, and against ib_send_bw,
which completes at the receiver as well, as messages do; half a round trip of small messages against
ib_write_lat (ratio: theirs to ours), against ib_send_lat of as many bytes on the wire, which has
completions at both ends as well, and against their waiting for clear-to-sends; four queue pairs
over two spines of 40 and of 100 Mbit/s against what both carry, and ib_write_bw with four. Medians
of --repeats.
docs/benchmarks/verbs.md says more.
"""
# needs: roce

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "roce"))
import scene  # noqa: E402

SIZES = (64 << 10, 256 << 10, 1 << 20)
SIZE_SECONDS = 3  # of each: a link's start is not to count
LATENCY_ROUNDS = 1000
ENTRY_BYTES = 72  # of a message of 8
SECONDS = 5
BANDWIDTH_PEERS = {"bw": "ib_write_bw", "sendbw": "ib_send_bw"}
PARTS = ("first", "then")  # of the run over spines, SECONDS each: a link looks for paths at first
SPINE_MBITS = (40, 100)  # each: less than this machine's processors can move, and about as much
# What 4096 bytes of data are on the wire, as the shaper counts it.
WIRE_RATIO = 4096 / (4096 + 14 + 20 + 8 + 12 + 4)
MIB = 1.048576


def script(repeats: int) -> str:
    lines = []
    for turn in range(repeats):
        # What is compared runs one after the other: this machine's speed changes within a minute.
        for size in SIZES:
            lines.append(f"both ours{size}x{turn} 1 latency:8:50 seconds:{size}:{SIZE_SECONDS} "
                         "verbs.queue_pairs=1")
            for label, program in BANDWIDTH_PEERS.items():
                lines.append(f"perftest {label}{size}x{turn} {program} 1 -s {size} "
                             f"-D {SIZE_SECONDS} -t 16")
        latency = f"1 latency:8:{LATENCY_ROUNDS} verbs.queue_pairs=1"
        lines += [f"both ours{turn} {latency}",
                  f"perftest lat{turn} ib_write_lat 1 -s 8 -n {LATENCY_ROUNDS}",
                  f"perftest send{turn} ib_send_lat 1 -s {ENTRY_BYTES} -n {LATENCY_ROUNDS}",
                  f"both plain{turn} {latency} verbs.eager_max=0"]
    for label, mbits in spine_runs(repeats):
        lines += [f"rate {mbits}mbit 500ms", "spine_bytes > before",
                  f"both spines{label} 0 " + f"seconds:{1 << 20}:{SECONDS} lanes " * len(PARTS) +
                  "verbs.queue_pairs=4",
                  f'echo "spines: $(cat before) $(spine_bytes)"',
                  f"lane_spines at{label} pair0.txt",
                  f"perftest four{label} ib_write_bw 0 -s {64 << 10} -D {SECONDS} -q 4 -t 16"]
    return "\n".join(lines) + "\n"


def spine_runs(repeats: int) -> list[tuple[str, int]]:
    """Label, Mbit/s of a spine."""
    return [(f"{mbits}x{turn}", mbits) for mbits in SPINE_MBITS for turn in range(repeats)]


def others_share(started: list[int], ended: list[int], own: float) -> str:
    """How much of this machine others had meanwhile: figures of a busy one say little."""
    total = sum(ended) - sum(started)
    idle = ended[3] - started[3]
    return f"this machine was {100 * (total - idle) / max(1, total):.0f} % busy for {own:.0f} s"


def processor_times() -> list[int]:
    words = pathlib.Path("/proc/stat").read_text().split("\n")[0].split()
    return [int(word) for word in words[1:9]]


def row(case: str, ours: list[float], peer: list[float], peer_name: str, unit: str,
        less_is_better: bool = False) -> None:
    """Medians; the ratio is that of the ratios, each of a turn."""
    ratios = [theirs / mine if less_is_better else mine / theirs for mine, theirs in zip(ours, peer)]
    print(json.dumps({"name": "roce", "case": case, "ours": statistics.median(ours),
                      "peer": statistics.median(peer), "peer_name": peer_name, "unit": unit,
                      "ratio": statistics.median(ratios), "repeats": len(ours)}), flush=True)
    print(f"{case}, {peer_name}: ratios", *(f"{ratio:.2f}" for ratio in sorted(ratios)),
          file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    before, start = processor_times(), time.monotonic()
    problems, text = scene.run(script(repeats), ("verbs_pair",), 120 + 200 * repeats)
    print(others_share(before, processor_times(), time.monotonic() - start), file=sys.stderr)
    turns = range(repeats)
    spines = spine_runs(repeats)
    of_both = [f"ours{size}x{turn}" for size in SIZES for turn in turns]
    of_both += [f"{label}{turn}" for label in ("ours", "plain") for turn in turns]
    of_both += [f"spines{label}" for label, _ in spines]
    of_peers = [f"{label}{size}x{turn}" for label in BANDWIDTH_PEERS for size in SIZES for turn in turns]
    of_peers += [f"{label}{turn}" for label in ("lat", "send") for turn in turns]
    of_peers += [f"four{label}" for label, _ in spines]
    problems += scene.ill(text, *of_peers, *(f"{label}.0" for label in of_both))
    if problems:
        print(text, *problems, sep="\n", file=sys.stderr)
        return 1
    for label, program in BANDWIDTH_PEERS.items():
        for size in SIZES:
            row(f"bandwidth, {size >> 10} KiB",
                [scene.measured(text, f"ours{size}x{turn}.0", "bandwidth")[size] for turn in turns],
                [scene.perftest(text, f"{label}{size}x{turn}", 3)[size] * MIB for turn in turns],
                program, "MB/s")
    row("half a round trip, 8 bytes",
        [scene.latency(text, f"ours{turn}.0") for turn in turns],
        [scene.perftest(text, f"lat{turn}", 4)[8] for turn in turns],
        "ib_write_lat", "us", less_is_better=True)
    row("half a round trip, 8 bytes",
        [scene.latency(text, f"ours{turn}.0") for turn in turns],
        [scene.perftest(text, f"send{turn}", 4)[ENTRY_BYTES] for turn in turns],
        f"ib_send_lat of {ENTRY_BYTES}", "us", less_is_better=True)
    row("half a round trip, 8 bytes",
        [scene.latency(text, f"ours{turn}.0") for turn in turns],
        [scene.latency(text, f"plain{turn}.0") for turn in turns],
        "verbs.eager_max=0", "us", less_is_better=True)
    runs = [scene.lane_parts(text, f"spines{label}.0", f"at{label}") for label, _ in spines]
    for mbits in SPINE_MBITS:
        case = f"two spines of {mbits} Mbit/s, 4 queue pairs"
        own = [run for run, (_, of) in zip(runs, spines) if of == mbits]
        for part, name in enumerate(PARTS):
            row(f"{case}, {name} {SECONDS} s", [run[part][0] for run in own],
                [2 * mbits / 8 * WIRE_RATIO] * repeats, "both spines", "MB/s")
        row(case, [run[-1][0] for run in own],
            [scene.perftest(text, f"four{label}", 3)[64 << 10] * MIB
             for label, of in spines if of == mbits], "ib_write_bw -q 4", "MB/s")
    for line, run in zip(scene.rows(text, "spines"), runs):
        first, second, after_first, after_second = map(int, line.split())
        print(f"over the spines: {(after_first - first) / 1e6:.1f} and "
              f"{(after_second - second) / 1e6:.1f} MB", file=sys.stderr)
        for name, (rate, lanes) in zip(PARTS, run):
            print(f"  {name} {SECONDS} s, {rate:.1f} MB/s; so far by queue pair:",
                  *(f"port {lane.port} spine {lane.spine} {lane.megabytes:.1f} MB {lane.milliseconds:.1f} ms;"
                    for lane in lanes), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

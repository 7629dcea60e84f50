#!/usr/bin/python3
"""The verbs transport over real RoCE v2 (rdma_rxe) between two namespaces of a virtual machine.

What must hold: every byte is right; the suite of all transports passes on real queue pairs, deaths of processes included;
the UDP source ports on the wire are those that the formula gives for what was chosen. Printed, without a limit: bandwidth
and latency beside perftest's in the same boot. Runs with WEFT_ROCE=1 only, which `tools/dev test roce` sets.
"""

import os
import pathlib
import re
import sys

import machine

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ.get("WEFT_BIN", "build/release/bin"))
QUEUE_PAIRS = 4
LIMIT_SECONDS = 600
# Of the suite: what a software device on an emulated processor does in a short time.
SUITE = "*EverySizeArrivesWhole*:*CombinedPieces*:*ThousandsInFlight*:*Faults.*"

SCRIPT = """
cd /tmp
export WEFT_LOG_LEVEL=warn
pair() {  # rank, namespace
  ip netns exec h$1 timeout 120 verbs_pair $1 /tmp/pair tcp.interface=m$1 verbs.devices==rxe$1 \\
    verbs.queue_pairs=%(queue_pairs)d
}
ip netns exec leaf roce_ports l0 l1 > ports.txt & counter=$!
for i in 1 2 3 4 5 6 7 8 9 10; do grep -q counting ports.txt && break; sleep 0.5; done
pair 1 > pair1.txt 2>&1 & other=$!
pair 0 > pair0.txt 2>&1; echo "status pair0 $?"
wait $other; echo "status pair1 $?"
kill $counter; wait $counter
sed 's/^/pair0: /' pair0.txt; sed 's/^/pair1: /' pair1.txt; sed 's/^/seen: /' ports.txt
for size in 65536 1048576; do
  count=800; [ $size = 1048576 ] && count=60
  ip netns exec h1 timeout 60 ib_write_bw -d rxe1 -x 1 -F -s $size -n $count -t 16 > server.txt 2>&1 &
  sleep 1
  ip netns exec h0 timeout 60 ib_write_bw -d rxe0 -x 1 -F -s $size -n $count -t 16 192.168.77.2 | sed 's/^/ib_write_bw: /'
  wait $!
done
ip netns exec h1 timeout 60 ib_write_lat -d rxe1 -x 1 -F -s 8 -n 400 > server.txt 2>&1 &
sleep 1
ip netns exec h0 timeout 60 ib_write_lat -d rxe0 -x 1 -F -s 8 -n 400 192.168.77.2 | sed 's/^/ib_write_lat: /'
WEFT_TEST_RDMA=rxe0,rxe1 timeout 300 verbs_conformance_test --gtest_filter='%(suite)s' > suite.txt 2>&1
echo "status suite $?"
grep -vE 'RUN|verbs: ' suite.txt | tail -60 | sed 's/^/suite: /'
"""


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(77)


def rows(text: str, mark: str) -> list[str]:
    return [line.removeprefix(f"{mark}: ") for line in text.splitlines() if line.startswith(f"{mark}: ")]


def ports_of(text: str, mark: str, word: str = "link ") -> set[int]:
    """Of the queue pairs of the link that this rank sends on, both ends."""
    lines = [line for line in rows(text, mark) if word in line]
    return {int(port) for line in lines for port in re.findall(r"source port (\d+)", line)}


def perftest(text: str, mark: str, column: int) -> dict[int, float]:
    """By size: a column of perftest's table."""
    out = {}
    for line in rows(text, mark):
        words = line.split()
        if len(words) > column and words[0].isdigit() and re.fullmatch(r"[\d.]+", words[column]):
            out[int(words[0])] = float(words[column])
    return out


def ours(text: str, kind: str) -> dict[int, float]:
    return {int(size): float(value)
            for word, size, value in (line.split() for line in rows(text, "pair0") if line.startswith(kind))
            if word == kind}


def main() -> int:
    if os.environ.get("WEFT_ROCE") != "1":
        skip("Soft-RoCE takes minutes: tools/dev test roce")
    script = (HERE / "topology.sh").read_text() + SCRIPT % {"queue_pairs": QUEUE_PAIRS, "suite": SUITE}
    programs = [BIN / "tests" / name for name in ("verbs_pair", "roce_ports", "verbs_conformance_test")]
    try:
        status, text = machine.run(script, [*programs, BIN.parent / "lib/libweft-verbs.so"], LIMIT_SECONDS)
    except machine.Unavailable as reason:
        skip(str(reason))
    problems = []
    if status != 0:
        problems.append({124: "the machine did not end in time", 125: "the machine did not boot"}.get(
            status, f"the machine's script ended with status {status}"))
    for name in ("pair0", "pair1", "suite"):
        if f"status {name} 0" not in text:
            problems.append(f"{name} did not end well")
    if "data ok" not in rows(text, "pair0"):
        problems.append("no word that the data was right")

    chosen = ports_of(text, "pair0")
    others = ports_of(text, "pair1") | ports_of(text, "pair0", "in place of")  # replaced meanwhile
    seen = {int(line.split()[1]): int(line.split()[3]) for line in rows(text, "seen") if line.startswith("port ")}
    print(f"source ports chosen for the link from 0 to 1: {sorted(chosen)}")
    print(f"source ports on the wire, with packets: {seen}")
    # A port at both ends of each queue pair. The link from 1 to 0 carries little, and not by all of its own.
    if len(chosen) < 2 * QUEUE_PAIRS - 1 or not chosen <= set(seen):
        problems.append(f"chosen and not seen on the wire: {sorted(chosen - set(seen))} of {sorted(chosen)}")
    if not set(seen) <= chosen | others:
        problems.append(f"seen on the wire and chosen by nobody: {sorted(set(seen) - chosen - others)}")

    # 4: MiB/s on average, in perftest's table; latency: 4: typical.
    peer = {size: value * 1.048576 for size, value in perftest(text, "ib_write_bw", 3).items()}
    for size, value in ours(text, "bandwidth").items():
        other = peer.get(size)
        print(f"bandwidth, {size} bytes: {value:.1f} MB/s; ib_write_bw " +
              (f"{other:.1f} MB/s; ratio {value / other:.2f}" if other else "failed"))
    peer = perftest(text, "ib_write_lat", 4)
    for size, value in ours(text, "latency").items():
        other = peer.get(size)
        if size == 8 and other:
            print(f"latency, {size} bytes: {value:.1f} us; ib_write_lat {other:.1f} us; ratio {value / other:.2f}")
    for line in rows(text, "suite"):
        if "PASSED" in line or "FAILED" in line or "tests ran" in line:
            print(f"suite: {line}")
    if problems:
        print(text)
        for problem in problems:
            print(f"FAILED: {problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""The multipath transport over queue pairs of real RoCE v2 (rdma_rxe), two hosts, two spines.

What must hold on each wire: every byte is right, whatever a chunk is cut into, under loss, and while
a spine goes dark; paths use both spines; the suite of all transports passes, deaths of processes
included. Runs with WEFT_ROCE=1 only, which `tools/dev test roce` sets.

    multipath_test.py [WIRE]...    uc, rc; without one: all
"""

import sys

import scene

WIRES = ("uc", "rc")
LIMIT_SECONDS = 300  # of a wire
# Of the suite: what a software device on an emulated processor does in a short time.
SUITE = ("*EverySizeArrivesWhole*:*ReducedPieces*:*ThousandsInFlight*:*KilledWhileIdle*:"
         "*KilledInTheMiddle*:*OthersGoOnWhenOnePeerIsKilled*:*KilledConnector*:*ARingOfProcesses*:"
         "*AStoppedReceiver*")
# Of what fewer bytes cross a spine than this share, it was not used.
SHARE = 0.1

# Of a software device on an emulated processor: a round trip without any queue takes milliseconds.
SCRIPT = """
export WEFT_MULTIPATH_GBPS=0.4 WEFT_MULTIPATH_BASE_RTT=4ms
export WEFT_MULTIPATH_CONTROLLER=swift:window_min=1
of_wire() {  # wire
  wire=$1
  settings="transport=multipath multipath.wire=$wire multipath.gbps=$WEFT_MULTIPATH_GBPS
    multipath.base_rtt=$WEFT_MULTIPATH_BASE_RTT multipath.controller=$WEFT_MULTIPATH_CONTROLLER"
  both $wire-data 1 data latency:8:100 bandwidth:65536:100 multipath.paths=4 $settings
  both $wire-cut 1 data multipath.chunk_bytes=16KiB multipath.paths=4 $settings
  spine_bytes > before
  both $wire-spines 0 data bandwidth:65536:200 $settings
  echo "$wire-crossed: $(cat before) $(spine_bytes)"
  netem loss 1%
  both $wire-loss 0 data bandwidth:65536:200 $settings
  calm
  dark $wire $settings
  WEFT_TEST_RDMA=rxe2,rxe3 WEFT_TEST_WIRE=$wire \\
    timeout 200 pair_conformance_test --gtest_filter='SUITE' > suite.txt 2>&1
  echo "status $wire-suite $?"
  grep -vE 'RUN|  OK ' suite.txt | tail -60 > shown.txt; shown $wire-suite shown.txt
}
dark() {  # wire, settings: messages both ways while a spine swallows everything
  label=$1-dark; shift
  rm -f s.0 s.1
  rank verbs_stream 1 rxe1 s seconds:4 "$@" > out1.txt 2>&1 & other=$!
  rank verbs_stream 0 rxe0 s seconds:4 "$@" > out0.txt 2>&1 & one=$!
  for i in $(seq 100); do grep -q going out0.txt && grep -q going out1.txt && break; sleep 0.1; done
  sleep 1; spine_dark 1
  wait $one; echo "status $label.0 $?"
  wait $other; echo "status $label.1 $?"
  shown $label.0 out0.txt; shown $label.1 out1.txt
  calm
}
""".replace("SUITE", SUITE)


def check_spines(text: str, wire: str) -> list[str]:
    crossed = [list(map(int, line.split())) for line in scene.rows(text, f"{wire}-crossed")]
    if len(crossed) != 1 or len(crossed[0]) != 4:
        return [f"{wire}: no word of what crossed the spines"]
    first, second, after_first, after_second = crossed[0]
    went = (after_first - first, after_second - second)
    print(f"{wire}: over the spines {went[0] / 1e6:.1f} and {went[1] / 1e6:.1f} MB")
    return [] if min(went) > SHARE * sum(went) else [f"{wire}: a spine was not used: {went} bytes"]


def check(text: str, wire: str) -> list[str]:
    pairs = [f"{wire}-{case}" for case in ("data", "cut", "spines", "loss")]
    problems = scene.ill(text, *(f"{label}.{rank}" for label in (*pairs, f"{wire}-dark")
                                 for rank in (0, 1)), f"{wire}-suite")
    problems += [f"{label}: no word that the data was right" for label in pairs
                 if "data ok" not in scene.rows(text, f"{label}.0")]
    problems += check_spines(text, wire)
    for label in pairs:
        for line in scene.rows(text, f"{label}.0"):
            if line.startswith(("bandwidth", "latency")):
                print(f"{label}: {line}")
    for line in scene.rows(text, f"{wire}-dark.0"):
        if line.startswith(("sent", "gap")):
            print(f"{wire}-dark: {line}")
    for line in scene.rows(text, f"{wire}-suite"):
        if "PASSED" in line or "FAILED" in line or "tests ran" in line:
            print(f"{wire}: {line}")
    return problems


def main() -> int:
    scene.skip_unless_asked()
    wires = sys.argv[1:] or WIRES
    problems, text = scene.run(
        SCRIPT + "".join(f"of_wire {wire}\n" for wire in wires),
        ("verbs_pair", "verbs_stream", "pair_conformance_test"), LIMIT_SECONDS * len(wires))
    for wire in wires:
        problems += check(text, wire)
    return scene.end(problems, text)


if __name__ == "__main__":
    sys.exit(main())

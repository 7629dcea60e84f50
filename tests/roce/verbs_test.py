#!/usr/bin/python3
"""The verbs transport over real RoCE v2 (rdma_rxe) between two hosts of a virtual machine.

What must hold: every byte is right; the suite of all transports passes on real queue pairs, deaths
of processes included; the UDP source ports on the wire are those that the formula gives for what
was chosen; collectives and messages of memory that was mapped anew are right; NCCL's net plugin
keeps every contract; weft-bw link works. Runs with WEFT_ROCE=1 only, which `tools/dev test roce`
sets.
"""

import re
import sys

import scene

QUEUE_PAIRS = 4
LIMIT_SECONDS = 600
# Of the suite: what a software device on an emulated processor does in a short time.
SUITE = "*EverySizeArrivesWhole*:*ReducedPieces*:*ThousandsInFlight*:*Faults.*:*Processes.*"

SCRIPT = f"""
ip netns exec leaf2 roce_ports d2 d3 > ports.txt & counter=$!
for i in $(seq 20); do grep -q counting ports.txt && break; sleep 0.2; done
WEFT_LOG_LEVEL=info both pair 1 data latency:8:100 seconds:65536:3 link \\
  verbs.queue_pairs={QUEUE_PAIRS} verbs.path_search=false
kill $counter; wait $counter
shown seen ports.txt
export WEFT_TEST_RDMA=rxe2,rxe3 WEFT_VERBS_TIMEOUT=13 WEFT_VERBS_RETRY_COUNT=6
timeout 300 verbs_conformance_test --gtest_filter='{SUITE}' > suite.txt 2>&1
echo "status suite $?"
unset WEFT_TEST_RDMA
WEFT_TEST_RDMA=rxe2 timeout 120 registrations_test > registrations.txt 2>&1
echo "status registrations $?"; shown registrations registrations.txt
WEFT_TRANSPORT=verbs WEFT_TCP_INTERFACE=m0 WEFT_VERBS_DEVICES==rxe2 host_exec 0 timeout 120 \\
  weft-nccl-harness /lib/libnccl-net-weft.so --versions 11 --requests 300 > harness.txt 2>&1
echo "status harness $?"; shown harness harness.txt
job() {{  # label, program, arguments...: as the two ranks of a job
  label=$1; shift
  export WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=192.168.77.1 MASTER_PORT=4400 \\
    WEFT_TRANSPORT=verbs WEFT_JOB_SECRET={"5eed" * 16}
  RANK=1 WEFT_TCP_INTERFACE=m1 WEFT_VERBS_DEVICES==rxe3 host_exec 1 timeout 60 "$@" \\
    > job1.txt 2>&1 & other=$!
  RANK=0 WEFT_TCP_INTERFACE=m0 WEFT_VERBS_DEVICES==rxe2 host_exec 0 timeout 60 "$@" > job0.txt 2>&1
  echo "status $label.0 $?"; wait $other; echo "status $label.1 $?"
  shown $label.0 job0.txt; shown $label.1 job1.txt
}}
job link weft-bw link -s 64K -n 50
job doctor weft-doctor pairs
grep -vE 'RUN|verbs: ' suite.txt | tail -60 > shown.txt; shown suite shown.txt
"""


def ports(lines: list[str]) -> set[int]:
    return {int(port) for line in lines for port in re.findall(r"source port (\d+)", line)}


def check_ports(text: str) -> list[str]:
    """A port at both ends of each queue pair. The link from 1 to 0 need not use all of its own."""
    chosen = ports([line for line in scene.rows(text, "pair.0") if line.startswith("link ")])
    ever = ports(scene.rows(text, "pair.0") + scene.rows(text, "pair.1"))  # replaced ones too
    seen = {int(words[1]): int(words[3]) for words in map(str.split, scene.rows(text, "seen"))
            if words[0] == "port"}
    print(f"source ports chosen for the link from 0 to 1: {sorted(chosen)}")
    print(f"source ports on the wire, with packets: {seen}")
    problems = []
    if len(chosen) < 2 * QUEUE_PAIRS - 1 or not chosen <= set(seen):
        problems.append(f"chosen and not on the wire: {sorted(chosen - set(seen))} of {chosen}")
    if not set(seen) <= ever:
        problems.append(f"on the wire and chosen by nobody: {sorted(set(seen) - ever)}")
    return problems


def main() -> int:
    scene.skip_unless_asked()
    names = ("verbs_pair", "roce_ports", "verbs_conformance_test", "weft-nccl-harness",
             "libnccl-net-weft.so", "weft-bw", "weft-doctor", "registrations_test")
    problems, text = scene.run(SCRIPT, names, LIMIT_SECONDS)
    problems += scene.ill(text, "pair.0", "pair.1", "suite", "registrations", "harness",
                          "link.0", "link.1", "doctor.0", "doctor.1")
    if "data ok" not in scene.rows(text, "pair.0"):
        problems.append("no word that the data was right")
    problems += check_ports(text)
    for line in scene.rows(text, "suite"):
        if "PASSED" in line or "FAILED" in line or "tests ran" in line:
            print(f"suite: {line}")
    for line in scene.rows(text, "harness"):
        print(f"harness: {line}")
    return scene.end(problems, text)


if __name__ == "__main__":
    sys.exit(main())

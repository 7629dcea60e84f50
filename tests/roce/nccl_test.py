#!/usr/bin/python3
"""Real NCCL on two hosts of the virtual machine, with the plugin's verbs transport over real RoCE v2.

NCCL's host code runs as it is shipped; the GPU under it is scripted (tests/plugins/gpu/scripted).
What must hold: all collectives are right in both protocols, over one port and over two, which NCCL
spreads its channels over or the plugin merges; lost packets, a spine that goes dark and a port of merged
ones that is lost for ever in the midst of the job cost it nothing but time; a rank that is killed
is named to the other by NCCL's own error. Runs with WEFT_ROCE=1 only, which `tools/dev test roce`
sets, and where there is an NCCL.
"""

import os
import pathlib
import sys

import machine
import scene

LIMIT_SECONDS = 500
REPORTED_BROKEN = 3  # the exit status of a rank, see nccl_job.h
# CUDA's, or one of those that `tools/dev test nccl` fetches.
NCCL = pathlib.Path(os.environ.get("WEFT_TEST_NCCL", "/usr/local/cuda/lib64/libnccl.so.2"))
if not NCCL.exists():
    NCCL = machine.CACHE.parent / "nccl/2.28.9/libnccl.so.2"

FUNCTIONS = f"""
export WEFT_TEST_NCCL=/lib/{NCCL.name} WEFT_TEST_SCRIPTED_GPU=/lib/libscripted_gpu.so
export NCCL_NET_PLUGIN=/lib/libnccl-net-weft.so NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET
export NCCL_ALGO=Ring NCCL_MAX_NCHANNELS=2 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0
export WEFT_TRANSPORT=verbs WEFT_LOG_LEVEL=info WEFT_VERBS_TIMEOUT=13 WEFT_VERBS_RETRY_COUNT=6
DIES_AFTER=0
nccl_rank() {{  # rank, devices, protocol, rounds, counts
  NCCL_HOSTID=host$1 NCCL_SOCKET_IFNAME=m$1 WEFT_TCP_INTERFACE=m$1 WEFT_VERBS_DEVICES==$2 \\
    NCCL_PROTO=$3 host_exec $1 timeout 150 nccl_scripted_gpu_test \\
    --nccl-rank $1 2 $4 1 $DIES_AFTER 1 0 id $5 > nccl$1.txt 2>&1
}}
job() {{  # label, devices of rank 0, of rank 1, protocol, rounds, counts
  rm -f id*
  nccl_rank 1 $3 $4 $5 $6 & other=$!
  nccl_rank 0 $2 $4 $5 $6; echo "status $1.0 $?"
  wait $other; echo "status $1.1 $?"
  shown $1.0 nccl0.txt; shown $1.1 nccl1.txt
}}
"""
PROGRAMS = ("nccl_scripted_gpu_test", "libscripted_gpu.so", "libnccl-net-weft.so", str(NCCL))

SCRIPT = FUNCTIONS + """
after_round_2() {  # command...
  : > nccl0.txt
  (until grep -q 'round 2 ' nccl0.txt; do sleep 0.2; done; "$@") &
}
job simple rxe2 rxe3 Simple 1 1,1000,100000
job ll rxe2 rxe3 LL 1 1,1000,10000
job apart rxe0,rxe2 rxe1,rxe3 Simple 1 1000,100000
netem loss 1%
job loss rxe0 rxe1 Simple 3 1000,100000
calm
export WEFT_VERBS_QUEUE_PAIRS=4
after_round_2 spine_dark 0
job dark rxe0 rxe1 Simple 12 100000
calm
unset WEFT_VERBS_QUEUE_PAIRS
DIES_AFTER=1 job killed rxe2 rxe3 Simple 3 100000
export WEFT_VERBS_MERGE_PORTS=true
after_round_2 port_down 2
job lost rxe0,rxe2 rxe1,rxe3 Simple 12 100000
"""


def main() -> int:
    scene.skip_unless_asked()
    if not NCCL.exists():
        scene.skip(f"there is no NCCL at {NCCL} (WEFT_TEST_NCCL, or tools/dev test nccl)")
    problems, text = scene.run(SCRIPT, PROGRAMS, LIMIT_SECONDS)
    for label in ("simple", "ll", "apart", "loss", "dark", "killed", "lost"):
        if label != "killed":
            problems += scene.ill(text, f"{label}.0", f"{label}.1")
        for rank in (0, 1):
            said = scene.rows(text, f"{label}.{rank}")
            for line in ("Using network weft", "transport verbs,"):
                if not any(line in row for row in said):
                    problems.append(f"{label}.{rank} did not say {line!r}")
            for line in said:
                if "is right" in line or "NET/Weft" in line and "INFO" not in line:
                    print(f"{label}.{rank}: {line}")
    for label in ("dark", "lost"):
        if not any("queue pair lost" in row for row in scene.rows(text, f"{label}.1")):
            problems.append(f"{label}: no queue pair was lost while the job ran")
    if f"status killed.0 {REPORTED_BROKEN}\n" not in text:
        problems.append("NCCL did not report the rank that was killed")
    if not any("its process or its host has died" in row for row in scene.rows(text, "killed.0")):
        problems.append("the other rank did not name the one that was killed")
    return scene.end(problems, text)


if __name__ == "__main__":
    sys.exit(main())

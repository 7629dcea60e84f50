#!/usr/bin/python3
"""A plan under verbs over real RoCE v2 (rdma_rxe): queue pairs have planned source ports from their first packet on.

The leaves hash by a key that their kernel drew at boot, so that no form of it is known: what they do with some ports
is asked of them and stands in tables, as weft-topo learn-hash makes them of switches that nothing explains, and
weft-plan paths plans by these, in the machine. What must hold: one of two queue pairs is on each spine, both spines
carry their half of the data, and both of what goes back, acknowledgements included; and, where there is an NCCL, those
of its two channels over the plugin, with a scripted GPU. Beside it the same without a plan. Nothing is searched for by
trying (verbs.path_search), which an emulated processor misleads. Runs with WEFT_ROCE=1 only, which `tools/dev test
roce` sets.

    plan_test.py [--rows]    also prints the shares as rows of a benchmark
"""

import json
import sys

import nccl_test
import scene

LIMIT_SECONDS = 600
REPEATS = 3
PORTS = 48  # of each direction that the tables have
# Of its half that each spine carries at least. A queue pair is given more while its device is the faster one, which an
# emulated processor makes by chance: 0.99 mostly, 0.80 in one run of six. What goes back is a percent of the data: the
# acknowledgements of both queue pairs, and the receiver's own messages, which are all on the first.
SHARE, SHARE_BACK, SHARE_NCCL = 0.7, 0.2, 0.7
FREE_PORTS = "verbs.queue_pairs=2 verbs.path_search=false"

# Lines of `ip route get`: the spine is in the name of the device.
SCRIPT = f"""
ask_leaf() {{  # leaf, own address, other address, way in: "PORT SPINE" a line
  for port in $(seq 49200 97 {49200 + 97 * (PORTS - 1)}); do
    echo "route get $3 from $2 iif $4 ipproto udp sport $port dport 4791"
  done > questions
  ip -n leaf$1 -o -batch questions | grep -o 'up[01]' | tr -d up > spines
  seq 49200 97 {49200 + 97 * (PORTS - 1)} | paste -d. - spines
}}
{{
  echo weft-hashes 1
  echo address h0 0 10.1.0.1; echo address h1 0 10.1.1.1
  echo "hash leaf0 table:members=2,10.1.0.1>10.1.1.1>4791>17=$(ask_leaf 0 10.1.0.1 10.1.1.1 d0 | paste -sd+ -)"
  echo "hash leaf1 table:members=2,10.1.1.1>10.1.0.1>4791>17=$(ask_leaf 1 10.1.1.1 10.1.0.1 d1 | paste -sd+ -)"
}} > hashes
weft-plan paths --fabric leaf-spine:leaves=2,hosts_per_leaf=1,spines=2,bandwidth=2Gbps,spine_bandwidth=1Gbps --hash hashes --transport verbs \\
  --layout dp=2 --node gpus=1 --traffic name=dp,axes=dp,collective=all_reduce,bytes=64MiB --subflows 2 \\
  --out /tmp/plan > plan.txt 2>&1; echo "status plan $?"
shown plan plan.txt
grep -E '^(flow|spare)' plan/paths.txt > ways.txt; shown ways ways.txt
crossed() {{  # of leaf 0 and leaf 1, to each spine
  echo $(for leaf in 0 1; do for spine in 0 1; do
    in_space leaf$leaf cat /sys/class/net/up$spine/statistics/tx_bytes; done; done)
}}
measured() {{  # label, command...
  label=$1; shift
  crossed > before; "$@"; echo "$label-crossed: $(cat before) $(crossed)"
}}
for turn in {" ".join(map(str, range(REPEATS)))}; do
  measured planned-$turn both planned-$turn 0 bandwidth:65536:150 lanes plan=/tmp/plan verbs.path_search=false
  lane_spines planned-$turn-spines pair0.txt
  measured drawn-$turn both drawn-$turn 0 bandwidth:65536:150 {FREE_PORTS}
done
"""

# Two channels, a connection each both ways, which take the planned flows in turn.
NCCL_SCRIPT = nccl_test.FUNCTIONS + """
export NCCL_MIN_NCHANNELS=2 WEFT_VERBS_PATH_SEARCH=false
measured nccl-drawn job nccl-drawn rxe0 rxe1 Simple 4 400000
WEFT_PLAN=/tmp/plan; export WEFT_PLAN
measured nccl-planned job nccl-planned rxe0 rxe1 Simple 4 400000
"""


def shares(text: str, label: str) -> tuple | None:
    """Of what crossed the spines: the less used one's part of its half, of the data, of what came back, and of both."""
    found = [list(map(int, line.split())) for line in scene.rows(text, f"{label}-crossed")]
    if len(found) != 1 or len(found[0]) != 8:
        return None
    went = [after - before for before, after in zip(found[0][:4], found[0][4:])]
    both = [went[0] + went[2], went[1] + went[3]]
    return tuple(2 * min(pair) / max(1, sum(pair)) for pair in (went[:2], went[2:], both))


def main() -> int:
    scene.skip_unless_asked()
    has_nccl = nccl_test.NCCL.exists()
    programs = ("verbs_pair", "weft-plan", *(nccl_test.PROGRAMS if has_nccl else ()))
    problems, text = scene.run(SCRIPT + (NCCL_SCRIPT if has_nccl else ""), programs, LIMIT_SECONDS)
    problems += scene.ill(text, "plan")
    got = {"planned": [], "drawn": []}
    for turn in range(REPEATS):
        for who, values in got.items():
            label = f"{who}-{turn}"
            problems += scene.ill(text, f"{label}.0", f"{label}.1")
            found = shares(text, label)
            if found is None:
                problems.append(f"{label}: no word of what crossed the spines")
                continue
            values.append(found)
            print(f"{label}: the less used spine carries {found[0]:.3f} of its half of the data, {found[1]:.3f} of its "
                  f"half of what comes back, {found[2]:.3f} of both together")
            if who == "planned":
                if found[0] < SHARE or found[1] < SHARE_BACK:
                    problems.append(f"{label}: a spine carries less than {SHARE} of its half, or {SHARE_BACK} back")
                lanes = [lane.spine for _, part in scene.lane_parts(text, f"{label}.0", f"{label}-spines") for lane in part]
                if sorted(lanes) != ["0", "1"]:
                    problems.append(f"{label}: the queue pairs are on spines {lanes}, not one on each")
    for label in ("nccl-drawn", "nccl-planned") if has_nccl else ():
        problems += scene.ill(text, f"{label}.0", f"{label}.1")
        found = shares(text, label)
        print(f"{label}: the less used spine carries {found} of its half, there, back and together")
        # Data both ways.
        if label == "nccl-planned" and (found is None or min(found[:2]) < SHARE_NCCL):
            problems.append(f"{label}: a spine carries less than {SHARE_NCCL} of its half")
    if not has_nccl:
        print(f"there is no NCCL at {nccl_test.NCCL}: the plugin was left out")
    if "--rows" in sys.argv and all(got.values()):
        for way, name in enumerate(("data", "what comes back", "both together")):
            ours, theirs = (min(one[way] for one in got[who]) for who in ("planned", "drawn"))
            print(json.dumps({"name": "paths", "case": f"verbs over Soft-RoCE, two spines: worst share of its half of "
                              f"{name} that a spine carries", "ours": ours, "peer": theirs, "peer_name": "drawn ports",
                              "unit": "share", "ratio": ours / max(theirs, 0.01), "repeats": REPEATS}), flush=True)
    return scene.end(problems, text)


if __name__ == "__main__":
    sys.exit(main())

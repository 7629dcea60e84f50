"""Link traversals per second of the packet-level simulator on one core, from 128 to 12,288 hosts.

Each case is a permutation of 2 MB a host on a leaf-spine of 400 Gb/s links, packets of 4096 B
sprayed. The peer is htsim (Ultra Ethernet's, commit 40ccb05, its UEC), which comes as source from
GitHub and is in no package, so it is not run here: `peer` holds the figures that were measured once
on 2 virtual cores of another kind, on the same cases (docs/benchmarks/sim.md); where there is none
it is the goal of 4 M/s.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

# hosts: leaves, hosts a leaf, spines, htsim's million link traversals per second
CASES = {
    128: (8, 16, 16, 1.99),
    1024: (32, 32, 32, 0.53),
    8192: (128, 64, 64, 0.36),
    12288: (192, 64, 64, None),
}
GOAL = 4.0


def simulate(hosts: int) -> dict:
    leaves, per_leaf, spines, _ = CASES[hosts]
    fabric = f"leaf-spine:leaves={leaves},hosts_per_leaf={per_leaf},spines={spines},delay=1us"
    text = subprocess.run(
        [os.environ["WEFT_BIN"] + "/weft-sim", "--fabric", fabric, "--workload",
         "permutation:bytes=2MB", "--transport", "spray", "--quiet", "--json", "-"],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rates = {hosts: [] for hosts in options.hosts}
    results = {}
    for turn in range(options.repeats):
        for hosts in options.hosts:
            result = results[hosts] = simulate(hosts)
            rates[hosts].append(result["link_traversals"] / result["wall_seconds"] / 1e6)
            print(f"round {turn + 1} of {options.repeats}: {hosts} hosts, "
                  f"{result['wall_seconds']:.2f} s, {result['max_rss_mb']:.0f} MB, "
                  f"{rates[hosts][-1]:.2f} M traversals/s", file=sys.stderr, flush=True)
    for hosts in options.hosts:
        ours, peer = statistics.median(rates[hosts]), CASES[hosts][3]
        print(json.dumps({
            "name": "sim", "case": f"permutation, {hosts} hosts", "ours": round(ours, 3),
            "peer": peer or GOAL,
            "peer_name": "htsim UEC (other machine)" if peer else "goal",
            "unit": "M traversals/s", "ratio": round(ours / (peer or GOAL), 2),
            "repeats": options.repeats, "wall_seconds": round(results[hosts]["wall_seconds"], 2),
            "max_rss_mb": round(results[hosts]["max_rss_mb"])}), flush=True)


if __name__ == "__main__":
    main()

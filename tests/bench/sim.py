"""Link traversals per second of the packet-level simulator on one core, from 128 to 12,288 hosts.

Each case is a permutation of 2 MB a host on a leaf-spine of 400 Gb/s links, packets of 4096 B
sprayed. The peer is htsim (Ultra Ethernet's, commit 40ccb05, its UEC), which comes as source from
GitHub and is in no package, so it is not run here: `peer` holds the figures that were measured once
on 2 virtual cores of another kind, on the same cases (docs/benchmarks/sim.md); where there is none
it is the goal of 4 M/s. With --before rows of another build's weft-sim, in turns with this one's.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import _before

# hosts: leaves, hosts a leaf, spines, htsim's million link traversals per second
CASES = {
    128: (8, 16, 16, 1.99),
    1024: (32, 32, 32, 0.53),
    8192: (128, 64, 64, 0.36),
    12288: (192, 64, 64, None),
}
GOAL = 4.0


def simulate(programs: pathlib.Path, hosts: int) -> dict:
    leaves, per_leaf, spines, _ = CASES[hosts]
    fabric = f"leaf-spine:leaves={leaves},hosts_per_leaf={per_leaf},spines={spines},delay=1us"
    text = subprocess.run(
        [programs / "weft-sim", "--fabric", fabric, "--workload",
         "permutation:bytes=2MB", "--transport", "spray", "--quiet", "--json", "-"],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    _before.add_argument(parser)
    options = parser.parse_args()
    builds = _before.builds(options)
    rates = {(name, hosts): [] for name in builds for hosts in options.hosts}
    results = {}
    for turn in range(options.repeats):
        for hosts in options.hosts:
            for name, programs in builds.items():
                result = results[name, hosts] = simulate(programs, hosts)
                rates[name, hosts].append(result["link_traversals"] / result["wall_seconds"] / 1e6)
                print(f"round {turn + 1} of {options.repeats}: {name}, {hosts} hosts, "
                      f"{result['wall_seconds']:.2f} s, {result['max_rss_mb']:.0f} MB, "
                      f"{rates[name, hosts][-1]:.2f} M traversals/s", file=sys.stderr, flush=True)
    for hosts in options.hosts:
        figure = CASES[hosts][3]
        peers = {"htsim UEC (other machine)" if figure else "goal": figure or GOAL}
        if options.before:
            peers[_before.NAME] = statistics.median(rates[_before.NAME, hosts])
        ours = statistics.median(rates["weft", hosts])
        for peer_name, peer in peers.items():
            print(json.dumps({
                "name": "sim", "case": f"permutation, {hosts} hosts", "ours": round(ours, 3),
                "peer": round(peer, 3), "peer_name": peer_name,
                "unit": "M traversals/s", "ratio": round(ours / peer, 3),
                "repeats": options.repeats,
                "wall_seconds": round(results["weft", hosts]["wall_seconds"], 2),
                "max_rss_mb": round(results["weft", hosts]["max_rss_mb"])}), flush=True)


if __name__ == "__main__":
    main()

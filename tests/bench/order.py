"""Planned rank orders of 12,288-GPU jobs against random, as-allocated and Slurm's block order.

Predicted exposed communication of a training step between hosts (what stays on NVLink no order
changes), by weft-plan's cost model with hashed flows. An allocation is a run of hosts of which a
share is replaced by others, drawn from all that this leaves free; "as allocated" is that list as it
stands. "Slurm block" is topology/tree's: switch by switch. The bound is weft-plan's own: a ratio
of 0.96 says that no order can be more than 4 % better. docs/benchmarks/order.md says more.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

from _bench import BIN, say

PROGRAM = BIN / "weft-plan"
LIMIT_S = 300  # for one plan
DENSE = "gpt-175b"
MOE = "gpt-175b,experts=8,moe_every=2"
# As MegaScale's, with a quarter of the cables to the cores.
OVERSUBSCRIBED = ("rail-optimised:pods=12,groups=4,hosts_per_group=64,spines=32,bandwidth=200Gbps,"
                  "spine_bandwidth=400Gbps,core_bandwidth=400Gbps,core_oversubscription=4")
# name: fabric, hosts of it, hosts of the job, layout, model
CASES = {
    "12,288 of 12,288 GPUs, dp before pp": ("megascale:hosts=1536", 1536, 1536,
                                            "tp=8,dp=192,pp=8", DENSE),
    "12,288 of 24,576 GPUs, dp before pp": ("megascale:hosts=3072", 3072, 1536,
                                            "tp=8,dp=192,pp=8", DENSE),
    "12,288 of 24,576 GPUs, pp before dp": ("megascale:hosts=3072", 3072, 1536,
                                            "tp=8,dp=192,pp=8,nesting=tp-pp-dp", DENSE),
    "12,288 of 24,576 GPUs, experts": ("megascale:hosts=3072", 3072, 1536,
                                       "tp=8,ep=8,dp=24,pp=8", MOE),
    "12,288 of 24,576 GPUs, dp before pp, cores 4:1": (OVERSUBSCRIBED, 3072, 1536,
                                                       "tp=8,dp=192,pp=8", DENSE),
    "6,144 of 12,288 GPUs, dp before pp": ("megascale:hosts=1536", 1536, 768,
                                           "tp=8,dp=96,pp=8", DENSE),
}
PEERS = {"random": "random", "as-allocated": "as allocated", "block": "Slurm block"}


def allocation(hosts: int, wanted: int, scatter: float, seed: int) -> list[str]:
    """The first `wanted` hosts, a share of them replaced by any that this leaves free."""
    draw = random.Random(seed)
    chosen = list(range(wanted))
    places = draw.sample(range(wanted), round(scatter * wanted))
    free = sorted(set(range(hosts)) - set(chosen)) + [chosen[place] for place in places]
    for place, host in zip(places, draw.sample(free, len(places))):
        chosen[place] = host
    return [f"h{host}" for host in chosen]


def plan(case: tuple, scatter: float, seed: int, folder: pathlib.Path, more: list[str]) -> dict:
    fabric, hosts, wanted, layout, model = case
    names = folder / "hosts"
    names.write_text("\n".join(allocation(hosts, wanted, scatter, seed)) + "\n")
    words = [PROGRAM, "order", "--fabric", fabric, "--hosts-file", names, "--layout", layout,
             "--model", model, "--seed", str(seed), "--json", "-", *more]
    begin = time.monotonic()
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: exit status {done.returncode}")
    result = {"program_seconds": time.monotonic() - begin}
    for order in json.loads(done.stdout)["orders"]:
        result[order["name"]] = order["exposed_between_hosts_ms"]
        result["bound"] = order["bound_between_hosts_ms"]
        result["planning_seconds"] = order.get("planning_seconds")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scatter", type=float, action="append", help="shares, 0 to 1")
    parser.add_argument("--case", choices=[*CASES], action="append")
    parser.add_argument("--plan", default="", help="more words for weft-plan")
    options = parser.parse_args()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.case or CASES:
            for scatter in options.scatter or [0, 0.1, 0.5, 1]:
                runs = [plan(CASES[name], scatter, seed, pathlib.Path(folder), options.plan.split())
                        for seed in range(1, options.seeds + 1)]
                slowest = max(slowest, *(run["planning_seconds"] for run in runs))
                report(f"{name}, {scatter:.0%} scattered", runs)
    say(f"slowest plan: {slowest:.2f} s")


def report(case: str, runs: list[dict]) -> None:
    say(f"{case}: planned in {max(run['planning_seconds'] for run in runs):.2f} s, "
        f"{max(run['program_seconds'] for run in runs):.2f} s with all else")
    for peer, peer_name in [*PEERS.items(), ("bound", "lower bound")]:
        row = {"name": "order", "case": case,
               "ours": round(statistics.median(run["planned"] for run in runs), 3),
               "peer": round(statistics.median(run[peer] for run in runs), 3),
               "peer_name": peer_name, "unit": "ms",
               "ratio": round(statistics.median(run[peer] / run["planned"] for run in runs), 3),
               "repeats": len(runs)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

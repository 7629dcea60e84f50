#!/usr/bin/env python3
"""The multipath protocol under seeded faults for as long as you like: every message once and whole, or its error once.

Each seed draws paths, sizes, controller, path policy and faults (loss to 10 %, reordering, duplicates, corruption,
flapping paths, partitions, pause storms, one-way loss, restarts), runs them, heals the network and requires that
everything ends. `ours` is the share of seeds that went well, and the goal is all of them. A seed that failed is printed
with what it drew; `multipath_seeds --seed N` runs it again, with every packet.
"""

import argparse
import json
import os
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed; CI runs 1 to 5,000")
    options = parser.parse_args()
    run = subprocess.run(
        [os.environ["WEFT_BIN"] + "/multipath_seeds", "--minutes", str(options.minutes), "--first",
         str(options.first)], stdout=subprocess.PIPE, text=True)
    result = json.loads(run.stdout)
    good = (result["seeds"] - result["failures"]) / max(1, result["seeds"])
    print(json.dumps({
        "name": "seeds", "case": f"multipath, {result['seeds']} seeds from {options.first}", "ours": good,
        "peer": 1.0, "peer_name": "goal", "unit": "share of seeds", "ratio": good, "repeats": 1,
        **{key: result[key] for key in ("packets", "lost", "messages", "restarts", "seconds")}}), flush=True)
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())

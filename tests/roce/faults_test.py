#!/usr/bin/python3
"""Every kind of fault of faults.py once, in one boot; tools/dev bench roce_faults draws more.

    faults_test.py [--runs N] [--seed FIRST]    each kind in turn; kind and all else follow the seed
"""

import argparse
import sys

import faults
import scene


def main() -> int:
    scene.skip_unless_asked()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=faults.SHORT)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faults.explain()
    plans = [faults.Plan(seed) for seed in range(options.seed, options.seed + options.runs)]
    problems = faults.boot(plans)
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"{len(plans)} runs, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

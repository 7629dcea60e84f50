"""Seeded faults over Soft-RoCE: for how long nothing came, against the devices' own detection.

--seeds runs of tests/roce/faults.py, a boot for every --boot of them: loss, reordering, dark
spines, lost and flapping rails, ports down for up to 30 s, killed peers, nothing left. Every run
must end with all data right, or with a named error in time; else the exit status says so. A row a
kind: ours is the longest time without a message at either host, median of its runs; the peer's
value is what the devices take to notice, plus 200 ms. Messages of up to 1 MiB, four each way, take
the emulator some 150 ms by themselves: --bytes 65536 --kinds dark,lost shows the recovery alone.
"""
# needs: roce

import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "roce"))
import faults  # noqa: E402

GOAL_MS = faults.DETECTION * 1e3 + 200


def kinds(words: str) -> list:
    """Those that have one of the words in their names."""
    of = {word: [kind for kind in faults.KINDS if word in kind] for word in words.split(",")}
    for word, found in of.items():
        if not word or not found:
            raise argparse.ArgumentTypeError(
                f"{word!r} is in no kind's name; there are: {', '.join(faults.KINDS)}")
    return [kind for kind in faults.KINDS if any(kind in found for found in of.values())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the largest message")
    parser.add_argument("--kinds", type=kinds, default=list(faults.KINDS), metavar="WORDS",
                        help="only those with one of these words, by commas")
    parser.add_argument("--boot", type=int, default=14, help="runs of one boot")
    options = parser.parse_args()
    for name in "seeds", "bytes", "boot":
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; must be at least 1")
    plans = [faults.Plan(seed, options.bytes)
             for seed in range(options.seed, options.seed + options.seeds)]
    plans = [plan for plan in plans if plan.kind in options.kinds]
    if not plans:
        parser.error(f"no seed is of these kinds; each kind has one seed in {len(faults.KINDS)}")
    faults.explain(sys.stderr)
    problems = []
    for at in range(0, len(plans), options.boot):
        problems += faults.boot(plans[at:at + options.boot], sys.stderr)
    print(*(f"FAILED: {problem}" for problem in problems),
          f"{len(plans)} runs, {len(problems)} problems", sep="\n", file=sys.stderr)
    for kind in faults.KINDS:
        gaps = [max(plan.gaps) for plan in plans if plan.kind == kind and plan.gaps]
        if gaps:
            ours = statistics.median(gaps)
            print(json.dumps({"name": "roce_faults", "case": kind, "ours": ours, "peer": GOAL_MS,
                              "peer_name": "detection + 200 ms", "unit": "ms",
                              "ratio": GOAL_MS / ours, "repeats": len(gaps)}), flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

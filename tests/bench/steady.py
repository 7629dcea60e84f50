"""A long run of a tiny preset: memory, launch skew and the spread of step times, early against late.

2,000 steps of `--preset tiny` on two data-parallel ranks under weft-run. `ours` is the last quarter of the run, `peer`
the second one (the first warms up): memory of rank 0 that is no file's (metrics.jsonl), how far apart the ranks start
a step's first reduce-scatter (trace.json), p99 of the step's time; the last row has p99 beside p50 over the whole
run. `ratio` 1 is flat.
"""

import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from _bench import BIN
from train import make_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="200 steps")
    options = parser.parse_args()
    if options.quick:
        options.steps = 200
    with tempfile.TemporaryDirectory() as folder:
        run = train(pathlib.Path(folder), options.steps)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        skews = launch_skews(run)
    seconds = [row["step_seconds"] for row in rows]
    late = slice(3 * len(rows) // 4, None)
    early = slice(len(rows) // 4, len(rows) // 2)
    memory = [row["anonymous_bytes"] / 2**20 for row in rows]
    report("memory of rank 0", max(memory[late]), max(memory[early]), "MiB")
    skew = [skews[step] for step in sorted(skews)]
    report("launch skew, median", statistics.median(skew[late]), statistics.median(skew[early]), "ms")
    report("p99 of a step", percentile(seconds[late], 99) * 1e3, percentile(seconds[early], 99) * 1e3, "ms")
    everything = seconds[len(rows) // 20:]
    report("p99 beside p50 of a step", percentile(everything, 99) * 1e3, percentile(everything, 50) * 1e3, "ms",
           "p50")


def train(scratch: pathlib.Path, steps: int) -> pathlib.Path:
    make_data(scratch)
    command = [BIN / "weft-run", "-n", "2", "--", BIN / "weft-train", "--preset", "tiny", "--run-dir", scratch / "run"]
    for setting in [f"data.prefix={scratch / 'data'}", f"train.steps={steps}", f"log.trace_steps={steps}",
                    "checkpoint.every=0", "validation.every=0", "validation.batches=1", "sample.tokens=0"]:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode != 0:
        sys.exit(f"the run ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return scratch / "run"


def launch_skews(run: pathlib.Path) -> dict[int, float]:
    """Milliseconds between the ranks' starts of a step's first reduce-scatter, by step."""
    first = collections.defaultdict(dict)
    for event in json.loads((run / "trace.json").read_text())["traceEvents"]:
        if event["ph"] == "X" and event["name"] == "reduce_scatter":
            ranks = first[event["args"]["step"]]
            ranks[event["pid"]] = min(ranks.get(event["pid"], event["ts"]), event["ts"])
    return {step: (max(ranks.values()) - min(ranks.values())) / 1e3
            for step, ranks in first.items() if len(ranks) == 2}


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def report(case: str, ours: float, peer: float, unit: str, peer_name: str = "second quarter") -> None:
    print(json.dumps({"name": "steady", "case": case, "ours": ours, "peer": peer, "peer_name": peer_name,
                      "unit": unit, "ratio": peer / ours if ours else 1.0, "repeats": 1}), flush=True)


if __name__ == "__main__":
    main()

"""A checkpoint at every step of the demo model: milliseconds that a step waits for it, beside PyTorch.

weft-train with trainer/configs/demo.toml's model on generated text, one process, --steps steps,
checkpoint.every=1: once with checkpoint.background, once without. The peer is
torch.distributed.checkpoint, sync and async_save, of arrays of as many bytes, with steps of the
same length, synced to the same disk. `share` is the part of a step's time in %, `copy_ms` what one
copy of the state in memory takes: bytes / the bandwidth of memcpy, measured here. `slower` is by how
many % the median step is longer than without checkpoints: what copying and writing take of the
cores and the memory from a step that does not wait for them.
"""

# needs: torch

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from recovery import BIN, PATIENCE, SOURCE, prepare, say


def train(data: str, run: pathlib.Path, steps: int, settings: list[str]) -> str:
    """The output of a run of one process."""
    command = [BIN / "weft-train", SOURCE / "trainer/configs/demo.toml", "--run-dir", run]
    for setting in [f"data.prefix={data}", f"train.steps={steps}", "train.precision=fp32",
                    "train.global_batch=4", "validation.every=0", "train.peak_tflops=1",
                    "sample.tokens=0", *settings]:
        command += ["--set", setting]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if result.returncode != 0:
        raise SystemExit(f"{run}: exit status {result.returncode}\n{result.stderr}")
    return result.stderr


def step_seconds(run: pathlib.Path) -> float:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return statistics.median(row["step_seconds"] for row in rows if "step_seconds" in row)


def peer(folder: pathlib.Path, kind: str, parameters: int, seconds: float, steps: int) -> float:
    """Seconds that a step waits: the mean, without the first."""
    script = pathlib.Path(__file__).parent / "checkpoint/dcp.py"
    result = subprocess.run([os.environ["WEFT_BENCH_PYTHON"], "-W", "ignore", script, folder, kind,
                             str(parameters), str(seconds), str(steps)],
                            capture_output=True, text=True, timeout=PATIENCE)
    if result.returncode != 0:
        raise SystemExit(f"{script.name} {kind}: {result.stderr}")
    return statistics.mean(json.loads(result.stdout)[1:])


def copy_seconds(size: int) -> float:
    """Of one copy of that many bytes, the best of five."""
    source, target, best = bytearray(size), bytearray(size), float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        target[:] = memoryview(source)
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="of each run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = prepare(folder)
        train(data, folder / "none", options.steps, ["checkpoint.every=0"])
        waits = {}
        for kind in "background", "foreground":
            run = folder / kind
            output = train(data, run, options.steps,
                           ["checkpoint.every=1", f"checkpoint.background={kind == 'background'}"
                            .lower()])
            line = next(line for line in output.splitlines() if line.startswith("checkpoints  ")
                        and "%" in line)
            say(line)
            share = float(re.search(r"([0-9.]+)% of the time", line)[1])
            seconds = step_seconds(run)
            waits[kind] = (share, share / 100 * seconds)
        parameters = round(1e6 * float(re.search(r"([0-9.]+) M parameters", output)[1]))
        seconds = step_seconds(folder / "background")
        for ours, theirs in ("background", "async"), ("foreground", "sync"):
            share, waited = waits[ours]
            other = peer(folder / theirs, theirs, parameters, seconds, options.steps)
            print(json.dumps({
                "name": "checkpoint", "case": f"each step of {seconds * 1e3:.0f} ms, {ours}",
                "ours": round(waited * 1e3, 2), "peer": round(other * 1e3, 2),
                "peer_name": f"torch DCP {theirs}", "unit": "ms",
                "ratio": round(other / max(waited, 1e-6), 2), "repeats": options.steps,
                "share": share, "peer_share": round(100 * other / seconds, 2),
                "slower": round(100 * (step_seconds(folder / ours) /
                                       step_seconds(folder / "none") - 1), 1),
                "copy_ms": round(copy_seconds(12 * parameters) * 1e3, 2)}), flush=True)


if __name__ == "__main__":
    main()

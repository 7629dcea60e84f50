"""A checkpoint at every step of the demo model: milliseconds that a step waits for it, beside PyTorch.

weft-train with trainer/configs/demo.toml's model on generated text, --steps steps,
checkpoint.every=1: once with checkpoint.background, once without; as one process, and as --ranks
that commit by consensus (data-parallel, each with its shard of the state). The peer is
torch.distributed.checkpoint, sync and async_save, of arrays of as many bytes over as many
processes, with steps of the same length, synced to the same disk. Below each:

  part of the step         the wait in % of a step's time
  the step is longer by    how much longer the median step is than without checkpoints, in ms: what
                           copying and writing take of the cores and the memory from a step that
                           does not wait for them; the peer is the processor time of the saves
  copy, write, sync, ...   mean ms of each phase of a save (docs/checkpoints.md); the peer is the
                           processor time in it
  one copy of the state    bytes / the bandwidth of memcpy, measured here
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

from _recovery import BIN, PATIENCE, SOURCE, metrics, prepare, say


def train(data: str, run: pathlib.Path, steps: int, ranks: int, settings: list[str]) -> str:
    """The output of a run."""
    command = [BIN / "weft-run", "-n", str(ranks), "--no-prefix", "--"] if ranks > 1 else []
    command += [BIN / "weft-train", SOURCE / "trainer/configs/demo.toml", "--run-dir", run]
    for setting in [f"data.prefix={data}", f"train.steps={steps}", "train.precision=fp32",
                    "train.global_batch=4", "validation.every=0", "train.peak_tflops=1",
                    "sample.tokens=0", *settings]:
        command += ["--set", setting]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{run}: exit status {result.returncode}\n{result.stderr}")
    return result.stdout + result.stderr


def step_seconds(run: pathlib.Path) -> float:
    return statistics.median(row["step_seconds"] for row in metrics(run) if "step_seconds" in row)


def peer(folder: pathlib.Path, kind: str, parameters: int, seconds: float, steps: int,
         ranks: int) -> float:
    """Seconds that a step waits: the mean, without the first, of the first process."""
    script = pathlib.Path(__file__).parent / "checkpoint/dcp.py"
    processes = [subprocess.Popen(
        [os.environ["WEFT_BENCH_PYTHON"], "-W", "ignore", script, folder, kind, str(parameters),
         str(seconds), str(steps), str(rank), str(ranks)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=PATIENCE))
            if process.returncode != 0:
                raise SystemExit(f"{script.name} {kind}: {outputs[-1][1]}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return statistics.mean(json.loads(outputs[0][0])[1:])


def copy_seconds(size: int) -> float:
    """Of one copy of that many bytes, the best of five."""
    source, target, best = bytearray(size), bytearray(size), float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        target[:] = memoryview(source)
        best = min(best, time.perf_counter() - begin)
    return best


def phases(output: str) -> dict[str, tuple[float, float]]:
    """Mean milliseconds of a save, and of the processor, by phase."""
    line = next(line for line in output.splitlines() if "checkpoint time  " in line)
    return {name: (float(passed), float(processor)) for name, passed, processor
            in re.findall(r"([a-z]+) ([0-9.]+) \(([0-9.]+)\)", line)}


def print_row(case: str, ours: float, other: float, name: str, unit: str, repeats: int) -> None:
    print(json.dumps({
        "name": "checkpoint", "case": case, "ours": round(ours, 2), "peer": round(other, 2),
        "peer_name": name, "unit": unit, "ratio": round(other / max(ours, 1e-3), 2),
        "repeats": repeats}), flush=True)


def measure(options, data: str, folder: pathlib.Path, ranks: int) -> None:
    threads = [] if ranks == 1 else ["train.threads=1"]
    folder.mkdir()
    train(data, folder / "none", options.steps, ranks, ["checkpoint.every=0", *threads])
    plain = step_seconds(folder / "none")
    outputs = {}
    for kind in "background", "foreground":
        outputs[kind] = train(data, folder / kind, options.steps, ranks, [
            "checkpoint.every=1", f"checkpoint.background={kind == 'background'}".lower(),
            *threads])
    parameters = round(1e6 * float(re.search(r"([0-9.]+) M parameters",
                                             outputs["background"])[1]))
    length = step_seconds(folder / "background")
    for ours, theirs in ("background", "async"), ("foreground", "sync"):
        line = next(line for line in outputs[ours].splitlines()
                    if "checkpoints  " in line and "%" in line)
        say(f"{ranks}: {line}")
        share = float(re.search(r"([0-9.]+)% of the time", line)[1])
        seconds = step_seconds(folder / ours)
        other = peer(folder / theirs, theirs, parameters // ranks, length, options.steps, ranks)
        case = f"{ranks} process{'es' if ranks > 1 else ''}, {ours}"
        print_row(f"{case}: a step of {seconds * 1e3:.0f} ms waits", share / 100 * seconds * 1e3,
                  other * 1e3, f"torch DCP {theirs}", "ms", options.steps)
        print_row(f"{case}: part of the step", share, 100 * other / length, f"torch DCP {theirs}",
                  "%", options.steps)
        of_saves = phases(outputs[ours])
        print_row(f"{case}: the step of {plain * 1e3:.0f} ms is longer by", (seconds - plain) * 1e3,
                  sum(processor for _, processor in of_saves.values()), "processor time", "ms",
                  options.steps)
        for phase, (passed, processor) in of_saves.items():
            print_row(f"{case}: {phase}", passed, processor, "processor time", "ms", options.steps)
    print_row(f"{ranks} process{'es' if ranks > 1 else ''}: one copy of the state of a rank",
              copy_seconds(12 * parameters // ranks) * 1e3, 0, "none", "ms", 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="of each run")
    parser.add_argument("--ranks", default="1,2", help="comma list: processes of a job")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = prepare(folder)
        for ranks in map(int, options.ranks.split(",")):
            measure(options, data, folder / str(ranks), ranks)


if __name__ == "__main__":
    sys.exit(main())

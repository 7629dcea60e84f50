"""What a rank costs that dies: seconds until the next new step is done, and steps done again.

weft-train on generated text under weft-run --recover, --ranks processes; after each pause of random
length a rank, drawn too, is killed by SIGKILL, --faults times, once with snapshots in memory and
once with checkpoints every 10 steps alone. Ours: the median of the seconds from the kill to the end
of the first step that had not been done. The peer is the same fault with the whole job ended and
started again by hand, --resume, as one has to without --recover. Losses of all runs must be those
of the unbroken run to the bit, or the exit status is 1.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(os.environ["WEFT_BIN"])
SOURCE = pathlib.Path(os.environ["WEFT_SOURCE"])
PATIENCE = 300  # seconds that anything may take


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def losses(run: pathlib.Path) -> dict[int, float]:
    rows = {}
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return rows
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # being written
            continue
        if "loss" in row:
            rows[row["step"]] = row["loss"]
    return rows


def last_step(run: pathlib.Path) -> int:
    return max(losses(run), default=0)


def process_of(run: pathlib.Path, rank: int) -> int | None:
    """The weft-train of this run and rank."""
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
            program = os.readlink(folder / "exe")
        except OSError:
            continue
        if (str(run).encode() in words and b"RANK=%d" % rank in variables
                and program.endswith("weft-train")):
            return int(folder.name)
    return None


class Job:
    def __init__(self, options, data: str, run: pathlib.Path, recover: int, more: list[str],
                 snapshot: str = "memory"):
        self.snapshot = snapshot
        self.run = run
        self.options = options
        self.data = data
        self.recover = recover
        self.more = more
        self.start()

    def start(self, *extra: str) -> None:
        settings = [f"data.prefix={self.data}", f"train.steps={self.options.steps}",
                    "train.precision=fp32", "train.peak_tflops=1", "sample.tokens=5", *self.more]
        command = [BIN / "weft-run", "-n", str(self.options.ranks), "--output", "none",
                   "--recover", str(self.recover), "--set", f"recovery.snapshot={self.snapshot}",
                   "--", BIN / "weft-train",
                   SOURCE / "trainer/configs/tiny.toml", "--run-dir", self.run, *extra]
        for setting in settings:
            command += ["--set", setting]
        self.process = subprocess.Popen(command)

    def wait_for(self, step: int) -> None:
        """Until that step is done, or the job is over."""
        end = time.monotonic() + PATIENCE
        while last_step(self.run) < step and self.process.poll() is None:
            if time.monotonic() > end:
                raise SystemExit(f"{self.run}: step {step} is not done after {PATIENCE} s")
            time.sleep(0.002)

    def finish(self) -> None:
        status = self.process.wait(PATIENCE)
        if status != 0:
            raise SystemExit(f"{self.run}: exit status {status}")


def fault(job: Job, rng: random.Random, by_hand: bool) -> tuple[float, int]:
    """Kills a rank after a while: seconds until the next new step, and steps done again."""
    job.wait_for(last_step(job.run) + rng.randint(3, 12))
    time.sleep(rng.random() * job.options.jitter)
    rank = rng.randrange(job.options.ranks)
    pid = process_of(job.run, rank)
    if pid is None:
        raise SystemExit(f"{job.run}: rank {rank} is not there; more --steps are needed")
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    if by_hand:
        job.process.wait(PATIENCE)
        before = last_step(job.run)
        job.start("--resume")
    else:
        # Until the others have heard of it, a step may yet end.
        time.sleep(0.05)
        before = last_step(job.run)
    # A file that was cut back tells where the run went on from.
    lowest = before
    end = begin + PATIENCE
    while last_step(job.run) <= before and job.process.poll() is None:
        lowest = min(lowest, last_step(job.run))
        if time.monotonic() > end:
            raise SystemExit(f"{job.run}: no new step after {PATIENCE} s")
        time.sleep(0.002)
    took = time.monotonic() - begin
    say(f"  rank {rank} killed after step {before}: next step after {took:.2f} s, "
        f"went on from step {lowest}")
    return took, before - lowest


def prepare(folder: pathlib.Path) -> str:
    """Sentences with some grammar; the prefix of what weft-data makes of them."""
    rng = random.Random(5)
    things = "horse river lamp field ship song".split()
    verbs = "carries sees follows keeps makes".split()
    documents = ["".join(f"the {rng.choice(things)} {rng.choice(verbs)} the {rng.choice(things)} "
                         f"of {rng.randrange(100)}.\n" for _ in range(4)) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(documents))
    subprocess.run([BIN / "weft-data", "prepare", "--input", folder / "text.txt",
                    "--output-prefix", folder / "data", "--vocab-size", "320",
                    "--validation-fraction", "0.1"], check=True, stdout=subprocess.DEVNULL)
    return str(folder / "data")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--faults", type=int, default=10, help="in each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="of a run; 0: 24 for each fault")
    parser.add_argument("--jitter", type=float, default=0.2,
                        help="seconds, at most, from the end of a step to the kill")
    options = parser.parse_args()
    options.steps = options.steps or 24 * options.faults + 10
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = prepare(folder)
        say("the unbroken run")
        whole = Job(options, data, folder / "whole", 0, [])
        whole.finish()
        unbroken = losses(folder / "whole")
        every = ["checkpoint.every=10"]
        kinds = {"memory": (False, []), "checkpoints": (False, every), "by hand": (True, every)}
        results: dict[str, list[tuple[float, int]]] = {}
        wrong = 0
        for kind, (by_hand, more) in kinds.items():
            say(f"{kind}:")
            rng = random.Random(options.seed)
            job = Job(options, data, folder / kind.replace(" ", "_"),
                      0 if by_hand else options.faults, more,
                      "memory" if kind == "memory" else "off")
            results[kind] = [fault(job, rng, by_hand) for _ in range(options.faults)]
            job.finish()
            if losses(job.run) != unbroken:
                wrong += 1
                say("  FAILED: losses differ from those of the unbroken run")
        peer = statistics.median(took for took, _ in results["by hand"])
        for kind in "memory", "checkpoints":
            times = sorted(took for took, _ in results[kind])
            ours = statistics.median(times)
            print(json.dumps({
                "name": "recovery", "case": f"kill -9 of a rank of {options.ranks}, {kind}",
                "ours": round(ours, 3), "slowest": round(times[-1], 3),
                "steps_again": round(statistics.mean(s for _, s in results[kind]), 2),
                "peer": round(peer, 3), "peer_name": "ended, --resume by hand", "unit": "s",
                "ratio": round(peer / ours, 2), "repeats": options.faults}), flush=True)
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

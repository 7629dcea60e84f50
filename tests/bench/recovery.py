"""What a rank costs that dies: seconds until the next new step is done, and steps done again.

weft-train on generated text under weft-run --recover, --ranks processes; after each pause of random
length a rank, drawn too, is killed by SIGKILL, --faults times, with snapshots in memory, once where
the other ranks keep their connections and once where all join anew (recovery.join=all), and once
with checkpoints every 10 steps alone. Ours: the median of the seconds from the kill to the end
of the first step that had not been done. The peer is the same fault with the whole job ended and
started again by hand, --resume, as one has to without --recover.

The same under weft-driver and weft-executors, two hosts of half the ranks each and a spare one, all
on this machine: a rank is killed, with and without a warm spare process; a host is lost (its
executor and ranks); the driver is killed and started again. Then, with --minutes, a run of that
length with a rank killed every --fault-every seconds: the part of its time that went into steps
that count, once each (the effective training time ratio, ETTR), of a model whose steps take some
100 ms on two cores, and beside it that of the same run's time without the faults' share: what lies
between steps without any fault. --faults 0: that run alone.

--quick: 3 faults each, without the rows of checkpoints alone and of the driver's end, and an ETTR
over 2 minutes.

Losses of all runs must be those of the unbroken run to the bit, or the exit status is 1.
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

sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/tools/driver"))
from driven_job import DrivenJob  # noqa: E402

BIN = pathlib.Path(os.environ["WEFT_BIN"])
SOURCE = pathlib.Path(os.environ["WEFT_SOURCE"])
PATIENCE = 300  # seconds that anything may take
# Of the run for the ETTR: larger models, and steps of some 100 ms.
ETTR_SETTINGS = ("checkpoint.every=1000", "model.hidden=256", "model.layers=4",
                 "train.global_batch=32", "validation.every=0")


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


class Run:
    """A training run in a folder."""

    run: pathlib.Path
    options: argparse.Namespace

    def settings(self) -> list[str]:
        return [f"data.prefix={self.data}", f"train.steps={self.steps}", "train.precision=fp32",
                "train.peak_tflops=1", "sample.tokens=5", *self.more]

    def train(self, *extra: str) -> list[str]:
        command = [BIN / "weft-train", SOURCE / "trainer/configs/tiny.toml", "--run-dir", self.run,
                   *extra]
        return [str(word) for word in command] + [word for setting in self.settings()
                                                  for word in ("--set", setting)]

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def wait_for(self, step: int) -> None:
        """Until that step is done, or the job is over."""
        end = time.monotonic() + PATIENCE
        while last_step(self.run) < step and not self.is_over():
            if time.monotonic() > end:
                raise SystemExit(f"{self.run}: step {step} is not done after {PATIENCE} s")
            time.sleep(0.002)

    def finish(self) -> None:
        status = self.process.wait(PATIENCE)
        if status != 0:
            raise SystemExit(f"{self.run}: exit status {status}")


class Job(Run):
    def __init__(self, options, data: str, run: pathlib.Path, recover: int, more: list[str],
                 snapshot: str = "memory", join: str = "changed"):
        self.snapshot = snapshot
        self.join = join
        self.steps = options.steps
        self.run = run
        self.options = options
        self.data = data
        self.recover = recover
        self.more = more
        self.start()

    def start(self, *extra: str) -> None:
        self.process = subprocess.Popen(
            [BIN / "weft-run", "-n", str(self.options.ranks), "--output", "none", "--recover",
             str(self.recover), "--set", f"recovery.snapshot={self.snapshot}", "--set",
             f"recovery.join={self.join}", "--",
             *self.train(*extra)])

    def process_of(self, rank: int) -> int | None:
        return process_of(self.run, rank)


class Driven(Run):
    """The same under weft-driver and three weft-executors."""

    def __init__(self, options, data: str, run: pathlib.Path, steps: int, spares: int = 0,
                 more: tuple[str, ...] = ("checkpoint.every=10",)):
        self.options, self.data, self.run, self.steps = options, data, run, steps
        self.more = list(more)
        folder = run.parent / (run.name + "_job")
        folder.mkdir()
        self.job = DrivenJob(folder, f"bench-{os.getpid()}-{run.name}", options.ranks // 2)
        self.arguments = ("--recover", "1000")
        self.job.drive(*self.arguments, lease=f"{options.lease}s")
        self.job.join("--output", "none", "--spares", str(spares), command=self.train())

    @property
    def process(self) -> subprocess.Popen:
        return self.job.driver

    def process_of(self, rank: int) -> int | None:
        """Of its newest generation; a moment passes until the driver knows it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not self.is_over():
            state = self.job.state()["ranks"][rank]
            if state["state"] == "done":
                return None
            pid = state["pid"]
            if state["state"] == "runs" and pid and pathlib.Path(f"/proc/{pid}").exists():
                return pid
            time.sleep(0.05)
        return None

    def restart_driver(self) -> None:
        self.job.driver.kill()
        self.job.driver.wait()
        self.job.drive(*self.arguments, lease=f"{self.options.lease}s")


def fault(job: Job, rng: random.Random, by_hand: bool) -> tuple[float, int]:
    """Kills a rank after a while: seconds until the next new step, and steps done again."""
    job.wait_for(last_step(job.run) + rng.randint(3, 12))
    time.sleep(rng.random() * job.options.jitter)
    rank = rng.randrange(job.options.ranks)
    pid = job.process_of(rank)
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
    took, lowest = until_next_step(job, before, begin)
    say(f"  rank {rank} killed after step {before}: next step after {took:.2f} s, "
        f"went on from step {lowest}")
    return took, before - lowest


def until_next_step(job: Run, before: int, begin: float) -> tuple[float, int]:
    """Seconds from `begin` until a step after `before` is done, and the step gone on from."""
    lowest = before  # a file that was cut back tells it
    end = begin + PATIENCE
    while last_step(job.run) <= before and not job.is_over():
        lowest = min(lowest, last_step(job.run))
        if time.monotonic() > end:
            raise SystemExit(f"{job.run}: no new step after {PATIENCE} s")
        time.sleep(0.002)
    return time.monotonic() - begin, lowest


def lose_host(job: Driven) -> tuple[float, int]:
    """Kills the executor that has node 1, and with it its ranks."""
    job.wait_for(12)
    begin = time.monotonic()
    job.job.executors["b"].kill()
    time.sleep(0.05)
    before = last_step(job.run)
    took, lowest = until_next_step(job, before, begin)
    say(f"  host lost after step {before}: next step after {took:.2f} s, went on from {lowest}")
    return took, before - lowest


def lose_driver(job: Driven) -> tuple[float, int]:
    """The longest time between two steps while the driver is killed and started again."""
    job.wait_for(12)
    job.restart_driver()
    longest, at, last = 0.0, time.monotonic(), last_step(job.run)
    end = at + 3
    while time.monotonic() < end and not job.is_over():
        step = last_step(job.run)
        now = time.monotonic()
        if step > last:
            longest, at, last = max(longest, now - at), now, step
        time.sleep(0.002)
    say(f"  driver killed and started again: at most {longest:.2f} s between two steps")
    return longest, 0


def step_seconds(run: pathlib.Path, first: int, last: int) -> float:
    """Of all steps after `first` up to `last`; of one that was done again, the last time."""
    took = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "loss" in row and first < row["step"] <= last:
            took[row["step"]] = row["step_seconds"]
    return sum(took.values())


def effective_time(job: Driven, seconds: float, every: float,
                   rng: random.Random) -> tuple[float, float]:
    """Kills a rank every so often: the parts of the time that are in steps that count, in all and
    until the first fault."""
    job.wait_for(3)
    calm = 0.0
    begin, first = time.monotonic(), last_step(job.run)
    kills = 0
    while time.monotonic() - begin < seconds:
        time.sleep(min(every, seconds))
        if kills == 0:
            now = last_step(job.run)
            calm = step_seconds(job.run, first, now) / (time.monotonic() - begin)
        pid = job.process_of(rng.randrange(job.options.ranks))
        if pid is None:
            break
        os.kill(pid, signal.SIGKILL)
        kills += 1
    before = last_step(job.run)
    job.wait_for(before + 1)
    wall, last = time.monotonic() - begin, last_step(job.run)
    say(f"  {kills} kills in {wall:.0f} s, {last - first} steps")
    return step_seconds(job.run, first, last) / wall, calm


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


def measure_faults(options, data: str, folder: pathlib.Path) -> int:
    """Prints a row for each kind of fault; how many runs lost other losses than the unbroken one."""
    say("the unbroken run")
    whole = Job(options, data, folder / "whole", 0, [])
    whole.finish()
    unbroken = losses(folder / "whole")
    every = ["checkpoint.every=10"]
    kinds = {"memory": (False, []), "memory, all join anew": (False, []),
             "checkpoints": (False, every), "by hand": (True, every)}
    if options.quick:
        del kinds["checkpoints"]
    results: dict[str, list[tuple[float, int]]] = {}
    wrong = 0
    for kind, (by_hand, more) in kinds.items():
        say(f"{kind}:")
        rng = random.Random(options.seed)
        job = Job(options, data, folder / kind.replace(" ", "_"),
                  0 if by_hand else options.faults, more,
                  "memory" if kind.startswith("memory") else "off",
                  "all" if "all join" in kind else "changed")
        results[kind] = [fault(job, rng, by_hand) for _ in range(options.faults)]
        job.finish()
        if losses(job.run) != unbroken:
            wrong += 1
            say("  FAILED: losses differ from those of the unbroken run")
    peer = statistics.median(took for took, _ in results["by hand"])
    driven = [("weft-driver", 0, None), ("weft-driver, warm spare", 1, None),
              ("host lost", 0, lose_host), ("driver killed", 0, lose_driver)]
    for kind, spares, lose in driven[1:3] if options.quick else driven:
        say(f"{kind}:")
        rng = random.Random(options.seed)
        job = Driven(options, data, folder / kind.replace(" ", "_").replace(",", ""),
                     options.steps, spares)
        try:
            faults = options.faults if lose is None else 1
            results[kind] = [fault(job, rng, False) if lose is None else lose(job)
                             for _ in range(faults)]
            job.finish()
        finally:
            job.job.close()
        if losses(job.run) != unbroken:
            wrong += 1
            say("  FAILED: losses differ from those of the unbroken run")
    for kind in results:
        if kind == "by hand":
            continue
        times = sorted(took for took, _ in results[kind])
        ours = statistics.median(times)
        what = kind if "lost" in kind or "killed" in kind else (
            f"kill -9 of a rank of {options.ranks}, {kind}")
        print(json.dumps({
            "name": "recovery", "case": what, "ours": round(ours, 3),
            "slowest": round(times[-1], 3),
            "steps_again": round(statistics.mean(s for _, s in results[kind]), 2),
            "peer": round(peer, 3), "peer_name": "ended, --resume by hand", "unit": "s",
            "ratio": round(peer / ours, 2), "repeats": len(times)}), flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--faults", type=int, default=10, help="in each run; 0: only that of --minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="of a run; 0: 180 for each fault")
    parser.add_argument("--jitter", type=float, default=0.2,
                        help="seconds, at most, from the end of a step to the kill")
    parser.add_argument("--lease", type=float, default=5, help="of weft-driver, in seconds")
    parser.add_argument("--minutes", type=float, default=0, help="of the run for the ETTR; 0: none")
    parser.add_argument("--fault-every", type=float, default=60, help="seconds, in that run")
    parser.add_argument("--quick", action="store_true", help="some minutes in all")
    options = parser.parse_args()
    if options.quick:
        options.faults, options.minutes = min(options.faults, 3), options.minutes or 2
    options.steps = options.steps or 180 * options.faults + 10
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = prepare(folder)
        wrong = measure_faults(options, data, folder) if options.faults > 0 else 0
        if options.minutes > 0:
            say(f"a rank killed every {options.fault_every:g} s, for {options.minutes:g} min:")
            job = Driven(options, data, folder / "ettr", 10**7, spares=1, more=ETTR_SETTINGS)
            try:
                ratio, calm = effective_time(job, options.minutes * 60, options.fault_every,
                                       random.Random(options.seed))
                job.job.call("POST", "/stop", job.job.token())
            finally:
                job.job.close()
            print(json.dumps({
                "name": "recovery", "ours": round(ratio, 4), "peer": 1.0, "peer_name": "no fault",
                "case": f"ETTR, a fault every {options.fault_every:g} s for {options.minutes:g} min",
                "until_first_fault": round(calm, 4), "unit": "part", "ratio": round(ratio, 4), "repeats": 1}), flush=True)
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

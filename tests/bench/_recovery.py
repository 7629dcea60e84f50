"""What benches of recovery share: training runs that are watched, by a launcher or a driver."""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/tools/driver"))
from driven_job import DrivenJob  # noqa: E402
from _bench import BIN, say  # noqa: E402

SOURCE = pathlib.Path(os.environ["WEFT_SOURCE"])
SPARE_STEPS = 1500  # that such a run has beyond the others', while its spare processes load
PATIENCE = 300  # seconds that anything may take


def metrics(run: pathlib.Path) -> list[dict]:
    rows = []
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return rows
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # being written
            continue
    return rows


def losses(run: pathlib.Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in metrics(run) if "loss" in row}


def recovered(run: pathlib.Path, since: float) -> dict[str, float] | None:
    """The phases of the recovery that began after `since` (time.monotonic()), in seconds: of the
    rank that was the last to be back, where there were several. None: the run has told none."""
    found = None
    for row in metrics(run):
        if "recovered_rank" not in row or row["began_ns"] * 1e-9 < since:
            continue
        phases = {"noticed": row["began_ns"] * 1e-9 - since}
        phases.update((phase, took / 1e3) for phase, took in row["phases_ms"].items())
        if found is None or sum(phases.values()) > sum(found.values()):
            found = phases
    return found


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


def waiting_spares(run: pathlib.Path) -> int:
    """Spare processes of this run that are warm and wait for a place: they read standard input."""
    count = 0
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            is_spare = b"WEFT_SPARE=1" in (folder / "environ").read_bytes().split(b"\0")
            is_of_run = str(run).encode() in (folder / "cmdline").read_bytes().split(b"\0")
            call = (folder / "syscall").read_text()
        except OSError:
            continue
        count += is_spare and is_of_run and call.startswith(("0 0x0 ", "63 0x0 "))
    return count


def train_command(run: pathlib.Path, data: str, steps: int, decay_steps: int, more: list[str],
                  *extra: str) -> list[str]:
    """weft-train of a small model. Runs with the same `decay_steps` have the same losses."""
    settings = [f"data.prefix={data}", f"train.steps={steps}", "train.precision=fp32",
                "train.peak_tflops=1", "sample.tokens=5",
                f"optimizer.decay_steps={decay_steps + SPARE_STEPS}", *more]
    command = [BIN / "weft-train", SOURCE / "trainer/configs/tiny.toml", "--run-dir", run, *extra]
    return [str(word) for word in command] + [word for setting in settings
                                              for word in ("--set", setting)]


class Run:
    """A training run in a folder."""

    run: pathlib.Path
    options: argparse.Namespace

    def train(self, *extra: str) -> list[str]:
        return train_command(self.run, self.data, self.steps, self.options.steps, self.more, *extra)

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
    """Under weft-run. `around`: words before it, as of a namespace; `launcher`: further options."""

    def __init__(self, options, data: str, run: pathlib.Path, recover: int, more: list[str],
                 snapshot: str = "memory", join: str = "changed", ranks: int = 0,
                 around: tuple[str, ...] = (), launcher: tuple[str, ...] = (),
                 environment: dict[str, str] | None = None):
        self.snapshot = snapshot
        self.join = join
        self.steps = options.steps
        self.run = run
        self.options = options
        self.data = data
        self.recover = recover
        self.more = more
        self.ranks = ranks or options.ranks
        self.around, self.launcher, self.environment = around, launcher, environment
        self.start()

    def start(self, *extra: str) -> None:
        self.process = subprocess.Popen(
            [*self.around, BIN / "weft-run", "-n", str(self.ranks), "--output", "none", "--recover",
             str(self.recover), "--set", f"recovery.snapshot={self.snapshot}", "--set",
             f"recovery.join={self.join}", *self.launcher, "--", *self.train(*extra)],
            env=self.environment)

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

    def wait_for_spares(self, count: int) -> None:
        """Until so many are warm, on all hosts together."""
        end = time.monotonic() + PATIENCE
        while waiting_spares(self.run) < count:
            if self.is_over() or time.monotonic() > end:
                raise SystemExit(f"{self.run}: {waiting_spares(self.run)} warm spare processes, "
                                 f"not {count}, when it ended")
            time.sleep(0.05)

    def restart_driver(self) -> None:
        self.job.driver.kill()
        self.job.driver.wait()
        self.job.drive(*self.arguments, lease=f"{self.options.lease}s")


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


def differs(job: Run, unbroken: dict[int, float]) -> bool:
    """Whether its losses are others than the unbroken run's, of all steps that it was to do."""
    wanted = {step: loss for step, loss in unbroken.items() if step <= job.steps}
    if losses(job.run) == wanted:
        return False
    say("  FAILED: losses differ from those of the unbroken run")
    return True

"""Small jobs whose ranks are killed or stopped at random moments, over and over: does any hang?"""

import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time

from _recovery import BIN, losses, metrics, say, train_command

sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/tools/run"))
from processes import environment, of_job  # noqa: E402

STEPS = 60
RANKS = 2
BOUND = 60.0  # seconds from the fault to the job's end; beyond it, the job hangs
STARTUP = 120.0  # seconds until a rank is there
# Layouts, and how state is kept: in turns.
KINDS = {
    "data": [],
    "tensor": ["parallel.tensor=2"],
    "pipeline": ["parallel.pipeline=2"],
    "replicas": ["parallel.zero=0"],
    "checkpoints": ["checkpoint.every=2", "checkpoint.background=true", "recovery.snapshot=off"],
}


class SmallJob:
    """weft-run --recover with weft-train, in a folder, with a name of its own."""

    def __init__(self, run: pathlib.Path, data: str, more: list[str]):
        self.run, self.name = run, f"hangs-{os.getpid()}-{run.name}"
        settings = [setting for setting in more if not setting.startswith("recovery.")]
        own = [word for setting in more if setting.startswith("recovery.")
               for word in ("--set", setting)]
        self.log = run.with_suffix(".log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [BIN / "weft-run", "-n", str(RANKS), "--job", self.name, "--recover", "4", *own,
                 "--", *train_command(run, data, STEPS, STEPS, settings)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def rank(self, number: int) -> int | None:
        """The process of a rank, as soon as there is one; None: the job is over."""
        end = time.monotonic() + STARTUP
        while self.process.poll() is None:
            for pid in of_job(self.name):
                if environment(pid).get(b"RANK") == b"%d" % number:
                    return pid
            if time.monotonic() > end:
                return None
            time.sleep(0.005)
        return None

    def wait(self, seconds: float) -> int | None:
        """The exit status; None: it is not over by then."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in of_job(self.name):
            os.kill(pid, signal.SIGKILL)


def disturb(job: SmallJob, rng: random.Random, took: float) -> tuple[str, float]:
    """At a moment of the time that an undisturbed job takes: what was done, and when."""
    time.sleep(rng.random() * 0.8 * took)  # later ones would often come too late
    number, kind = rng.randrange(RANKS), rng.choice(("kill", "kill", "kill twice", "stop"))
    pause = rng.random()
    pid = job.rank(number)
    begin = time.monotonic()
    if pid is None:
        return "over", begin
    try:
        if kind == "stop":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(pause)
            os.kill(pid, signal.SIGCONT)
            return "stopped", begin
        os.kill(pid, signal.SIGKILL)
        if kind == "kill twice":
            time.sleep(pause)
            other = job.rank(rng.randrange(RANKS))
            if other is not None and other != pid:
                begin = time.monotonic()
                os.kill(other, signal.SIGKILL)
    except ProcessLookupError:
        return "over", begin
    return "killed", begin


def measure_hangs(options, data: str, folder: pathlib.Path) -> int:
    """Prints the rows; returns how many runs hung, failed or had other losses."""
    rng = random.Random(options.seed)
    unbroken, took = {}, {}
    for kind, more in KINDS.items():
        begin = time.monotonic()
        job = SmallJob(folder / f"hangs_{kind}", data, more)
        status = job.wait(STARTUP)
        job.end()
        if status != 0:
            raise SystemExit(f"{kind}: status {status}\n{job.log.read_text()}")
        unbroken[kind], took[kind] = losses(job.run), time.monotonic() - begin
    counts = {"killed": 0, "stopped": 0, "over": 0}
    hangs, wrong, back, times = 0, 0, 0, []
    for number in range(options.runs):
        kind = list(KINDS)[number % len(KINDS)]
        job = SmallJob(folder / f"hangs_{number}", data, KINDS[kind])
        try:
            what, begin = disturb(job, rng, took[kind])
            status = job.wait(max(0.0, begin + BOUND - time.monotonic()))
            lasted = time.monotonic() - begin
            counts[what] += 1
            started = sum("recovered_rank" in row for row in metrics(job.run))
            back += started
            problem = None
            if status is None:
                hangs += 1
                problem = f"hangs, {BOUND:g} s after a rank was {what}"
            elif status != 0 or losses(job.run) != unbroken[kind]:
                wrong += 1
                problem = f"status {status}" if status != 0 else "its losses are others"
            if problem:
                say(f"  FAILED: run {number} ({kind}, seed {options.seed}): {problem}\n"
                    + job.log.read_text()[-4000:])
            elif what != "over":
                times.append(lasted)
        finally:
            job.end()
        if not problem:
            shutil.rmtree(job.run, ignore_errors=True)
        if (number + 1) % 20 == 0:
            say(f"  {number + 1} of {options.runs} runs: {counts}, {hangs} hang, {wrong} wrong")
    say(f"  {options.runs} runs: {counts}; {back} times a rank was started anew; "
        f"{hangs} hang, {wrong} ended otherwise")
    case = f"{options.runs} jobs of {RANKS}, a rank killed or stopped at random"
    whole = statistics.median(took.values())
    for name, ours, peer, peer_name, unit in (
            ("hangs", hangs, 0, "goal", "runs"),
            ("ended with an error or other losses", wrong, 0, "goal", "runs"),
            ("a rank killed", counts["killed"], options.runs, "runs", "runs"),
            ("a rank stopped for up to 1 s", counts["stopped"], options.runs, "runs", "runs"),
            ("over before the fault", counts["over"], options.runs, "runs", "runs"),
            ("ranks started anew that did a step", back, counts["killed"], "runs with a kill",
             "ranks"),
            ("from the fault to the job's end, median", statistics.median(times or [0.0]), whole,
             "an undisturbed job, whole", "s"),
            ("from the fault to the job's end, worst", max(times, default=0.0), BOUND,
             "counts as a hang", "s")):
        print(json.dumps({
            "name": "recovery", "case": f"{case}: {name}", "ours": round(ours, 3),
            "peer": round(peer, 3), "peer_name": peer_name, "unit": unit,
            "ratio": 1.0 if ours == peer else round(peer / max(ours, 1e-3), 3),
            "repeats": options.runs}), flush=True)
    return hangs + wrong

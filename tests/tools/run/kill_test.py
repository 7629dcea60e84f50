"""Kills a rank, the launcher or the store of a training run at random moments, again and again.

After each kill: every process of the job is gone, whoever could still speak has named the cause,
and the run resumes from its last checkpoint. In the end its losses are those of a
run that nobody disturbed, to the last digit. WEFT_KILLS and WEFT_SEED: how many, and which.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import tiny_training
from processes import environment, is_zombie, of_job, program, until

# Taken out of the environment: the programs refuse settings that they do not know.
KILLS = int(os.environ.pop("WEFT_KILLS", "50"))
SEED = int(os.environ.pop("WEFT_SEED", "1"))
# Whoever dies is noticed by connections that close, and not by the silence after which a store's
# connection is given up (weft-store --silence), which is a "Connection timed out".
SILENCE = "timed out"
GONE_WITHIN = 60.0  # seconds, a bound on hangs
BUDGET = 400.0  # seconds for all kills: on a slow machine there are fewer, and the test says so
KILLS_AT_LEAST = 10
RANKS = 2
STEPS = 120
EVERY = 5  # steps between checkpoints
STARTUP = 120.0  # a bound on hangs


def losses(run: str) -> dict[int, str]:
    """Step -> loss as it is written. A last line that was cut by a kill is no line yet."""
    found: dict[int, str] = {}
    try:
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]
    except FileNotFoundError:
        return found
    for line in lines:
        row = json.loads(line)
        if "loss" in row:  # others tell of checkpoints
            found[row["step"]] = repr(row["loss"])
    return found


class Job:
    """weft-run with weft-train, and with a store of its own or weft-run's."""

    def __init__(self, name: str, config: str, run: str, own_store: bool):
        self.name = name
        self.run = run
        self.store = None
        self.environment = dict(os.environ, WEFT_JOB_SECRET="5a" * 32, WEFT_JOB_ID=name)
        command = [program("weft-run"), "-n", str(RANKS), "--job", name, "--grace", "1s"]
        if own_store:
            self.store = subprocess.Popen([program("weft-store"), "--json"], env=self.environment,
                                          stdout=subprocess.PIPE, text=True)
            command += ["--store", json.loads(self.store.stdout.readline())["address"]]
        command += ["--", program("weft-train"), config, "--run-dir", run]
        if os.path.isdir(os.path.join(run, "checkpoints")) and os.listdir(
                os.path.join(run, "checkpoints")):
            command.append("--resume")
        self.log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        self.launcher = subprocess.Popen(command, env=self.environment, stdout=self.log,
                                         stderr=self.log, stdin=subprocess.DEVNULL)

    def text(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def ranks(self) -> dict[int, int]:
        found = {}
        for pid in of_job(self.name):
            rank = environment(pid).get(b"RANK")
            if rank is not None and environment(pid).get(b"LOCAL_RANK") is not None:
                found[int(rank)] = pid
        return found

    def left(self) -> list[int]:
        ours = {self.launcher.pid, self.store.pid if self.store else 0}
        self.launcher.poll()
        alive = [pid for pid in of_job(self.name) if pid not in ours]
        return alive + ([self.launcher.pid] if self.launcher.returncode is None else [])

    def end(self):
        for process in (self.launcher, self.store):
            if process is not None:
                process.kill()
                process.wait()
        for pid in of_job(self.name):
            os.kill(pid, signal.SIGKILL)
        if self.store:
            self.store.stdout.close()
        self.log.close()


class KillTest(unittest.TestCase):
    def setUp(self):
        self.draw = random.Random(SEED)
        self.folder = tempfile.mkdtemp(prefix="weft-kill-")
        self.addCleanup(shutil.rmtree, self.folder)
        text = os.path.join(self.folder, "text.txt")
        tiny_training.write_text(text, self.draw)
        prefix = os.path.join(self.folder, "tiny")
        subprocess.run([program("weft-data"), "prepare", "--input", text, "--output-prefix",
                        prefix, "--vocab-size", "300"], check=True, stdout=subprocess.DEVNULL,
                       timeout=STARTUP)
        self.config = os.path.join(self.folder, "tiny.toml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(tiny_training.config(prefix, STEPS, global_batch=4, checkpoint_every=EVERY))
        self.count = 0

    def start(self, run: str, own_store: bool) -> Job:
        self.count += 1
        job = Job(f"kill-{os.getpid()}-{self.count}", self.config, run, own_store)
        self.addCleanup(lambda: job.log.closed or job.end())
        return job

    def finish(self, run: str):
        job = self.start(run, own_store=False)
        self.assertEqual(job.launcher.wait(STARTUP), 0, job.text())
        job.end()

    # Until the run has gone `steps` further, or has ended by itself.
    def await_steps(self, job: Job, run: str, steps: int):
        before = len(losses(run))
        until(lambda: job.launcher.poll() is not None or len(losses(run)) >= before + steps,
              STARTUP)

    def await_moment(self, job: Job, run: str):
        if self.draw.random() < 0.25:  # while it starts
            until(lambda: job.launcher.poll() is not None or len(job.ranks()) == RANKS, STARTUP)
            time.sleep(self.draw.uniform(0, 1.5))
        else:
            self.await_steps(job, run, self.draw.randint(1, 2 * EVERY))
            time.sleep(self.draw.uniform(0, 0.05))

    def kill(self, job: Job, target: str, run: str) -> str:
        """Returns what the job's output must say."""
        if target == "rank":
            ranks = job.ranks()
            rank = self.draw.randrange(RANKS)
            if rank not in ranks:
                return ""
            try:
                os.kill(ranks[rank], signal.SIGKILL)
            except ProcessLookupError:  # the run has just ended
                return ""
            return rf"rank {rank} \(pid \d+\) was killed by signal 9"
        if target == "launcher":
            job.launcher.kill()
            return ""
        job.store.kill()
        job.store.wait()
        # Ranks that have met need the store no more: going on is as good as ending. Hanging is not.
        before = len(losses(run))
        until(lambda: not job.left() or len(losses(run)) >= before + 2, GONE_WITHIN)
        if not job.left():
            return "" if len(losses(run)) == STEPS else "store"
        job.launcher.terminate()
        # Or the ranks were just about to end, for the store is gone.
        return r"SIGTERM|rank \d+ \(pid \d+\) (exited with status|was killed by signal)"

    def check(self, job: Job, target: str, expected: str, reference: dict[int, str], run: str):
        what = f"kill {self.count} of {target}, seed {SEED}"
        begun = time.monotonic()
        until(lambda: not job.left(), GONE_WITHIN)
        took = time.monotonic() - begun
        self.assertTrue(is_zombie(job.launcher.pid))
        if expected and job.launcher.returncode != 0:  # else all was done before the kill reached anybody
            self.assertRegex(job.text(), re.compile(expected), what)
        self.assertNotIn(SILENCE, job.text(), what)
        for step, loss in losses(run).items():
            self.assertEqual(loss, reference[step], f"{what}: step {step}\n{job.text()}")
        return took

    def test_random_kills(self):
        reference_run = os.path.join(self.folder, "reference")
        self.finish(reference_run)
        reference = losses(reference_run)
        self.assertEqual(len(reference), STEPS)
        begun = time.monotonic()
        kills = {"rank": 0, "launcher": 0, "store": 0}
        run = os.path.join(self.folder, "run-0")
        runs = 1
        slowest = 0.0
        while (sum(kills.values()) < min(KILLS, KILLS_AT_LEAST)
               or sum(kills.values()) < KILLS and time.monotonic() - begun < BUDGET):
            target = self.draw.choice(sorted(kills))
            job = self.start(run, own_store=target == "store")
            self.await_moment(job, run)
            if job.launcher.poll() is None:
                expected = self.kill(job, target, run)
                slowest = max(slowest, self.check(job, target, expected, reference, run))
                kills[target] += 1
            else:
                self.assertEqual(job.launcher.returncode, 0, job.text())
            if job.launcher.returncode == 0:
                self.assertEqual(losses(run), reference, job.text())
                run = os.path.join(self.folder, f"run-{runs}")
                runs += 1
            job.end()
        self.finish(run)
        self.assertEqual(losses(run), reference)
        print(f"kills: {kills}, finished runs: {runs}, the slowest end took {slowest:.2f} s")


if __name__ == "__main__":
    unittest.main()

"""weft-train under weft-driver and weft-executors: whatever is lost, the losses are those of the
unbroken run to the bit."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/bench"))
from _recovery import last_step, losses, prepare, process_of  # noqa: E402
from driven_job import PATIENCE, DrivenJob  # noqa: E402
from processes import environment, program, until  # noqa: E402

LEASES = {"test_a_driver_that_is_away_for_longer_than_the_lease_costs_no_step": "2s"}
STEPS = 600  # a rank or a host is lost, or the driver, long before the last


def setUpModule():
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    TrainingTest.folder = pathlib.Path(folder.name)
    TrainingTest.data = prepare(TrainingTest.folder)
    whole = subprocess.run([program("weft-run"), "-n", "4", "--output", "none", "--",
                            *TrainingTest.train(TrainingTest.folder / "whole")], timeout=PATIENCE,
                           check=False)
    assert whole.returncode == 0
    TrainingTest.unbroken = losses(TrainingTest.folder / "whole")
    assert len(TrainingTest.unbroken) == STEPS


class TrainingTest(unittest.TestCase):
    folder: pathlib.Path
    data: pathlib.Path
    unbroken: dict[int, float]  # losses of a run without faults

    @classmethod
    def train(cls, run: pathlib.Path) -> list[str]:
        settings = (f"data.prefix={cls.data}", f"train.steps={STEPS}", "train.precision=fp32",
                    "train.peak_tflops=1", "train.threads=1", "sample.tokens=0",
                    "checkpoint.every=10")
        source = os.environ["WEFT_SOURCE"]
        return [program("weft-train"), f"{source}/trainer/configs/tiny.toml", "--run-dir",
                str(run), *(word for setting in settings for word in ("--set", setting))]


class DrivenTrainingTest(TrainingTest):
    def setUp(self):
        name = self.id().rsplit(".", 1)[1]
        folder = self.folder / name
        folder.mkdir()
        self.run_folder = folder / "run"
        self.job = DrivenJob(folder, f"test-{os.getpid()}-{name}"[:63])
        self.addCleanup(self.job.close)
        self.job.drive("--recover", "20", "--replay-hosts", "1", lease=LEASES.get(name, "6s"))
        train = self.train(self.run_folder)
        # On host b alone, a replay has bits flipped in its memory.
        replay = shlex.join([*train, "--replay"])
        for host in "abc":
            flips = f"{program('weft-fault')} flip -- " if host == "b" else ""
            # Ranks of b and c ask the store through relays, those of a themselves.
            relay = "--no-relay" if host == "a" else "--relay"
            self.job.execute(host, relay, "--replay", flips + replay, "--replay-limit", f"{PATIENCE // 2}s",
                             command=train)
            if host != "c":
                self.job.until_said("driver", f"place node {'ab'.index(host)} on {host}")
        until(lambda: "c" in self.job.hosts(), PATIENCE)
        self.until_step(12)

    def until_step(self, step: int):
        until(lambda: last_step(self.run_folder) >= step or self.job.driver.poll() is not None,
              PATIENCE)
        self.assertIsNone(self.job.driver.poll(), self.all_said())

    def all_said(self) -> str:
        return "\n".join(f"{name}: {self.job.said(name)}" for name in ("driver", *"abc"))

    def process_of(self, rank: int, generation: int) -> int:
        """That the job's page names."""
        def found():
            return [one["pid"] for one in self.job.state()["ranks"]
                    if (one["rank"], one["generation"]) == (rank, generation) and one["pid"]]
        return until(found, PATIENCE)[0]

    def has_recovered(self, rank: int) -> bool:
        """Whether the page has the phases of that rank's first recovery."""
        wanted = rf"rank {rank} \(generation 1\) is back \d+ ms .*: start \d+, .*first step \d+ ms$"
        try:
            told = self.job.state()["recoveries"]
        except OSError as error:  # the run is over
            raise AssertionError(self.all_said()) from error
        return any(re.match(wanted, line) for line in told)

    def finish(self):
        self.assertEqual(self.job.driver.wait(PATIENCE), 0, self.all_said())
        self.assertEqual(losses(self.run_folder), self.unbroken)

    def test_ranks_are_killed(self):
        self.assertEqual(environment(self.process_of(0, 0))[b"WEFT_STORE"].decode(),
                         self.job.address)
        self.assertTrue(environment(self.process_of(3, 0))[b"WEFT_STORE"].startswith(b"unix:"))
        for rank, step in ((3, 20), (0, 40)):
            self.until_step(step)
            os.kill(self.process_of(rank, 0), signal.SIGKILL)
            self.job.until_said("driver", rf"start rank {rank} \(generation 1\)")
            # The page has the phases of each recovery, those of earlier processes of rank 0 too.
            until(lambda: self.has_recovered(3), PATIENCE)
        self.finish()

    def test_a_host_is_lost(self):
        self.job.executors["b"].kill()
        self.job.until_said("c", "this host is node 1 of 2")
        self.finish()

    def test_a_replay_names_the_host_that_flips_bits(self):
        self.job.call("POST", "/replay", self.job.token())
        self.job.until_said("driver", "evict b from node 1: it computes wrongly: all groups with b ")
        self.job.until_said("c", "this host is node 1 of 2")
        self.finish()

    def test_the_driver_is_killed_and_a_rank_while_it_is_gone(self):
        pid = self.process_of(2, 0)
        self.job.driver.kill()
        self.job.driver.wait(PATIENCE)
        os.kill(pid, signal.SIGKILL)
        self.job.drive("--recover", "20", lease="6s")
        self.finish()

    def test_a_driver_that_is_away_for_longer_than_the_lease_costs_no_step(self):
        self.job.driver.kill()
        self.job.driver.wait(PATIENCE)
        for host in "ab":
            self.job.until_said(host, r"was not reached for 2s \(the job's lease\); the ranks go on")
        before = last_step(self.run_folder)
        until(lambda: last_step(self.run_folder) > before, PATIENCE)
        self.job.drive(lease="2s")
        self.finish()
        said = self.all_said()
        self.assertNotRegex(said, r"ending all ranks|generation 1|evict")
        rows = map(json.loads, (self.run_folder / "metrics.jsonl").read_text().splitlines())
        steps = [row["step"] for row in rows if "loss" in row]
        self.assertEqual(steps, sorted(set(steps)))  # none was done again


class LaunchedTrainingTest(TrainingTest):
    def launch(self, name: str, recover: int):
        """A run of weft-run's; ranks that are stopped are found after 2 s."""
        self.run_folder = self.folder / name
        self.log = self.folder / f"{name}.log"
        with self.log.open("w", encoding="utf-8") as log:
            self.launcher = subprocess.Popen(
                [program("weft-run"), "-n", "4", "--recover", str(recover), "--still", "2s",
                 "--output", "none", "--", *self.train(self.run_folder)], stdout=log, stderr=log)
        self.addCleanup(self.launcher.kill)

    def stop_after(self, step: int, rank: int):
        until(lambda: last_step(self.run_folder) >= step or self.launcher.poll() is not None, PATIENCE)
        os.kill(process_of(self.run_folder, rank), signal.SIGSTOP)

    def test_a_rank_that_stands_still_is_started_anew(self):
        self.launch("launched", recover=2)
        self.stop_after(12, rank=2)
        status = self.launcher.wait(PATIENCE)
        said = self.log.read_text(encoding="utf-8")
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"rank 2 \(pid \d+\): diagnosis: stopped rank \(process\) of 2.*"
                               r"starting it anew \(1 of 2\)")
        self.assertEqual(losses(self.run_folder), self.unbroken)

    def test_a_job_that_stands_still_ends_once_no_rank_may_be_started_anew(self):
        self.launch("given-up", recover=1)
        self.stop_after(12, rank=2)
        self.stop_after(40, rank=1)
        status = self.launcher.wait(PATIENCE)
        said = self.log.read_text(encoding="utf-8")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"diagnosis: stopped rank \(process\) of 1.*; ranks were started anew 1 "
                               r"times, of 1 \(--recover\)")
        self.assertIsNone(process_of(self.run_folder, 1))


if __name__ == "__main__":
    unittest.main()

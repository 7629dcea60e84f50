"""weft-train under weft-driver and weft-executors: whatever is lost, the losses are those of the
unbroken run to the bit."""

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
from driven_job import PATIENCE, DrivenJob  # noqa: E402
from processes import environment, program, until  # noqa: E402
from recovery import last_step, losses, prepare  # noqa: E402

STEPS = 600  # a rank or a host is lost, or the driver, long before the last


class DrivenTrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.data = prepare(cls.folder)
        whole = subprocess.run([program("weft-run"), "-n", "4", "--output", "none", "--",
                                *cls.train(cls.folder / "whole")], timeout=PATIENCE, check=False)
        assert whole.returncode == 0
        cls.unbroken = losses(cls.folder / "whole")
        assert len(cls.unbroken) == STEPS

    @classmethod
    def train(cls, run: pathlib.Path) -> list[str]:
        settings = (f"data.prefix={cls.data}", f"train.steps={STEPS}", "train.precision=fp32",
                    "train.peak_tflops=1", "train.threads=1", "sample.tokens=0",
                    "checkpoint.every=10")
        source = os.environ["WEFT_SOURCE"]
        return [program("weft-train"), f"{source}/trainer/configs/tiny.toml", "--run-dir",
                str(run), *(word for setting in settings for word in ("--set", setting))]

    def setUp(self):
        name = self.id().rsplit(".", 1)[1]
        folder = self.folder / name
        folder.mkdir()
        self.run_folder = folder / "run"
        self.job = DrivenJob(folder, f"test-{os.getpid()}-{name}"[:63])
        self.addCleanup(self.job.close)
        self.job.drive("--recover", "20", "--replay-hosts", "1", lease="6s")
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


if __name__ == "__main__":
    unittest.main()

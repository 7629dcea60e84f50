"""Training runs of four ranks, which any launcher starts: what they lose, and how they end.

A launcher is a function that runs a command as the ranks of a job and returns (exit status, output):

    class MyTest(jobs.Test):
        variable = "RANK"                               # what a rank finds its number in
        def launch(self, command: list[str]): ...
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parent / "tools/run")]
import tiny_training  # pylint: disable=wrong-import-position
from ports import free_port  # pylint: disable=wrong-import-position

BIN = pathlib.Path(os.environ["WEFT_BIN"])
RANKS = 4
STEPS = 6
PATIENCE = 200  # seconds, for a launcher that hangs
# What they end with, whoever started them.
NAMED = (r"weft-train: .*rank RANK is gone: .*rank RANK \(process \d+ on \S+\) has died.*"
         r"\[process rank=RANK\]")


def environment(**more: str) -> dict[str, str]:
    """This process's, without what another launcher left in it."""
    other = re.compile(r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT|"
                       r"TORCHELASTIC_.*|OMPI_.*|PMIX_.*|SLURM_.*|WEFT_JOB_.*|WEFT_STORE.*|WEFT_FABRIC_INSIDE|WEFT_SLURM_ROOT)")
    kept = {name: value for name, value in os.environ.items() if not other.fullmatch(name)}
    return {**kept, **more}


def call(command: list, **variables: str) -> tuple[int, str]:
    done = subprocess.run([str(word) for word in command], text=True, timeout=PATIENCE,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                          env=environment(**variables))
    return done.returncode, done.stdout


def weft_run(command: list[str]) -> tuple[int, str]:
    return call([BIN / "weft-run", "-n", RANKS, "--", *command])


def torchrun(command: list[str]) -> tuple[int, str]:
    """With torchrun's variables alone, as scripts set them."""
    port = str(free_port())
    ranks = [subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        env=environment(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank),
                        LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
             for rank in range(RANKS)]
    try:
        output = "".join(rank.communicate(timeout=PATIENCE)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return next((rank.returncode for rank in ranks if rank.returncode), 0), output


class Run:
    """What is left of one run."""

    def __init__(self, folder: pathlib.Path, status: int, output: str):
        self.status = status
        self.logs = [self._read(folder / f"rank-{rank}.log") for rank in range(RANKS)]
        ended = [self._read(folder / f"ended-{rank}") for rank in range(RANKS)]
        self.ended = [int(status) if status else None for status in ended]
        self.report = f"launcher ended with {status}\n{output}\n" + "".join(
            f"-- rank {rank} ended with {self.ended[rank]!r}\n{self.logs[rank][-3000:]}\n"
            for rank in range(RANKS))
        # Whole lines: of a rank that was killed the last one may be cut.
        rows = [json.loads(line) for line in self._read(folder / "run/metrics.jsonl").split("\n")[:-1]]
        # As they are written: every bit of them.
        self.losses = [(row["step"], repr(row["loss"]), repr(row["grad_norm"])) for row in rows]

    @staticmethod
    def _read(path: pathlib.Path) -> str:
        return path.read_text(errors="replace") if path.exists() else ""


class Test(unittest.TestCase):
    variable = "RANK"

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="weft-launch-", dir="/tmp")
        cls.addClassCleanup(cls.scratch.cleanup)
        folder = pathlib.Path(cls.scratch.name)
        draw = random.Random(1)
        words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 7))) for _ in range(300)]
        (folder / "text").write_text("".join(" ".join(draw.choices(words, k=60)) + ".\n\n"
                                             for _ in range(200)))
        subprocess.run([BIN / "weft-data", "prepare", "--input", folder / "text", "--output-prefix",
                        folder / "tiny", "--vocab-size", "300"], check=True, timeout=PATIENCE,
                       stdout=subprocess.DEVNULL)
        cls.prefix = folder / "tiny"

    def config(self, steps: int) -> str:
        return tiny_training.config(self.prefix, steps, global_batch=8, checkpoint_every=0)

    def launch(self, command: list[str]) -> tuple[int, str]:
        raise NotImplementedError

    def train(self, launch, variable: str, steps=STEPS, killed=-1, settings=()) -> Run:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.scratch.name))
        pairs = [word for setting in settings for word in ("--set", setting)]
        (folder / "config.toml").write_text(self.config(steps))
        status, output = launch(
            [sys.executable, "-B", str(FOLDER / "rank.py"), str(folder), str(RANKS), variable,
             str(killed), str(folder / "run/metrics.jsonl"), str(BIN / "weft-train"),
             str(folder / "config.toml"), "--run-dir", str(folder / "run"), *pairs])
        return Run(folder, status, output)


SEVERAL_AXES = ["model.layers=2", "parallel.tensor=2", "parallel.pipeline=2"]


class LauncherTests:
    """Mixed into a launcher's Test."""

    of_weft_run: dict[tuple, Run] = {}  # by settings; all classes of a script make the same data
    # Of the test in which a rank is killed: which one, in which layout. Rank 0 serves the store where no launcher
    # does. Where layouts have several axes, some ranks share no small group with the dead one: they wait for others
    # that end because of it.
    kills = [(0, []), (3, SEVERAL_AXES)]

    def test_the_losses_are_those_of_weft_run(self):
        for layout in ([], SEVERAL_AXES):
            with self.subTest(layout=layout):
                expected = self.of_weft_run.get(tuple(layout)) or self.train(weft_run, "RANK", settings=layout)
                self.of_weft_run[tuple(layout)] = expected
                self.assertEqual(expected.status, 0, expected.report)
                self.assertEqual([row[0] for row in expected.losses], list(range(1, STEPS + 1)))
                got = self.train(self.launch, self.variable, settings=layout)
                self.assertEqual(got.status, 0, got.report)
                self.assertEqual(got.losses, expected.losses, got.report)

    def test_when_a_rank_is_killed_the_others_end_and_name_it(self):
        for killed, layout in self.kills:
            with self.subTest(killed=killed, layout=layout):
                got = self.train(self.launch, self.variable, steps=100000, killed=killed, settings=layout)
                self.assertNotEqual(got.status, 0, got.report)
                self.assertEqual(got.ended[killed], -signal.SIGKILL, got.report)
                for rank in set(range(RANKS)) - {killed}:
                    self.assertEqual(got.ended[rank], 1, got.report)  # by itself: one that hangs has 124
                    self.assertRegex(got.logs[rank], NAMED.replace("RANK", str(killed)), got.report)

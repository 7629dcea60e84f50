"""Ranks that torchrun starts, those that find its variables and no more, and weft-run's."""

import os
import pathlib
import unittest

import jobs

PYTHON = pathlib.Path(os.environ.get(
    "WEFT_BENCH_PYTHON", pathlib.Path(os.environ["WEFT_SOURCE"]) / ".deps/bench-venv/bin/python"))
TORCHRUN = PYTHON.parent / "torchrun"


class VariablesTest(jobs.LauncherTests, jobs.Test):
    def launch(self, command: list[str]) -> tuple[int, str]:
        return jobs.torchrun(command)


class WeftRunTest(jobs.LauncherTests, jobs.Test):
    kills = [*jobs.LauncherTests.kills, (2, []), (3, ["parallel.tensor=2"]),
             (3, ["model.layers=2", "parallel.context=2", "parallel.pipeline=2"])]

    def launch(self, command: list[str]) -> tuple[int, str]:
        return jobs.weft_run(command)


@unittest.skipUnless(TORCHRUN.is_file(), "no torchrun (tools/dev test torch makes one)")
class TorchrunTest(jobs.LauncherTests, jobs.Test):
    def launch(self, command: list[str]) -> tuple[int, str]:
        return jobs.call([TORCHRUN, "--standalone", "--nproc-per-node", jobs.RANKS, "--no-python",
                          *command], OMP_NUM_THREADS="1")


if __name__ == "__main__":
    unittest.main(verbosity=2)

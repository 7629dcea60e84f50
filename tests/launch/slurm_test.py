"""Ranks that Slurm's srun starts, on one host and on three (this machine under three names)."""

import os
import pathlib
import sys
import unittest

import jobs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fabric"))
import slurm  # pylint: disable=wrong-import-position

HOSTS = ["h0", "h1", "h2"]
SECRET = "5a" * 32
BENCH = [str(jobs.BIN / "weft-bw"), "--op", "all_reduce", "-b", "4K", "-e", "4K"]
# Rank 0 is not on the first host, whose first task serves the store.
PLACES = ["h2", "h1", "h2", "h0"]


class SlurmTest(jobs.LauncherTests, jobs.Test):
    variable = "SLURM_PROCID"

    def setUp(self):
        # For each test, since Slurm 22.05's controller crashes after a step of arbitrary distribution.
        self.cluster = self.enterContext(slurm.Cluster(HOSTS, jobs.RANKS))

    def call(self, *command, **variables: str) -> tuple[int, str]:
        done = self.cluster.call(*command, patience=jobs.PATIENCE, **variables)
        return done.returncode, done.stdout + done.stderr

    def launch(self, command: list[str]) -> tuple[int, str]:
        return self.call("srun", "-N", "1", "-n", str(jobs.RANKS), *command)

    def bench_on_all_hosts(self, **variables: str) -> tuple[int, str]:
        hostfile = pathlib.Path(self.scratch.name) / "hosts"
        hostfile.write_text("\n".join(PLACES) + "\n")
        return self.call("srun", "-N", str(len(HOSTS)), "-n", str(len(PLACES)),
                         "--distribution=arbitrary", *BENCH, SLURM_HOSTFILE=str(hostfile), **variables)

    def test_ranks_on_several_hosts_meet_at_the_first_task_of_the_first(self):
        status, output = self.bench_on_all_hosts(WEFT_JOB_SECRET=SECRET)
        self.assertEqual(status, 0, output)
        self.assertIn("weft-bw: 4 ranks", output)

    def test_several_hosts_without_a_secret_are_an_error_that_says_what_to_write(self):
        status, output = self.bench_on_all_hosts()
        self.assertNotEqual(status, 0, output)
        self.assertEqual(output.count("in the batch script, before srun: export WEFT_JOB_SECRET="
                                      "$(openssl rand -hex 32)"), len(PLACES), output)

    def test_the_batch_script_of_the_documentation_trains(self):
        folder = pathlib.Path(self.scratch.name)
        (folder / "config.toml").write_text(self.config(jobs.STEPS))
        script = pathlib.Path(os.environ["WEFT_SOURCE"]) / "docs/launch/train.sbatch"
        status, output = self.call(
            "sbatch", "--wait", "--nodes", "2", "--ntasks-per-node", "2", "--output", folder / "log",
            script, folder / "config.toml", "--run-dir", folder / "batch")
        log = folder / "log"
        output += log.read_text() if log.exists() else ""
        self.assertEqual(status, 0, output)
        self.assertEqual((folder / "batch/metrics.jsonl").read_text().count("\n"), jobs.STEPS, output)
        self.assertIn("rank 3 of 4", (folder / "batch/logs/rank-3.log").read_text())

    def test_a_program_of_the_batch_script_itself_is_alone(self):
        folder = pathlib.Path(self.scratch.name)
        script = folder / "alone"
        script.write_text(f"#!/bin/sh\nexec {' '.join(BENCH)}\n")
        status, output = self.call("sbatch", "--wait", "-N", "2", "-n", "4", "--output",
                                   folder / "alone.log", script)
        output += (folder / "alone.log").read_text()
        self.assertEqual(status, 0, output)
        self.assertIn("weft-bw: 1 ranks", output)


if __name__ == "__main__":
    slurm.enter(HOSTS)
    unittest.main()

"""weft-driver in an allocation of Slurm's, by the batch script of the documentation: a bad node is
drained and replaced, and a job without hosts is queued again."""

import concurrent.futures
import os
import pathlib
import sys
import tempfile
import time
import unittest

import jobs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fabric"))
import slurm  # pylint: disable=wrong-import-position

HOSTS = ["h0", "h1", "h2"]
SCRIPT = pathlib.Path(os.environ["WEFT_SOURCE"]) / "docs/launch/driver.sbatch"


class SlurmDriverTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cluster = self.enterContext(slurm.Cluster(HOSTS, 4))

    def run_batch(self, *, nodes: int, program: str, **variables: str) -> tuple[int, str]:
        """Of two nodes of one rank, each of which runs `program` in a shell; status and output."""
        log = self.folder / "log"
        with concurrent.futures.ThreadPoolExecutor() as pool:
            batch = pool.submit(
                self.cluster.call, "sbatch", "--wait", "--nodes", str(nodes), "--chdir",
                str(self.folder), "--open-mode", "append", "--output", str(log), str(SCRIPT), "2", "1",
                "sh", "-c", program, patience=jobs.PATIENCE, WEFT_BIN=str(jobs.BIN), **variables)
            while not batch.done():
                # Slurm lets a job that was queued again rest for two minutes.
                if " Restarts=1 " in self.cluster.call("scontrol", "show", "job", "1").stdout:
                    self.cluster.call("scontrol", "update", "JobId=1", "StartTime=now")
                time.sleep(0.5)
        done = batch.result()
        text = log.read_text() if log.exists() else ""
        return done.returncode, done.stdout + done.stderr + text

    def drained(self) -> list[str]:
        """Nodes and reasons."""
        lines = self.cluster.run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N|%E").splitlines()
        return sorted(set(lines))

    def test_a_node_whose_device_fails_is_drained_and_a_spare_takes_its_place(self):
        # It fails on its first node again after that has passed its self-test. Rank 0 ends after it.
        status, output = self.run_batch(nodes=3, program=(
            "echo rank $RANK generation ${WEFT_GENERATION:-0} on $SLURMD_NODENAME; "
            "if [ $RANK = 1 ] && [ -z \"${WEFT_GENERATION:-}\" ]; then echo $SLURMD_NODENAME > bad; fi; "
            "if [ $RANK = 1 ] && [ $SLURMD_NODENAME = $(cat bad) ]; then "
            "echo 'mlx5_0 has failed [device rank=1 device=mlx5_0]' >&2; exit 1; fi; "
            "if [ $RANK = 1 ]; then touch moved; fi; "
            "for i in $(seq 900); do [ -e moved ] && break; sleep 0.2; done; sleep 2"))
        self.assertEqual(status, 0, output)
        self.assertRegex(output, "rank 1 generation 2 on h[0-2]")
        drained = self.drained()
        self.assertEqual(len(drained), 1, (drained, output))
        self.assertIn("|weft: rank 1 exited with status 1: mlx5_0 has failed", drained[0])
        node = drained[0].split("|")[0]
        self.assertIn(f"rank 1 generation 0 on {node}", output)
        self.assertIn(f"rank 1 generation 1 on {node}", output)
        self.assertNotIn(f"rank 1 generation 2 on {node}", output)

    def test_a_job_without_hosts_is_queued_again(self):
        # An executor that is killed, the parent of the rank's keeper, leaves its node without a host;
        # there is no spare.
        status, output = self.run_batch(
            nodes=2, WEFT_DRIVER="--lease 2s --vacancy 2s", program=(
                "echo rank $RANK restart ${SLURM_RESTART_COUNT:-0}; "
                "if [ $RANK = 1 ] && [ ${SLURM_RESTART_COUNT:-0} = 0 ]; then "
                "kill -9 $(awk '/^PPid/ {print $2}' /proc/$PPID/status); fi; "
                "if [ ${SLURM_RESTART_COUNT:-0} = 0 ]; then sleep 100; fi; sleep 1"))
        self.assertIn("had no host for 2s", output)
        self.assertIn("queues the job again", output)
        self.assertIn("rank 1 restart 1", output)
        self.assertEqual(status, 0, output)


if __name__ == "__main__":
    slurm.enter(HOSTS)
    unittest.main()

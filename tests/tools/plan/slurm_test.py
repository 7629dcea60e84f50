"""Slurm starts the ranks of a plan where the plan has them, on a cluster of its own."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.environ["WEFT_SOURCE"] + "/tests/fabric")
import slurm  # pylint: disable=wrong-import-position

# 16 hosts in two pods, of which the job gets twelve, mixed: no launcher finds the order by itself.
FABRIC = "rail-optimised:pods=2,groups=2,hosts_per_group=4,rails=4,spines=2,cores=2"
HOSTS = "h3,h8,h4,h12,h1,h9,h15,h13,h2,h10,h6,h14"
RANKS_A_HOST = 4


def planned(folder: pathlib.Path) -> list[tuple[str, int]]:
    """The plan's order, [rank]: host, GPU."""
    subprocess.run([os.environ["WEFT_BIN"] + "/weft-plan", "order", "--fabric", FABRIC, "--hosts",
                    HOSTS, "--layout", "tp=4,dp=3,pp=4", "--model", "gpt-13b,global_batch=48",
                    "--out", folder], check=True, stdout=subprocess.DEVNULL)
    rows = [line.split() for line in (folder / "ranks.txt").read_text().splitlines()
            if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    return [(row[1], int(row[2])) for row in rows]


# What a task says of where it is: SLURM_PROCID and so on, a line.
TASK = "sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID'"


def placed(output: str) -> list[tuple[str, int]]:
    rows = sorted((line.split() for line in output.splitlines()), key=lambda row: int(row[0]))
    return [(row[1], int(row[2])) for row in rows]


class SlurmTest(unittest.TestCase):
    def test_ranks_run_where_the_plan_has_them(self):
        hosts = HOSTS.split(",")
        ranks = len(hosts) * RANKS_A_HOST
        with tempfile.TemporaryDirectory() as folder, slurm.Cluster(hosts, RANKS_A_HOST) as cluster:
            folder = pathlib.Path(folder)
            plan = planned(folder)
            self.assertEqual(len(plan), ranks)
            # As a job does it: first the hosts, then the order on them.
            srun = f"{slurm.program('srun')} -n {ranks}"
            output = cluster.run(
                "salloc", "-Q", "-N", str(len(hosts)), "-n", str(ranks), "sh", "-c",
                f"{srun} {TASK} && echo && SLURM_HOSTFILE={folder}/slurm.hosts "
                f"{srun} --distribution=arbitrary {TASK}")
            by_itself, with_list = output.split("\n\n")
            self.assertEqual(placed(with_list), plan)
            self.assertNotEqual(placed(by_itself), plan, "the list changed nothing")


if __name__ == "__main__":
    slurm.enter(HOSTS.split(","))
    unittest.main()

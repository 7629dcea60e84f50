"""Ranks that Open MPI's mpirun starts, on one host and on two (this machine under two names)."""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import jobs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fabric"))
import netns  # pylint: disable=wrong-import-position

# Its own messages stay on this machine.
VARIABLES = {"OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_ALLOW_RUN_AS_ROOT": "1",
             "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
BENCH = [jobs.BIN / "weft-bw", "--op", "all_reduce", "-b", "4K", "-e", "4K"]


def mpirun(*words, **variables: str) -> tuple[int, str]:
    return jobs.call(["mpirun", "--oversubscribe", *words], **VARIABLES, **variables)


def on_two_hosts(*words, **variables: str) -> tuple[int, str]:
    """Two ranks on each, in a network of their own."""
    start = 'ip link set lo up && hostname a && exec "$@"'
    return jobs.call(["unshare", "--net", "--uts", "sh", "-c", start, "sh", "mpirun", "--oversubscribe",
                      "--mca", "plm_rsh_agent", jobs.FOLDER / "second_host.sh", "--host", "a:2,b:2",
                      "-n", 4, *words, *BENCH], **VARIABLES, **variables)


class MpirunTest(jobs.LauncherTests, jobs.Test):
    variable = "OMPI_COMM_WORLD_RANK"

    def launch(self, command: list[str]) -> tuple[int, str]:
        return mpirun("-n", jobs.RANKS, *command)

    def test_a_contradicting_rank_of_the_environment_is_an_error(self):
        status, output = mpirun("-n", 2, "-x", "RANK=0", "-x", "WORLD_SIZE=2", "-x",
                                "MASTER_ADDR=127.0.0.1", "-x", "MASTER_PORT=1", *BENCH)
        self.assertNotEqual(status, 0, output)
        self.assertIn("OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=2 contradict", output)

    @unittest.skipIf(os.geteuid() != 0, "names of hosts and networks of one's own need root")
    def test_ranks_on_several_hosts_meet_at_rank_zeros(self):
        variables = {"WEFT_JOB_SECRET": "5a" * 32, "MASTER_ADDR": "127.0.0.1"}
        status, output = on_two_hosts("-x", "WEFT_JOB_SECRET", "-x", "MASTER_ADDR", **variables)
        self.assertEqual(status, 0, output)
        self.assertIn("weft-bw: 4 ranks, rank 0 is pid", output)
        status, output = on_two_hosts()
        self.assertNotEqual(status, 0, output)
        self.assertIn("WEFT_JOB_SECRET is not set", output)
        self.assertIn("mpirun -x MASTER_ADDR=node0", output)


if __name__ == "__main__":
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True,
                             check=False).stdout if shutil.which("mpirun") else ""
    if "Open MPI" not in version:
        netns.skip("there is no mpirun of Open MPI (Debian: openmpi-bin)")
    unittest.main(verbosity=2)

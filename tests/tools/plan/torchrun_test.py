"""torchrun, started on every host by the script of a plan, gives ranks as the plan has them."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parents[1]), str(FOLDER.parents[1] / "fabric")]
import netns  # pylint: disable=wrong-import-position
from ports import free_port  # pylint: disable=wrong-import-position

PATIENCE = 150  # seconds
PYTHON = pathlib.Path(os.environ.get(
    "WEFT_BENCH_PYTHON", FOLDER.parents[2] / ".deps/bench-venv/bin/python"))
# Six hosts in two pods, mixed, of which the job gets three.
FABRIC = "rail-optimised:pods=2,groups=2,hosts_per_group=4,rails=2,spines=2,cores=2"
HOSTS = ["h8", "h3", "h1"]
# What a rank leaves behind: where torchrun put it.
PROGRAM = """
import os, pathlib, sys
e = os.environ
path = pathlib.Path(sys.argv[1]) / ("rank" + e["RANK"])
path.write_text(f"{e['RANK']} {e['WEFT_NODE']} {e['LOCAL_RANK']} {e['WORLD_SIZE']}")
"""


class TorchrunTest(unittest.TestCase):
    def test_ranks_run_where_the_plan_has_them(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            subprocess.run([os.environ["WEFT_BIN"] + "/weft-plan", "order", "--fabric", FABRIC,
                            "--hosts", ",".join(HOSTS), "--layout", "tp=2,dp=3",
                            "--traffic", "axes=dp,collective=all_reduce,bytes=1GB", "--out", folder],
                           check=True, stdout=subprocess.DEVNULL)
            plan = [line for line in (folder / "ranks.txt").read_text().splitlines()
                    if not line.startswith("#")]
            (folder / "train.py").write_text(PROGRAM)
            port = str(free_port())
            agents = [subprocess.Popen(
                ["sh", folder / "torchrun.sh", folder / "train.py", folder],
                env={**os.environ, "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
                     "WEFT_NODE": host, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for host in HOSTS]
            try:
                for host, agent in zip(HOSTS, agents):
                    output = agent.communicate(timeout=PATIENCE)[0]
                    self.assertEqual(agent.returncode, 0, f"{host}: {output}")
            finally:
                for agent in agents:
                    agent.kill()
                    agent.wait()
            placed = [(folder / f"rank{rank}").read_text() for rank in range(len(plan))]
            self.assertEqual(placed, [f"{row} {len(plan)}" for row in plan])


if __name__ == "__main__":
    if not (PYTHON.parent / "torchrun").is_file():
        netns.skip("no torchrun (tools/dev bench makes one in .deps/bench-venv)")
    unittest.main()

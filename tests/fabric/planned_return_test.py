"""A connection leaves its planned way when that dies, for one that lives, and goes back when it answers again."""

import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import netns  # noqa: E402
import planned  # noqa: E402

PATIENCE = 120  # seconds for each step, on a busy machine
LEAST = 1 << 20  # bytes over a spine that are no acknowledgements


class PlannedReturnTest(unittest.TestCase):
    def start(self, fabric, rank, plan, log):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                           MASTER_ADDR=fabric.address(0), MASTER_PORT="29500", WEFT_JOB_SECRET=self.secret,
                           WEFT_PLAN=str(plan), WEFT_LOG_LEVEL="info")
        words = [planned.BIN / "weft-bw", "link", "--transport", "tcp", "-s", "256K", "-D", f"{4 * PATIENCE}s", "-q", 1,
                 "--set", "tcp.dead_after=4s", "--set", "tcp.sockets=1"]
        return fabric.start(rank, words, env=environment, stdout=log, stderr=log)

    def wait_for_spine(self, fabric, programs, spines):
        """Until one of `spines` carries data from leaf 0, which is given."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            before = fabric.counters()[0]
            time.sleep(0.3)  # over which bytes are counted
            sent = [b - a for a, b in zip(before, fabric.counters()[0])]
            for program in programs:
                self.assertIsNone(program.poll(), self.log())
            for spine in spines:
                if sent[spine] >= LEAST and sent[spine] == max(sent):
                    return spine
        self.fail(f"no data over spines {spines}: {sent}\n{self.log()}")

    def log(self):
        return self.log_path.read_text()[-4000:]

    def test_a_dead_spine_is_left_and_taken_again(self):
        self.secret = secrets.token_hex(32)
        with netns.Fabric(leaves=2, spines=3, hosts_per_leaf=1, mbit=200) as fabric, \
                tempfile.TemporaryDirectory(prefix="weft-return-") as name:
            folder = pathlib.Path(name)
            self.log_path = folder / "log"
            planned.plan(*planned.write_fabric(fabric, folder), folder / "plan", 2, 1 << 20)
            spine = next(int(choices["leaf0"].split("/")[0])
                         for rank, _, choices in planned.Plan(folder / "plan").flows if rank == 0)
            others = [other for other in range(fabric.spines) if other != spine]
            with self.log_path.open("w") as log:
                programs = [self.start(fabric, rank, folder / "plan", log) for rank in range(2)]
                try:
                    self.wait_for_spine(fabric, programs, [spine])
                    # It drops what it is sent, and no router is told.
                    fabric.at(f"s{spine}", ["sysctl", "-qw", "net.ipv4.ip_forward=0"])
                    self.wait_for_spine(fabric, programs, others)
                    self.assertIn("its successor takes", self.log())
                    fabric.at(f"s{spine}", ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
                    self.wait_for_spine(fabric, programs, [spine])
                    self.assertIn("goes back to its planned way", self.log())
                finally:
                    for program in programs:
                        program.kill()
                        program.wait()


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)

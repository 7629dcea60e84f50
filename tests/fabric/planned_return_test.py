"""A connection leaves its way when that dies, for one that lives, and goes back when its planned one answers again.

tcp.dead_after is an hour: what happens here does not wait for it.
"""

import os
import pathlib
import re
import secrets
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
    def setUp(self):
        self.secret = secrets.token_hex(32)
        folder = tempfile.TemporaryDirectory(prefix="weft-return-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log_path = self.folder / "log"

    def start(self, fabric, rank, plan, log):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                           MASTER_ADDR=fabric.address(0), MASTER_PORT="29500", WEFT_JOB_SECRET=self.secret,
                           WEFT_LOG_LEVEL="info", **({"WEFT_PLAN": str(plan)} if plan else {}))
        words = [planned.BIN / "weft-bw", "link", "--transport", "tcp", "-s", "256K", "-D", f"{4 * PATIENCE}s", "-q", 1,
                 "--set", "tcp.dead_after=1h", "--set", "tcp.sockets=1"]
        return fabric.start(rank, words, env=environment, stdout=log, stderr=log)

    def run_job(self, fabric, plan, check):
        """`check` of the programs, while they run."""
        with self.log_path.open("w") as log:
            programs = [self.start(fabric, rank, plan, log) for rank in range(2)]
            try:
                check(programs)
            finally:
                for program in programs:
                    program.kill()
                    program.wait()

    def make_plan(self, fabric):
        """The plan, and the spine of rank 0's flow."""
        plan = self.folder / "plan"
        planned.plan(*planned.write_fabric(fabric, self.folder), plan, 2, 1 << 20)
        return plan, next(int(choices["leaf0"].split("/")[0])
                          for rank, _, choices in planned.Plan(plan).flows if rank == 0)

    @staticmethod
    def fabric():
        return netns.Fabric(leaves=2, spines=3, hosts_per_leaf=1, mbit=200)

    @staticmethod
    def set_dead(fabric, spine, dead):
        """It drops what it is sent, and no router is told."""
        fabric.at(f"s{spine}", ["sysctl", "-qw", f"net.ipv4.ip_forward={0 if dead else 1}"])

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
        return self.log_path.read_text()[-8000:]

    def test_a_dead_spine_is_left_and_taken_again(self):
        with self.fabric() as fabric:
            plan, spine = self.make_plan(fabric)
            others = [other for other in range(fabric.spines) if other != spine]

            def check(programs):
                self.wait_for_spine(fabric, programs, [spine])
                self.set_dead(fabric, spine, True)
                self.wait_for_spine(fabric, programs, others)
                self.assertIn("its successor takes", self.log())
                self.set_dead(fabric, spine, False)
                self.wait_for_spine(fabric, programs, [spine])
                # A socket that was lost meanwhile may have come back to it by its turn.
                self.assertRegex(self.log(), "goes back to its planned way|"
                                             f"its successor takes leaf0:{spine}/")

            self.run_job(fabric, plan, check)

    def test_a_new_link_takes_another_way_where_its_planned_one_is_dead_and_goes_back(self):
        with self.fabric() as fabric:
            plan, spine = self.make_plan(fabric)
            others = [other for other in range(fabric.spines) if other != spine]
            self.set_dead(fabric, spine, True)

            def check(programs):
                self.wait_for_spine(fabric, programs, others)
                self.assertRegex(self.log(), "nothing answers from .* on the way leaf0:.* tries leaf0")
                self.set_dead(fabric, spine, False)
                self.wait_for_spine(fabric, programs, [spine])

            self.run_job(fabric, plan, check)

    def test_a_dead_spine_is_left_without_a_plan_too(self):
        with self.fabric() as fabric:
            def check(programs):
                spine = self.wait_for_spine(fabric, programs, range(fabric.spines))
                self.set_dead(fabric, spine, True)
                self.wait_for_spine(fabric, programs, [other for other in range(fabric.spines) if other != spine])

            self.run_job(fabric, None, check)

    def test_a_way_that_no_port_takes_gets_a_port_of_the_kernels(self):
        with self.fabric() as fabric:
            plan, spine = self.make_plan(fabric)
            text = (plan / "paths.txt").read_text()
            # Two members of one switch at once.
            impossible = re.sub(r"(?m)^(flow 0 .* leaf0:)(\d)/3\S*$", rf"\g<0> leaf0:{(spine + 1) % 3}/3", text)
            self.assertNotEqual(impossible, text)
            (plan / "paths.txt").write_text(impossible)

            def check(programs):
                self.wait_for_spine(fabric, programs, range(fabric.spines))
                self.assertRegex(self.log(), r"no free source port takes the way leaf0:\d/3 leaf0:\d/3 to .*; socket 0 "
                                             r"gets one of the kernel's \(1 connections are not on a planned way\)")

            self.run_job(fabric, plan, check)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)

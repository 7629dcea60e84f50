"""A spine is lost under a ring of planned flows: all ranks take the detours of the plan, so that each link that is left
carries one flow each way, and go back when it is there again."""

import os
import pathlib
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import netns  # noqa: E402
import planned  # noqa: E402

PATIENCE = 120  # seconds for each step, on a busy machine
WINDOW = 1  # seconds over which bytes are counted
LEAST = 100_000  # bytes of a window that are no acknowledgements
EVEN = 0.75  # of the most loaded link's bytes; two flows of a ring on one link leave half to the others
RANKS, SPINES, SIZE = 8, 3, 1 << 18


class PlannedDetourTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-detour-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.fabric = self.enterContext(netns.Fabric(leaves=4, spines=SPINES, hosts_per_leaf=2, mbit=20, queue_ms=100))
        # Hosts in an order in which every link of the ring crosses spines.
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        ranks = self.folder / "ranks"
        ranks.write_text("".join(f"{rank} h{host} 0\n" for rank, host in enumerate(order)))
        self.plan = self.folder / "plan"
        planned.plan(*planned.write_fabric(self.fabric, self.folder), self.plan, RANKS, SIZE, "--order", ranks)

    def start(self, transport="tcp"):
        self.log = (self.folder / "log").open("w")
        self.addCleanup(self.log.close)
        words = [planned.BIN / "weft-bw", "--transport", transport, "-b", SIZE, "-c", 0, "-n", 100_000, "--algorithm", "ring",
                 "--place", "in", "--set", "tcp.sockets=1", "--set", "tcp.buffer_bytes=128KiB", "--set",
                 "tcp.dead_after=1h"]
        names = planned.Plan(self.plan).host_of_rank
        self.programs = []
        for rank in range(RANKS):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                               MASTER_ADDR=self.fabric.address(int(names[0][1:])), MASTER_PORT="29500",
                               WEFT_JOB_SECRET="11" * 32, WEFT_PLAN=str(self.plan))
            self.programs.append(self.fabric.start(int(names[rank][1:]), words, env=environment, stdout=self.log,
                                                   stderr=self.log))
        self.addCleanup(self.stop)

    def stop(self):
        for program in self.programs:
            program.kill()
            program.wait()

    def sent(self):
        """Bytes that each leaf has sent to each spine over a window: [leaf][spine]."""
        before = self.fabric.counters()
        time.sleep(WINDOW)  # over which bytes are counted
        return [[b - a for a, b in zip(*leaf)] for leaf in zip(before, self.fabric.counters())]

    def wait_for_even(self, spines):
        """Until every leaf sends as much to each of `spines`, and to no other."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for program in self.programs:
                self.assertIsNone(program.poll(), self.read_log())
            sent = self.sent()
            used = [bytes_ for leaf in sent for spine, bytes_ in enumerate(leaf) if spine in spines]
            if min(used) >= max(LEAST, EVEN * max(used)):
                return
        self.fail(f"links to spines {spines} are not loaded evenly: {sent}\n{self.read_log()}")

    def wait_for_use(self, spine):
        deadline = time.monotonic() + PATIENCE
        while sum(leaf[spine] for leaf in self.sent()) < LEAST:
            self.assertLess(time.monotonic(), deadline, f"nothing goes over spine {spine} again\n{self.read_log()}")

    def read_log(self):
        return (self.folder / "log").read_text()[-8000:]

    def test_a_spine_whose_links_go_down(self):
        self.start()
        self.wait_for_use(0)
        for leaf in range(self.fabric.leaves):
            self.fabric.link(leaf, 0, up=False)
        self.wait_for_even([1, 2])
        self.assertIn("hashes no more over spine0", self.read_log())
        for leaf in range(self.fabric.leaves):
            self.fabric.link(leaf, 0, up=True)
        self.wait_for_use(0)

    def test_multipath_leaves_a_spine_whose_links_go_down(self):
        """Its entropies on planned ways are others then: those of the detours, by the hash over what is left."""
        self.start("multipath")
        self.wait_for_use(0)
        for leaf in range(self.fabric.leaves):
            self.fabric.link(leaf, 0, up=False)
        self.wait_for_even([1, 2])
        self.assertIn("hashes no more over spine0", self.read_log())

    def test_a_spine_that_drops_everything(self):
        self.start()
        self.wait_for_use(0)
        self.fabric.at("s0", ["sysctl", "-qw", "net.ipv4.ip_forward=0"])
        self.wait_for_even([1, 2])
        self.fabric.at("s0", ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        self.wait_for_use(0)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)

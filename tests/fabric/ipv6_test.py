"""From a fabric that nobody described to a job over IPv6, by the programs that people use: where switches answer by one
address each, and where they answer by another address to each side, as Linux routers do whose links have numbers."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import all_reduce  # noqa: E402
import netns  # noqa: E402
import planned  # noqa: E402
from learned_paths_test import LIMIT  # noqa: E402
from planned import discover_undisturbed, on_all_hosts  # noqa: E402

SIZE, REPEATS = 1 << 20, 2
MBIT = 20  # what is overloaded is cheap on a busy machine
HASHES_LABELS = 0x3F  # fib_multipath_hash_fields: the five-tuple and the flow label


class Ipv6Test(unittest.TestCase):
    port = 29600

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-ipv6-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.found, self.plan = self.folder / "fabric", self.folder / "plan"

    def fabric(self, **words):
        return self.enterContext(netns.Fabric(**words))

    def everywhere(self, fabric, *words):
        Ipv6Test.port += 1
        return on_all_hosts(fabric, *words, port=self.port, v6=True)

    def good(self, fabric, *words):
        for host, (status, output, errors) in enumerate(self.everywhere(fabric, *words)):
            self.assertEqual(status, 0, (words, host, output, errors))
            if host == 0:
                said = output
        print(said, flush=True)
        return said

    def learn(self, fabric):
        said = self.good(fabric, "weft-topo", "learn-hash", self.found, "--timeout", "100ms")
        right, told = map(int, re.search(r"(\d+) of (\d+) fresh ports take the path that is predicted", said).groups())
        self.assertGreater(told, 0)
        self.assertGreaterEqual(right, 0.995 * told)
        self.assertEqual((self.found / "hashes.txt").read_text().count("\nhash "), fabric.leaves)

    def verify(self, fabric, host):
        done = subprocess.run(["ip", "netns", "exec", f"h{host}", str(planned.BIN / "weft-plan"), "verify",
                               str(self.plan), "--limit", "20s"], text=True, capture_output=True, timeout=LIMIT)
        return done.returncode, done.stdout + done.stderr

    def expect_planned_bytes(self, fabric):
        """A job by the plan: each leaf sends to each spine what the plan says at least."""
        expected = [[0] * fabric.spines for _ in range(fabric.leaves)]
        plan = planned.Plan(self.plan)
        share = all_reduce.ring_bytes(fabric.hosts, SIZE) * REPEATS
        for _, _, choices in plan.flows:
            for leaf, choice in choices.items():
                expected[int(leaf[4:])][int(choice.split("/")[0])] += share
        before = fabric.counters()
        words = [planned.BIN / "weft-bw", "--transport", "tcp", "--algorithm", "ring", "-b", SIZE, "-n", 1, "--repeats",
                 REPEATS, "-w", 1, "--place", "in", "-a", 3, "--set", all_reduce.BUFFERS, "--json"]
        text = planned.wait_all(planned.start_job(fabric, self.plan, words, lambda name: int(name[1:]), v6=True))
        row = next(json.loads(line) for line in text.splitlines() if line.startswith("{"))["rows"][0]["in_place"]
        self.assertEqual(row["wrong"], 0)
        for leaf, (was, now) in enumerate(zip(before, fabric.counters())):
            for spine, (a, b) in enumerate(zip(was, now)):
                self.assertGreaterEqual(b - a, expected[leaf][spine], (leaf, spine, expected))

    def test_switches_with_one_address_and_flow_labels_that_count(self):
        """Leaves hash the flow label as well: probes and planned connections send label 0, where Linux would draw one."""
        fabric = self.fabric(leaves=2, spines=3, hosts_per_leaf=2, loopbacks=True, fields=HASHES_LABELS)
        self.good(fabric, "weft-topo", "discover", "--out", self.found, "--timeout", "100ms")
        self.assertIn('switches = "spine[0-2]"\n', (self.found / "fabric.toml").read_text())
        self.learn(fabric)
        planned.plan(self.found / "fabric.toml", self.found / "hashes.txt", self.plan, fabric.hosts, SIZE, "--order",
                     "random")
        status, said = self.verify(fabric, 0)
        self.assertEqual(status, 0, said)
        self.expect_planned_bytes(fabric)
        fabric.at("l0", ["sysctl", "-qw", f"net.ipv4.fib_multipath_hash_seed={fabric.seeds[0] ^ 0x5a5a}"])
        status, said = self.verify(fabric, 0)
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"UDP port \d+ to h[23] \(fd01::1:\d\): leaf0 sends it to spine\d, not spine\d")

    def test_switches_that_answer_by_another_address_to_each_side(self):
        """Loads tell which of the names are one switch; those that the leaf sees that is loaded towards, by loads
        towards another leaf."""
        fabric = self.fabric(leaves=3, spines=2, hosts_per_leaf=2, mbit=MBIT, queue_ms=100)
        all_ranks = discover_undisturbed(self, lambda: self.everywhere(
            fabric, "weft-topo", "discover", "--out", self.found, "--timeout", "100ms"))
        for status, output, errors in all_ranks:
            self.assertEqual(status, 0, (output, errors))
        print(all_ranks[0][1], flush=True)
        text = (self.found / "fabric.toml").read_text()
        self.assertIn('switches = "spine[0-1]"\n', text)
        self.assertNotIn("are not known", text)
        names = re.findall(r"^router \S+ (spine\d)$", (self.found / "hashes.txt").read_text(), re.MULTILINE)
        self.assertEqual(sorted(names), ["spine0"] * 3 + ["spine1"] * 3)
        self.learn(fabric)
        planned.plan(self.found / "fabric.toml", self.found / "hashes.txt", self.plan, fabric.hosts, SIZE)
        for leaf in range(fabric.leaves):
            status, said = self.verify(fabric, leaf * fabric.hosts_per_leaf)
            self.assertEqual(status, 0, said)

    def test_switches_that_hash_addresses_alone_are_refused_by_name(self):
        fabric = self.fabric(leaves=2, spines=2, hosts_per_leaf=6, policy=0, loopbacks=True)
        for status, _, errors in self.everywhere(fabric, "weft-topo", "discover", "--out", self.found, "--timeout",
                                                 "100ms", "--ports", "16"):
            self.assertEqual(status, 1, errors)
            self.assertRegex(errors, r"it hashes addresses alone, as Linux does with fib_multipath_hash_policy 0")
        self.assertFalse(self.found.exists())


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)

"""From a fabric that nobody described to a plan, by the programs that people use, on Linux routers whose seeds
nobody tells: weft-topo discover, weft-topo learn-hash, weft-plan paths, weft-plan verify."""

import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import netns  # noqa: E402
import planned  # noqa: E402

LIMIT = 600  # seconds of one command on a busy machine
PROMPTLY = 60  # seconds, less than any rank waits for a rank that has ended
SEED = "net.ipv4.fib_multipath_hash_seed"


def cpu_seconds(pid) -> float:
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class LearnedPathsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="weft-learned-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        # As a kernel draws it at boot, for all routers: nothing below reads it, so what is printed of it is found
        # by probes. The search goes upwards through all 2^32; it is over in a quarter of them here.
        # WEFT_SEED_BITS=32 draws from all; it is taken out of the environment, as the programs refuse settings
        # that they do not know.
        seed = random.SystemRandom().randrange(1, 1 << int(os.environ.pop("WEFT_SEED_BITS", "30")))
        cls.fabric = cls.enterClassContext(netns.Fabric(leaves=2, spines=3, hosts_per_leaf=2, seeds=[seed, seed]))
        cls.port = 29500

    def everywhere(self, *words, limit=LIMIT):
        LearnedPathsTest.port += 1
        return planned.on_all_hosts(self.fabric, *words, port=self.port, limit=limit)

    def good(self, *words):
        for host, (status, output, errors) in enumerate(self.everywhere(*words)):
            self.assertEqual(status, 0, (words, host, output, errors))
            if host == 0:
                said = output
        print(said, flush=True)
        return said

    def verify(self, host, plan):
        done = subprocess.run(["ip", "netns", "exec", f"h{host}", str(planned.BIN / "weft-plan"), "verify", str(plan),
                               "--limit", "20s"], text=True, capture_output=True, timeout=LIMIT)
        return done.returncode, done.stdout, done.stderr

    def test_a_user_gets_from_an_unknown_fabric_to_a_verified_plan(self):
        found, plan = self.folder / "fabric", self.folder / "plan"
        self.good("weft-topo", "discover", "--out", found)
        text = (found / "hashes.txt").read_text()
        self.assertNotIn("\nhash ", text)

        begin = time.monotonic()
        said = self.good("weft-topo", "learn-hash", found, "--limit", "500s", "--check-ports", "256")
        print(f"learned in {time.monotonic() - begin:.1f} s")
        right, told, asked = map(int, re.search(
            r"(\d+) of (\d+) fresh ports take the path that is predicted .*; (\d+) were asked", said).groups())
        self.assertGreaterEqual(asked, 1000)
        self.assertGreaterEqual(told, 0.9 * asked)
        self.assertGreaterEqual(right, 0.995 * told)
        self.assertEqual((found / "hashes.txt").read_text().count("\nhash "), self.fabric.leaves)

        planned.plan(found / "fabric.toml", found / "hashes.txt", plan, self.fabric.hosts, 1 << 20)
        for host in range(self.fabric.hosts):
            status, output, errors = self.verify(host, plan)
            self.assertEqual(status, 0, (output, errors))
            self.assertRegex(output, rf"h{host}: (\d+) flows asked for: \1 as planned\n")

        self.refuses_what_moved(plan)
        self.refuses_what_is_silent(plan)
        self.refuses_other_files(plan, found)

    def refuses_what_moved(self, plan):
        before = self.fabric.at("l0", ["sysctl", "-n", SEED]).strip()
        self.fabric.at("l0", ["sysctl", "-qw", f"{SEED}={int(before) ^ 0x5a5a}"])
        try:
            for host in (0, 1):
                status, output, errors = self.verify(host, plan)
                self.assertEqual(status, 1, (output, errors))
                self.assertRegex(errors, r"plan is stale: paths have moved: UDP port \d+ to h[23] \(10\.1\.1\.\d\): "
                                         r"leaf\d sends it to spine\d, not spine\d; run weft-topo learn-hash")
            self.assertEqual(self.verify(2, plan)[0], 0)  # its own leaf has not moved
            program = self.fabric.start(0, [planned.BIN / "weft-run", "--plan", plan, "-n", 1, "--nnodes", 4,
                                            "--node-rank", 0, "--master-addr", self.fabric.address(0), "--master-port",
                                            29400, "--", "true"], text=True, stderr=subprocess.PIPE)
            self.assertIn("is stale: paths have moved", program.communicate(timeout=LIMIT)[1])
            self.assertEqual(program.returncode, 3)
        finally:
            self.fabric.at("l0", ["sysctl", "-qw", f"{SEED}={before}"])
        self.assertEqual(self.verify(0, plan)[0], 0)

    def refuses_what_is_silent(self, plan):
        spines = [f"s{spine}" for spine in range(self.fabric.spines)]
        for spine in spines:  # time exceeded, one a minute
            self.fabric.at(spine, ["sysctl", "-qw", "net.ipv4.icmp_ratelimit=60000",
                                   "net.ipv4.icmp_ratemask=2048"])
        try:
            for _ in range(4):  # the burst that is allowed is used up
                status, output, errors = self.verify(0, plan)
            self.assertEqual(status, 3, (output, errors))
            self.assertRegex(output, r"not verified: NIC 0, tier 1 \(leaf\d\): 0 of \d+ as planned, \d+ silent")
            self.assertIn("too few switches answered", errors)
            program = self.fabric.start(0, [planned.BIN / "weft-run", "--plan", plan, "--plan-unverified", "refuse", "-n", 1,
                                            "--nnodes", 4, "--node-rank", 0, "--master-addr", self.fabric.address(0),
                                            "--master-port", 29400, "--", "true"], text=True, stderr=subprocess.PIPE)
            self.assertIn("is stale is not known, and --plan-unverified is refuse", program.communicate(timeout=LIMIT)[1])
            self.assertEqual(program.returncode, 3)
        finally:
            for spine in spines:
                self.fabric.at(spine, ["sysctl", "-qw", "net.ipv4.icmp_ratelimit=0"])
        self.assertEqual(self.verify(0, plan)[0], 0)

    def refuses_other_files(self, plan, found):
        """Whoever starts the ranks: here by torchrun's environment."""
        stale = self.folder / "stale"
        shutil.copytree(plan, stale)
        with (stale / "hashes.txt").open("a") as file:
            file.write("# learned again\n")
        environment = dict(os.environ, WEFT_PLAN=str(stale), RANK="0", WORLD_SIZE="4", LOCAL_RANK="0",
                           MASTER_ADDR=self.fabric.address(0), MASTER_PORT="29401", WEFT_JOB_SECRET="22" * 32)
        words = [planned.BIN / "weft-bw", "--transport", "tcp", "-b", 1024, "-n", 1]
        program = self.fabric.start(0, words, env=environment, text=True, stderr=subprocess.PIPE)
        self.assertIn(f"{stale}/paths.txt is stale: it was planned for another fabric.toml or hashes.txt",
                      program.communicate(timeout=LIMIT)[1])
        self.assertNotEqual(program.returncode, 0)

    def test_a_folder_that_cannot_be_written_is_refused_before_the_probes(self):
        file = self.folder / "file"
        file.write_text("not a folder")
        for status, output, errors in self.everywhere("weft-topo", "discover", "--out", file / "found", limit=PROMPTLY):
            self.assertEqual(status, 1, (output, errors))
            self.assertIn(f"make folder {file}/found: ", errors)
            self.assertNotIn("probes", output)

    def test_a_rank_that_never_started_is_named_while_the_others_wait(self):
        LearnedPathsTest.port += 1
        programs = planned.start_on(self.fabric, [0, 1, 3], "weft-topo", "discover", "--out", self.folder / "none",
                                    port=self.port)
        try:
            # Lines before it may name others, which have not come yet either; after the 2 minutes the lines end.
            said = []
            for line in programs[0].stderr:
                said.append(line)
                if re.search(r"waiting since \d+s, up to 2m: 1 of 4 ranks have not come: 2$", line):
                    break
            else:
                self.fail("".join(said))
        finally:
            for program in programs:
                program.kill()
                program.communicate()

    def test_a_rank_that_is_killed_in_the_search_is_named(self):
        """A search that lasts: the last of all seeds."""
        found = self.folder / "killed"
        self.good("weft-topo", "discover", "--out", found)
        before = self.fabric.at("l0", ["sysctl", "-n", SEED]).strip()
        for leaf in range(self.fabric.leaves):
            self.fabric.at(f"l{leaf}", ["sysctl", "-qw", f"{SEED}={(1 << 32) - 1}"])
        LearnedPathsTest.port += 1
        programs = planned.start_on(self.fabric, range(4), "weft-topo", "learn-hash", found, port=self.port)
        try:
            while cpu_seconds(programs[3].pid) < 1:  # probes take none
                self.assertIsNone(programs[3].poll())
                time.sleep(0.05)
            programs[3].kill()
            begin = time.monotonic()
            for program in programs[:3]:
                output, errors = program.communicate(timeout=PROMPTLY)
                self.assertEqual(program.returncode, 1, (output, errors))
                self.assertIn("rank 3 on h3 has not been heard of for 10s in the search for hashes", errors)
            print(f"named {time.monotonic() - begin:.1f} s after it was killed")
        finally:
            for program in programs:
                program.kill()
                program.communicate()
            for leaf in range(self.fabric.leaves):
                self.fabric.at(f"l{leaf}", ["sysctl", "-qw", f"{SEED}={before}"])

    def test_a_search_that_was_cut_short_says_so(self):
        """By its limit: the share of seeds that was tried, and what finds more."""
        found = self.folder / "short"
        self.good("weft-topo", "discover", "--out", found)
        before = self.fabric.at("l0", ["sysctl", "-n", SEED]).strip()
        for leaf in range(self.fabric.leaves):
            self.fabric.at(f"l{leaf}", ["sysctl", "-qw", f"{SEED}={(1 << 32) - 1}"])
        try:
            for host, (status, output, errors) in enumerate(
                    self.everywhere("weft-topo", "learn-hash", found, "--limit", "2s", limit=PROMPTLY)):
                self.assertEqual(status, 0, (host, output, errors))
                if host == 0:
                    print(output)
                    self.assertRegex(output, r"leaf0 +not found, from \d+ flows: the time ran out \(--limit 2s\) when "
                                             r"\d+\.\d % of Linux's 2\^32 seeds had been tried")
                    self.assertRegex(output, r"leaf0 +a table of \d+ flows, each asked for twice")
            # Flows of verbs have ports that the tables know.
            plan = self.folder / "by-table"
            said = planned.run("weft-plan", "paths", "--fabric", found / "fabric.toml", "--hash", found / "hashes.txt",
                               "--transport", "verbs", "--layout", f"dp={self.fabric.hosts}", "--node", "gpus=1", "--order",
                               "random", "--traffic", "name=dp,axes=dp,collective=all_reduce,bytes=1MiB", "--out", plan)
            self.assertNotIn("have ports that nobody chose", said.stdout)
            for host in range(self.fabric.hosts):
                status, output, errors = self.verify(host, plan)
                self.assertEqual(status, 0, (output, errors))
        finally:
            for leaf in range(self.fabric.leaves):
                self.fabric.at(f"l{leaf}", ["sysctl", "-qw", f"{SEED}={before}"])

    def test_every_rank_ends_promptly_with_the_error_of_rank_zero(self):
        found = self.folder / "again"
        self.good("weft-topo", "discover", "--out", found)
        text = (found / "fabric.toml").read_text()

        def refused(reason):
            for host, (status, output, errors) in enumerate(
                    self.everywhere("weft-topo", "learn-hash", found, limit=PROMPTLY)):
                self.assertEqual(status, 1, (host, output, errors))
                self.assertIn(reason, errors, host)

        # A fabric with a host that hashes.txt has no address of.
        more = text.replace('"h[0-3]"', '"h[0-4]"').replace('"h[2-3]"', '"h[2-4]"')
        self.assertNotEqual(more, text)
        (found / "fabric.toml").write_text(more)
        refused("hashes.txt has no address of NIC 0 of h4")
        (found / "fabric.toml").write_text(text)
        # Names of routers are forgotten, so that no answer can be understood.
        hashes = (found / "hashes.txt").read_text()
        lines = [line for line in hashes.splitlines() if not line.startswith("router ")]
        (found / "hashes.txt").write_text("\n".join(lines) + "\n")
        refused("flows told which way a switch chose")
        (found / "hashes.txt").unlink()
        refused("hashes.txt")


class OneSpineTest(unittest.TestCase):
    def test_where_no_switch_has_a_choice_there_is_nothing_to_learn_and_the_plan_is_verified(self):
        with tempfile.TemporaryDirectory(prefix="weft-one-spine-") as temporary, \
                netns.Fabric(leaves=2, spines=1, hosts_per_leaf=2) as fabric:
            found, plan = pathlib.Path(temporary) / "fabric", pathlib.Path(temporary) / "plan"
            for port, words in ((29480, ["discover", "--out", found]), (29481, ["learn-hash", found])):
                for host, (status, output, errors) in enumerate(
                        planned.on_all_hosts(fabric, "weft-topo", *words, port=port, limit=LIMIT)):
                    self.assertEqual(status, 0, (words, host, output, errors))
                    if host == 0:
                        said = output
            self.assertIn("no switch between these hosts has a choice: there is nothing to learn", said)
            planned.plan(found / "fabric.toml", found / "hashes.txt", plan, fabric.hosts, 1 << 20)
            done = subprocess.run(["ip", "netns", "exec", "h0", str(planned.BIN / "weft-plan"), "verify", str(plan)],
                                  text=True, capture_output=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 0, (done.stdout, done.stderr))
            self.assertIn("nothing to verify", done.stdout)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    unittest.main(verbosity=2)

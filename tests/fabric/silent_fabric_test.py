"""weft-topo discover where switches or hosts tell too little, or lie: a fabric with how sure it is, or a refusal that
names what is wrong."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import netns  # noqa: E402
from planned import discover_undisturbed, on_all_hosts  # noqa: E402

MBIT = 20  # what is overloaded is cheap on a busy machine

# Classic BPF programs over a frame, whose IP header begins at byte 14: what they match is dropped.
DROP, PASS = (6, 0, 0, 2), (6, 0, 0, 0xFFFFFFFF)
RECORDS_ROUTE = [(48, 0, 0, 14), (21, 0, 1, 0x4F), DROP, PASS]  # fifteen words of header
TIME_EXCEEDED = [(48, 0, 0, 23), (21, 0, 3, 1), (48, 0, 0, 34), (21, 0, 1, 11), DROP, PASS]
TIME_EXCEEDED_V6 = [(48, 0, 0, 20), (21, 0, 3, 58), (48, 0, 0, 54), (21, 0, 1, 3), DROP, PASS]


# UDP from the port that probes go to.
ANSWERS = [(48, 0, 0, 23), (21, 0, 3, 17), (40, 0, 0, 34), (21, 0, 1, 4791), DROP, PASS]


def at_random(share):
    return [(32, 0, 0, 0xFFFFF038), (37, 1, 0, int(share * 2**32)), DROP, PASS]


def drop(fabric, name, device, program):
    """What `name` would send by `device`, if the program matches. The device's queue stays."""
    shown = fabric.at(name, ["tc", "qdisc", "show", "dev", device])
    if "clsact" not in shown:
        fabric.at(name, ["tc", "qdisc", "add", "dev", device, "clsact"])
    code = f"{len(program)}," + ",".join(" ".join(map(str, words)) for words in program)
    fabric.at(name, ["tc", "filter", "add", "dev", device, "egress", "protocol", "all", "bpf", "da", "bytecode", code])


def silence(fabric, spines):
    """Spines neither forward what asks for the route, nor answer when the time to live runs out."""
    for spine in spines:
        for leaf in range(fabric.leaves):
            for program in (RECORDS_ROUTE, TIME_EXCEEDED, TIME_EXCEEDED_V6):
                drop(fabric, f"s{spine}", f"l{leaf}", program)


def lose(fabric, share):
    for host in range(fabric.hosts):
        drop(fabric, f"h{host}", "eth0", at_random(share))
        drop(fabric, f"l{fabric.leaf_of(host)}", f"h{host}", at_random(share))


def require_filters():
    """Inside: skips where frames cannot be filtered."""
    netns.call(["ip", "link", "add", "bpf0", "type", "veth", "peer", "name", "bpf1"])
    try:
        netns.call(["tc", "qdisc", "add", "dev", "bpf0", "clsact"])
        netns.call(["tc", "filter", "add", "dev", "bpf0", "egress", "protocol", "all", "bpf", "da", "bytecode", "1,6 0 0 2"])
    except RuntimeError as error:
        netns.skip(f"no cls_bpf here: {error}")
    finally:
        netns.call(["ip", "link", "del", "bpf0"])


class SilentFabricTest(unittest.TestCase):
    port = 29600

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="weft-silent-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.found = self.folder / "fabric"

    def fabric(self, **words):
        return self.enterContext(netns.Fabric(**{"leaves": 2, "spines": 2, "hosts_per_leaf": 2, **words}))

    def discover(self, fabric, *words, more=None):
        SilentFabricTest.port += 1
        all_ranks = on_all_hosts(fabric, "weft-topo", "discover", "--out", self.found, "--timeout", "100ms", *words,
                                 port=self.port, more=more)
        print("", *(part for rank in all_ranks for part in rank[1:]), sep="", flush=True)
        return all_ranks

    def expect_found(self, fabric, *words, more=None):
        """The fabric file, with its notes. On a busy machine round trips lie and loads are late: that is refused."""
        all_ranks = discover_undisturbed(self, lambda: self.discover(fabric, *words, more=more))
        for status, output, errors in all_ranks:
            self.assertEqual(status, 0, (output, errors))
        return (self.found / "fabric.toml").read_text()

    def expect_spines(self, text, count):
        self.assertIn('switches = "spine0"\n' if count == 1 else f'switches = "spine[0-{count - 1}]"\n', text)

    def expect_refused(self, reason, fabric, *words, more=None):
        for rank, (status, output, errors) in enumerate(self.discover(fabric, *words, more=more)):
            self.assertEqual(status, 1, (rank, output, errors))
            self.assertRegex(errors, reason)
        self.assertFalse(self.found.exists())

    def test_paths_over_silent_spines_are_counted_by_load(self):
        fabric = self.fabric(mbit=MBIT, queue_ms=100)
        silence(fabric, range(fabric.spines))
        self.expect_refused("NIC, or --load-rate, allows no more", fabric, "--load-rate", "10Mbps")
        text = self.expect_found(fabric)
        self.assertRegex(text, r"paths are those that \d+ loads .* filled")
        self.expect_spines(text, 2)
        # Of what arrives, which a busy machine makes less.
        found = [1000 * float(one) for one in re.findall(r'bandwidth = "([0-9.]+)Gbps"', text)]
        self.assertTrue(any(0.7 * MBIT <= one <= 1.4 * MBIT for one in found), (found, text))

    def test_one_silent_spine_of_three_is_not_missed(self):
        fabric = self.fabric(spines=3, mbit=MBIT, queue_ms=100)
        silence(fabric, [1])
        self.expect_refused(r"\d+ of \d+ flows from leaf\d \(h\d\) to leaf\d \(h\d\) told nothing of their way",
                            fabric, "--load", "never")
        self.expect_spines(self.expect_found(fabric), 3)

    def test_ipv6_is_counted_by_load(self):
        """Linux answers from another address to each side, so that names do not tell which spines are one."""
        fabric = self.fabric(mbit=MBIT, queue_ms=100)
        words = {"more": lambda host: {"WEFT_TCP_FAMILY": "ipv6"}}
        self.expect_refused("nothing tells which are the same", fabric, "--load", "never", **words)
        text = self.expect_found(fabric, **words)
        self.expect_spines(text, 2)
        self.assertIn("fd01::", (self.found / "hashes.txt").read_text())

    def test_losses_of_five_percent_leave_a_sure_result(self):
        fabric = self.fabric()
        lose(fabric, 0.05)
        text = self.expect_found(fabric)
        self.assertRegex(text, r"chance that one more path was missed is \S+e-\d\d at most")
        self.expect_spines(text, 2)
        SilentFabricTest.port += 1
        for status, output, errors in on_all_hosts(fabric, "weft-topo", "learn-hash", self.found, "--timeout", "100ms",
                                                   port=self.port):
            self.assertEqual(status, 0, (output, errors))
        self.assertEqual((self.found / "hashes.txt").read_text().count("\nhash leaf"), fabric.leaves)

    def test_a_spine_with_half_the_bandwidth_is_measured(self):
        """Or told: --switch-bandwidth."""
        fabric = self.fabric(leaves=2, spines=2, mbit=2 * MBIT, spine_mbit={1: MBIT}, queue_ms=100)
        text = self.expect_found(fabric, "--load", "always")
        self.expect_spines(text, 2)
        self.assertRegex(text, r"bandwidths are those of paths that \d+ loads .* filled")
        found = sorted({1000 * float(one) for one in re.findall(r'bandwidth = "([0-9.]+)Gbps"', text)})[:2]
        self.assertTrue(0.7 * MBIT <= found[0] <= 1.1 * MBIT and 1.6 * found[0] <= found[1] <= 2.5 * found[0], (found, text))
        text = self.expect_found(fabric, "--switch-bandwidth", "40Mbps,spine1=20Mbps")
        self.assertEqual(sorted(set(re.findall(r'bandwidth = "(0\.[0-9]+)Gbps"', text))), ["0.02", "0.04"], text)

    def test_limited_icmp_does_not_hide_a_spine(self):
        """Few answer: of their names, or of the flows that told nothing, no fabric is made, but by load."""
        fabric = self.fabric(mbit=MBIT, queue_ms=100)
        for spine in range(fabric.spines):
            for leaf in range(fabric.leaves):
                drop(fabric, f"s{spine}", f"l{leaf}", RECORDS_ROUTE)
            fabric.at(f"s{spine}", ["sysctl", "-qw", "net.ipv4.icmp_ratelimit=60000", "net.ipv4.icmp_ratemask=2048"])
        text = self.expect_found(fabric)
        self.assertRegex(text, r"paths are those that \d+ loads .* filled")
        self.expect_spines(text, 2)

    def test_a_silent_host_is_named(self):
        fabric = self.fabric()
        drop(fabric, "h3", "eth0", ANSWERS)
        self.expect_refused("no probe of any other host was answered by h3", fabric)

    def test_asymmetric_routes_are_named(self):
        """One host's packets take a detour over one more router."""
        fabric = self.fabric()
        netns.call(["ip", "netns", "add", "x0"])
        self.addCleanup(netns.call, ["ip", "netns", "del", "x0"])
        netns.call(["ip", "link", "add", "x0", "netns", "l1", "type", "veth", "peer", "name", "l1", "netns", "x0"])
        netns.call(["ip", "link", "add", "x0", "netns", "s0", "type", "veth", "peer", "name", "s0", "netns", "x0"])
        for name, device, address in (("l1", "x0", "10.3.0.0/31"), ("x0", "l1", "10.3.0.1/31"),
                                      ("x0", "s0", "10.3.0.2/31"), ("s0", "x0", "10.3.0.3/31")):
            fabric.at(name, ["ip", "addr", "add", address, "dev", device])
            fabric.at(name, ["ip", "link", "set", device, "up"])
        fabric.at("x0", ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        fabric.at("x0", ["ip", "route", "add", "default", "via", "10.3.0.3"])
        fabric.at("l1", ["ip", "route", "add", "10.1.0.0/24", "via", "10.3.0.1"])
        self.expect_refused(r"distances contradict each other: h\d sees \d routers to h\d", fabric)

    def lldp(self, switch_of):
        """A program lldpctl that says what a host's lldpd would, for --lldp auto."""
        programs = self.folder / "programs"
        programs.mkdir()
        (programs / "lldpctl").write_text('#!/bin/sh\ncat "$LLDP_ANSWER"\n')
        (programs / "lldpctl").chmod(0o755)

        def more(host):
            answer = self.folder / f"h{host}.json"
            answer.write_text(json.dumps({"lldp": {"interface": {"eth0": {
                "via": "LLDP", "chassis": {switch_of(host): {"capability": [{"type": "Router", "enabled": True}]}},
                "port": {"id": {"type": "ifname", "value": f"swp{host}"}}}}}}))
            return {"LLDP_ANSWER": str(answer), "PATH": f"{programs}:{os.environ['PATH']}"}
        return more

    def test_lldp_names_the_leaves(self):
        fabric = self.fabric()
        text = self.expect_found(fabric, more=self.lldp(lambda host: f"tor-a{fabric.leaf_of(host)}"))
        self.assertIn("# leaf1 is tor-a1, by LLDP\n", text)

    def test_a_host_whose_lldp_contradicts_probes_is_named(self):
        fabric = self.fabric()
        self.expect_refused(r"LLDP says that h0 is under tor-a0 and h1 under tor-a1, but probes find one router",
                            fabric, more=self.lldp(lambda host: f"tor-a{host % 2}"))


# Loads take seconds in which nothing else happens: fabrics of their own namespaces are loaded side by side.
SIDE_BY_SIDE = ("test_paths_over_silent_spines_are_counted_by_load",
                "test_one_silent_spine_of_three_is_not_missed test_losses_of_five_percent_leave_a_sure_result",
                "test_limited_icmp_does_not_hide_a_spine",
                "test_a_spine_with_half_the_bandwidth_is_measured",
                "test_ipv6_is_counted_by_load test_a_silent_host_is_named test_asymmetric_routes_are_named "
                "test_lldp_names_the_leaves test_a_host_whose_lldp_contradicts_probes_is_named")


def run_side_by_side() -> int:
    """The status of all: that of a failure, if there is one; skipped, if all are."""
    named = sorted(" ".join(SIDE_BY_SIDE).split())
    if named != sorted(unittest.defaultTestLoader.getTestCaseNames(SilentFabricTest)):
        raise RuntimeError(f"SIDE_BY_SIDE does not name each test once: {named}")
    parts = []
    for names in SIDE_BY_SIDE:
        output = tempfile.TemporaryFile("w+")
        words = [f"SilentFabricTest.{name}" for name in names.split()]
        parts.append((output, subprocess.Popen([sys.executable, "-B", __file__, *words], stdout=output, stderr=output)))
    statuses = []
    for output, program in parts:
        statuses.append(program.wait())
        output.seek(0)
        print(output.read(), flush=True)
    if all(status == netns.SKIPPED for status in statuses):
        return netns.SKIPPED
    return next((status for status in statuses if status not in (0, netns.SKIPPED)), 0)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        raise SystemExit(run_side_by_side())
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    require_filters()
    unittest.main(verbosity=2)

"""Weft's multipath transport, and its tcp, between the hosts of a netns.Fabric with jumbo frames."""

import json
import os
import pathlib
import subprocess
import time

import all_reduce
import netns

MTU = 9000
# Of a full packet: what a link carries (tbf counts the Ethernet header) for what is delivered.
WIRE = {"multipath": (8832 + 128 + 8 + 20 + 14) / 8832, "tcp": 9014 / 8948}
PATIENCE = 90
TRACE = []


class Fabric(netns.Fabric):
    """Leaves and spines with jumbo frames, as RoCE fabrics have."""

    def __enter__(self):
        super().__enter__()
        for name in self._inside:
            devices = self.at(name, ["ls", "/sys/class/net"]).split()
            lines = "".join(f"link set {device} mtu {MTU}\n" for device in devices
                            if device != "lo")
            netns.call(["ip", "-netns", name, "-batch", "-"], lines)
        return self

    def devices_of(self, spine):
        """Both ends of all links of one spine: (namespace, device)."""
        for leaf in range(self.leaves):
            yield f"l{leaf}", f"s{spine}"
            yield f"s{spine}", f"l{leaf}"

    def shape_spine(self, spine, mbit):
        for name, device in self.devices_of(spine):
            self.shape(name, device, mbit)

    def kill_spine(self, spine):
        """A black hole: links stay up, nothing comes through, and nobody routes around it."""
        self.at(f"s{spine}", ["sysctl", "-qw", "net.ipv4.ip_forward=0"])

    def mark(self, mbit):
        """Shaped links whose queues mark what waits for longer than 2 ms, instead of growing."""
        burst = 2 * (MTU + 14)
        for spine in range(self.spines):
            for name, device in self.devices_of(spine):
                self.at(name, ["tc", "qdisc", "replace", "dev", device, "root", "handle", "1:",
                               "tbf", "rate", f"{mbit}mbit", "burst", burst, "limit", "2000000"])
                self.at(name, ["tc", "qdisc", "replace", "dev", device, "parent", "1:1", "handle",
                               "10:", "codel", "target", "2ms", "interval", "20ms", "ecn"])

    def settings(self, transport, spines=None):
        """What one would set here: a port's share of the links, and a round trip of links this slow."""
        if transport == "tcp":
            return ["tcp.sockets=1"]
        gbps = (spines or self.spines) * self.mbit / 1000
        return [f"multipath.gbps={gbps}", "multipath.base_rtt=5ms"]


def binary(name):
    folder = pathlib.Path(os.environ["WEFT_BIN"])
    return next(path for path in (folder / name, folder / "tests" / name) if path.exists())


def job(fabric, placement, transport, op, size, repeats=3, more=()):
    """weft-bw with one rank a host; its row. Times are of the slowest rank."""
    words = [binary("weft-bw"), "--transport", transport, "--op", op, "--algorithm", "ring", "-b",
             size, "-n", 1, "--repeats", repeats, "-w", 1, "--place", "in" if op == "all_reduce"
             else "out", "-a", 3, "--json", "--set", "wait.spin=0"]
    for setting in (*fabric.settings(transport), *more):
        words += ["--set", setting]
    ring = object.__new__(all_reduce.Ring)
    ring.fabric, ring.placement = fabric, placement
    ranks = [ring._start(rank, words, {}) for rank in range(len(placement))]
    rows = json.loads(ring._wait(ranks, time.monotonic() + PATIENCE))["rows"]
    row = rows[0]["in_place" if op == "all_reduce" else "out_of_place"]
    if row["wrong"]:
        raise RuntimeError(f"wrong bytes: {row}")
    return row


class Flow:
    """One stream of messages from host to host: start(), then result()."""

    def __init__(self, fabric, source, target, transport="multipath", seconds=3.0, more=()):
        self.fabric = fabric
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

        def words(host):
            out = [binary("multipath_flow"), *TRACE, "--bind", fabric.address(host), "--transport",
                   transport, "--seconds", seconds]
            for setting in (*fabric.settings(transport), *more):
                out += ["--set", setting]
            return out

        self.receiver = fabric.start(target, words(target), **pipes)
        address = self.receiver.stdout.readline().strip()
        if not address:
            raise RuntimeError(self.receiver.communicate()[1])
        self.sender = fabric.start(source, [*words(source), "--to", address], **pipes)
        if self.receiver.stdout.readline().strip() != "begun":  # the first message is there
            raise RuntimeError(self.receiver.communicate()[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.sender, self.receiver):
            process.kill()
            process.communicate()

    def result(self):
        """What both saw; raises where a byte is wrong or missing."""
        seen = {}
        for name, process in (("sender", self.sender), ("receiver", self.receiver)):
            out, errors = process.communicate(timeout=PATIENCE)
            if process.returncode != 0:
                raise RuntimeError(f"{name}: {errors}")
            seen[name] = json.loads(out.strip().splitlines()[-1])
        sent, got = seen["sender"], seen["receiver"]
        if got["wrong"] or got["messages"] != sent["messages"]:
            raise RuntimeError(f"wrong or missing bytes: {seen}")
        return {**sent, **got}


def alternating(fabric):
    """[rank] hosts such that each rank's neighbours are on the other of two leaves."""
    return [rank // 2 + rank % 2 * fabric.hosts_per_leaf for rank in range(fabric.hosts)]


def has_codel() -> bool:
    netns.call(["ip", "link", "add", "codel0", "type", "veth", "peer", "name", "codel1"])
    try:
        netns.call(["tc", "qdisc", "add", "dev", "codel0", "root", "codel", "ecn"])
        return True
    except RuntimeError:
        return False
    finally:
        netns.call(["ip", "link", "del", "codel0"])

"""NCCL itself over the plugin's tcp on a fabric of namespaces, its GPU scripted: with a plan its flows fill both spines
evenly; the same job without a plan runs beside it, and what its ports do is printed."""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import netns  # noqa: E402
import planned  # noqa: E402

LIB = planned.BIN.parent / "lib"
NCCL = pathlib.Path(os.environ.get("WEFT_TEST_NCCL", pathlib.Path.home() / ".cache/weft/nccl/2.28.9/libnccl.so.2"))
RANK = planned.BIN / "tests/nccl_scripted_gpu_test"
GPU = LIB / "scripted/libscripted_gpu.so"
ORDER = (0, 2, 1, 3)  # host of each rank: every edge of the ring crosses the spines
COUNT = 500_000  # floats of a rank
PLANNED_PORTS = range(16384, 32768)
ESTABLISHED = "01"  # of /proc/net/tcp
LIMIT = 300  # seconds of a job on a busy machine


class NcclPlannedTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="weft-nccl-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.fabric = self.enterContext(netns.Fabric(leaves=2, spines=2, hosts_per_leaf=2))

    def job(self, plan) -> tuple:
        """Seconds, NCCL's words, and bytes of each uplink: [leaf][spine]."""
        before, begin = self.fabric.counters(), time.monotonic()
        identity = self.folder / f"id{plan is not None}"
        programs = []
        for rank, host in enumerate(ORDER):
            environment = dict(os.environ, WEFT_TEST_NCCL=str(NCCL), WEFT_TEST_SCRIPTED_GPU=str(GPU),
                               NCCL_NET_PLUGIN=str(LIB / "libnccl-net-weft.so"), NCCL_HOSTID=f"host{host}",
                               NCCL_SOCKET_IFNAME="eth0", NCCL_ALGO="Ring", NCCL_PROTO="Simple", NCCL_MAX_NCHANNELS="1",
                               NCCL_MNNVL_ENABLE="0", NCCL_RAS_ENABLE="0", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET",
                               WEFT_TRANSPORT="tcp", WEFT_TCP_INTERFACE="eth0", WEFT_TCP_SOCKETS="1")
            if plan is not None:
                environment["WEFT_PLAN"] = str(plan)
            words = ["timeout", LIMIT, RANK, "--nccl-rank", rank, len(ORDER), 1, 1, 0, 1, identity, COUNT]
            log = (self.folder / f"log{rank}").open("w+")
            programs.append((self.fabric.start(host, words, env=environment, stdout=log, stderr=subprocess.STDOUT), log))
        said, sockets = [], set()
        deadline = time.monotonic() + LIMIT + 30
        while any(program.poll() is None for program, _ in programs) and time.monotonic() < deadline:
            for (program, _), host in zip(programs, ORDER):
                sockets.update(self.sockets(program.pid, host))
            time.sleep(0.02)
        for program, log in programs:
            program.wait(timeout=5)
            log.seek(0)
            said.append(log.read())
            log.close()
        for (program, _), text in zip(programs, said):
            self.assertEqual(program.returncode, 0, text[-4000:])
        bytes_sent = [[after - early for after, early in zip(*leaf)] for leaf in zip(self.fabric.counters(), before)]
        return time.monotonic() - begin, said, bytes_sent, self.spines_of(sockets)

    def sockets(self, pid, host) -> list:
        """(host, source port, target, target port) of connections from planned ports to another host."""
        out = []
        try:
            lines = pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        except OSError:  # it has ended
            return out
        for line in lines:
            own, other, state = line.split()[1:4]
            port, target = int(own[9:], 16), socket.inet_ntoa(int(other[:8], 16).to_bytes(4, "little"))
            if state == ESTABLISHED and port in PLANNED_PORTS:
                out.append((host, port, target, int(other[9:], 16)))
        return out

    def spines_of(self, sockets) -> list:
        """By leaf: how many of the connections that leave it take each spine, as its kernel says."""
        out = []
        for leaf in range(self.fabric.leaves):
            tuples = [(self.fabric.address(host), target, port, other, 6) for host, port, target, other in sockets
                      if self.fabric.leaf_of(host) == leaf]
            asked = self.fabric.ask(leaf, tuples) if tuples else []
            out.append([asked.count(spine) for spine in range(self.fabric.spines)])
        return out

    def test_nccls_flows_fill_both_spines_by_the_plan(self):
        fabric_file, hashes = planned.write_fabric(self.fabric, self.folder)
        plan = self.folder / "plan"
        planned.plan(fabric_file, hashes, plan, len(ORDER), COUNT * 4, "--order", "as-allocated", "--hosts",
                     ",".join(f"h{host}" for host in ORDER))
        with_plan, said, evenly, ways = self.job(plan)
        for text in said:
            self.assertIn("Using network weft", text)
        without_plan, _, by_chance, no_ways = self.job(None)
        print(f"planned: {with_plan:.1f} s, bytes of uplinks {evenly}, connections on each spine {ways}; "
              f"kernel's ports: {without_plan:.1f} s, {by_chance}", flush=True)
        # Connections are looked at now and then, and short ones are missed: bytes tell how even it is.
        for leaf in ways:
            self.assertGreaterEqual(min(leaf), 1, ways)
        for leaf in evenly:
            self.assertGreaterEqual(min(leaf), 0.4 * max(leaf), (evenly, ways))
        self.assertEqual(no_ways, [[0, 0], [0, 0]])


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    for path in (NCCL, RANK, GPU):
        if not path.exists():
            netns.skip(f"there is no {path} (tools/dev test nccl fetches NCCL)")
    unittest.main(verbosity=2)

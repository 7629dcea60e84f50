"""Weft's tcp transport on paths that go silent: no reset, no answer, and nobody routes around them."""

import sys
import unittest

import multipath
import netns

MBIT = 50
SETTINGS = ["tcp.dead_after=6s"]


def silence(fabric, flow, spines):
    """Makes black holes of `spines` while the stream is under way."""
    for spine in spines:
        fabric.kill_spine(spine)
    if flow.sender.poll() is not None:
        raise RuntimeError("the stream ended before its path did")


class TcpTest(unittest.TestCase):
    def test_a_socket_on_a_silent_path_is_replaced_on_another(self):
        # Of four: a new source port avoids one with its data and its answers in 9 of 16 cases.
        with multipath.Fabric(leaves=2, spines=4, hosts_per_leaf=1, mbit=MBIT) as fabric:
            start = fabric.counters()[0]
            with multipath.Flow(fabric, 0, 1, "tcp", seconds=2, more=SETTINGS) as flow:
                before = fabric.counters()[0]
                used = max(range(4), key=lambda spine: before[spine] - start[spine])
                silence(fabric, flow, [used])
                result = flow.result()  # raises where a byte is wrong or missing
            after = fabric.counters()[0]
            print(f"spine {used} went dark; bytes to each spine: {before}, then {after}; {result}",
                  file=sys.stderr)
            # At least half of the 32 messages of 64 KiB that are under way at any time.
            elsewhere = sum(after) - after[used] - (sum(before) - before[used])
            self.assertGreater(elsewhere, 1 << 20)

    def test_where_every_path_is_silent_both_ends_say_so(self):
        with multipath.Fabric(leaves=2, spines=2, hosts_per_leaf=1, mbit=MBIT) as fabric:
            with multipath.Flow(fabric, 0, 1, "tcp", seconds=2, more=SETTINGS) as flow:
                silence(fabric, flow, [0, 1])
                for process in (flow.sender, flow.receiver):
                    errors = process.communicate(timeout=multipath.PATIENCE)[1]
                    self.assertNotEqual(process.returncode, 0)
                    self.assertIn("tcp.dead_after is 6s", errors)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)

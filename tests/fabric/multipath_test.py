"""Weft's multipath transport against real routers: every spine used, a slow one spared, a dead one
survived, marks answered. What is asserted is bytes and counts; `tools/dev bench multipath` measures.
"""

import sys
import unittest

import multipath
import netns

MBIT = 50


def sent(fabric, before, leaf):
    """[spine] bytes that the leaf has sent since."""
    return [after - start for start, after in zip(before[leaf], fabric.counters()[leaf])]


class MultipathTest(unittest.TestCase):
    def test_all_reduce_is_right_and_uses_every_spine(self):
        with multipath.Fabric(leaves=2, spines=4, hosts_per_leaf=2, mbit=MBIT) as fabric:
            before = fabric.counters()
            # So many that chance leaves no spine out.
            multipath.job(fabric, multipath.alternating(fabric), "multipath", "all_reduce",
                          2 << 20, repeats=1, more=["multipath.paths=64"])
            for leaf in range(fabric.leaves):
                shares = sent(fabric, before, leaf)
                print(f"leaf {leaf}: bytes to each spine: {shares}", file=sys.stderr)
                self.assertGreater(min(shares), 0.03 * sum(shares))

    def test_a_slow_spine_is_spared(self):
        with multipath.Fabric(leaves=2, spines=2, hosts_per_leaf=1, mbit=MBIT) as fabric:
            fabric.shape_spine(0, MBIT / 10)
            before = fabric.counters()
            with multipath.Flow(fabric, 0, 1, seconds=2) as flow:
                result = flow.result()
            shares = sent(fabric, before, 0)
            print(f"bytes to each spine: {shares}; {result}", file=sys.stderr)
            self.assertLess(shares[0], shares[1])

    def test_a_spine_that_dies_loses_no_byte(self):
        with multipath.Fabric(leaves=2, spines=2, hosts_per_leaf=1, mbit=MBIT) as fabric:
            with multipath.Flow(fabric, 0, 1, seconds=2) as flow:
                fabric.kill_spine(0)
                was_amidst = flow.sender.poll() is None
                result = flow.result()
            print(f"longest stall {result['stall_ms']:.1f} ms; {result}", file=sys.stderr)
            if was_amidst:
                self.assertGreater(result["paths_left"], 0)

    def test_marks_are_answered(self):
        if not multipath.has_codel():
            self.skipTest("no codel queues here")
        shares = {}
        with multipath.Fabric(leaves=2, spines=2, hosts_per_leaf=1, mbit=MBIT) as fabric:
            fabric.mark(MBIT)
            for controller in ("fixed:window=4", "hybrid"):
                more = [f"multipath.controller={controller}"]
                with multipath.Flow(fabric, 0, 1, seconds=1.5, more=more) as flow:
                    result = flow.result()
                shares[controller] = result["marks"] / result["packets"]
                print(f"{controller}: {shares[controller]:.3f} of packets marked; {result}",
                      file=sys.stderr)
        if shares["fixed:window=4"] == 0:
            self.skipTest("nothing waits long enough to be marked here")
        self.assertLess(shares["hybrid"], shares["fixed:window=4"])


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)

"""Planned source ports put a real all-reduce onto the paths that were planned."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import all_reduce  # noqa: E402
import netns  # noqa: E402
import oracle  # noqa: E402

SIZE, REPEATS = 1 << 20, 2


class AllReduceTest(unittest.TestCase):
    def test_every_planned_flow_takes_its_spine(self):
        with netns.Fabric(leaves=4, spines=2, hosts_per_leaf=2, mbit=40) as fabric:
            for placement in all_reduce.placements(fabric.hosts, 3):
                ring = all_reduce.Ring(fabric, placement, SIZE)
                expected = self.planned_bytes(ring)
                before = fabric.counters()
                seconds = ring.measure(planned=True, repeats=REPEATS)
                after = fabric.counters()
                # A flow that went elsewhere is missing on its spine; nothing else of its size is
                # there.
                for leaf in range(fabric.leaves):
                    for spine in range(fabric.spines):
                        sent = after[leaf][spine] - before[leaf][spine]
                        self.assertGreaterEqual(sent, expected[leaf][spine],
                                                (placement, leaf, spine))
                # Tokens that a link had saved are the only way to be faster than the fabric.
                self.assertGreater(seconds, 0.9 * ring.bound)
                print(f"planned: {ring.bound / seconds:.3f} of the bound", flush=True)

    def planned_bytes(self, ring):
        """What the plan puts on each uplink when timed, without headers: [leaf][spine]."""
        fabric = ring.fabric
        out = [[0] * fabric.spines for _ in range(fabric.leaves)]
        for (a, b), ports in zip(ring.links, ring.plan["ports"]):
            source, target = ring.placement[a], ring.placement[b]
            leaf = fabric.leaf_of(source)
            if leaf == fabric.leaf_of(target):
                continue
            tuples = [[fabric.address(source), fabric.address(target), port,
                       all_reduce.LISTEN_PORT + b, 6] for port in ports]
            for spine in oracle.ask(op="choose", seed=fabric.seeds[leaf], count=fabric.spines,
                                    tuples=tuples)["choice"]:
                share = all_reduce.ring_bytes(len(ring.placement), SIZE) / len(ports)
                out[leaf][spine] += int(share * REPEATS)
        return out


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)

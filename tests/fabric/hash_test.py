"""The predicted next hop of a Linux router is the one that it takes: asked, and by packets."""

import os
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import netns  # noqa: E402
import oracle  # noqa: E402
import traffic  # noqa: E402

PROTOCOLS = {"tcp": 6, "udp": 17}


def predict(fabric, leaf, tuples, **more):
    numbered = [[*words[:4], PROTOCOLS[words[4]]] for words in tuples]
    return oracle.ask(op="choose", seed=fabric.seeds[leaf], count=fabric.spines, tuples=numbered,
                      policy=fabric.policy, **more)["choice"]


class HashTest(unittest.TestCase):
    def test_the_spine_of_each_of_1000_five_tuples_is_the_kernels(self):
        draw = random.Random(7)
        with netns.Fabric(leaves=4, spines=4, hosts_per_leaf=4) as fabric:
            for leaf in range(fabric.leaves):
                tuples = []
                for _ in range(250):
                    source = leaf * 4 + draw.randrange(4)
                    target = (leaf + 1 + draw.randrange(3)) % 4 * 4 + draw.randrange(4)
                    tuples.append((fabric.address(source), fabric.address(target),
                                   draw.randrange(1, 65536), draw.randrange(1, 65536),
                                   draw.choice(("tcp", "udp"))))
                self.assertEqual(predict(fabric, leaf, tuples), fabric.ask(leaf, tuples))

    def test_other_numbers_of_spines_and_policy_1_are_the_kernels_too(self):
        draw = random.Random(8)
        for spines, policy in ((3, 3), (5, 3), (7, 1)):
            with netns.Fabric(leaves=2, spines=spines, hosts_per_leaf=1, policy=policy) as fabric:
                tuples = [(fabric.address(0), fabric.address(1), draw.randrange(1, 65536),
                           draw.randrange(1, 65536), "udp") for _ in range(200)]
                self.assertEqual(predict(fabric, 0, tuples), fabric.ask(0, tuples))

    def test_a_spine_that_is_lost_leaves_the_others_in_order(self):
        draw = random.Random(9)
        with netns.Fabric(leaves=2, spines=4, hosts_per_leaf=1) as fabric:
            tuples = [(fabric.address(0), fabric.address(1), draw.randrange(1, 65536), 4791, "udp")
                      for _ in range(200)]
            fabric.link(0, 1, up=False)
            choice = oracle.ask(op="choose", seed=fabric.seeds[0], count=3,
                                tuples=[[*words[:4], 17] for words in tuples])["choice"]
            self.assertEqual([(0, 2, 3)[index] for index in choice], fabric.ask(0, tuples))

    def test_tcp_packets_take_the_predicted_spine(self):
        self.check_packets(v6=False)

    def test_ipv6_packets_take_the_predicted_spine(self):
        # `ip -6 route get` does not hash as forwarding does: only packets tell.
        self.check_packets(v6=True)

    def check_packets(self, v6):
        size = 200_000  # stands out from what else is on the wire
        draw = random.Random(10)
        with netns.Fabric(leaves=2, spines=4, hosts_per_leaf=2) as fabric:
            flows, tuples = [], []
            for i in range(24):
                source, target = i % 2, 2 + i // 2 % 2
                flow = traffic.Flow(source, target, size, draw.randrange(20000, 30000), 5000 + i)
                flows.append(flow)
                tuples.append((fabric.address(source, v6), fabric.address(target, v6), flow.sport,
                               flow.dport, "tcp"))
            expected = [0] * fabric.spines
            for spine in predict(fabric, 0, tuples):
                expected[spine] += 1
            self.assertGreater(min(expected), 0)
            before = fabric.counters()[0]
            traffic.run(fabric, flows, v6=v6)
            sent = [after - b for after, b in zip(fabric.counters()[0], before)]
            # All bytes of a flow pass its spine, so a flow that went elsewhere is missing; headers
            # and retransmissions only add.
            for spine in range(fabric.spines):
                self.assertGreaterEqual(sent[spine], expected[spine] * size,
                                        (spine, sent, expected))


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    unittest.main(verbosity=2)

"""weft-bw link between hosts: many to one over one shaped link, and what it says held it down."""

import json
import os
import pathlib
import secrets
import subprocess
import unittest

import netns

BIN = pathlib.Path(os.environ["WEFT_BIN"])
MBIT = 20
PATIENCE = 120


class LinkTest(unittest.TestCase):
    def test_many_to_one_shares_the_link_and_names_the_network(self):
        with netns.Fabric(leaves=3, spines=1, hosts_per_leaf=1, mbit=MBIT) as fabric:
            words = [BIN / "weft-bw", "link", "--pattern", "many-to-one", "-s", "16K", "-D", "2s", "-q", 1,
                     "-e", "--min-gbps", 1, "--json", "-"]
            ranks = [self.start(fabric, rank, words) for rank in range(3)]
            try:
                output, errors = ranks[0].communicate(timeout=PATIENCE)
                for rank in ranks[1:]:
                    rank.communicate(timeout=PATIENCE)
            finally:
                for rank in ranks:
                    rank.kill()
        self.assertEqual([rank.returncode for rank in ranks], [3, 3, 3], errors)
        self.assertIn("below --min-gbps 1", errors)
        row = json.loads(output)["rows"][0]
        self.assertLess(row["Gbps"] * 1e3, MBIT * 1.25)  # bursts, and windows that begin apart
        self.assertGreater(row["Gbps"] * 1e3, MBIT / 4)
        self.assertEqual([(flow["from"], flow["to"]) for flow in row["flows"]], [(1, 0), (2, 0)])
        self.assertIn(row["limited_by"], ("network", "buffer"), row["limit"])
        for lane in row["lanes"]:
            self.assertTrue(lane["name"].startswith(fabric.address(lane["from"])), lane)
            self.assertGreater(lane["rtt_p50_us"], 1000)  # a queue

    @staticmethod
    def start(fabric, rank, words):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": "0",
                       "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": fabric.address(0),
                       "MASTER_PORT": "29500", "WEFT_JOB_SECRET": SECRET}
        return fabric.start(rank, words, env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


SECRET = secrets.token_hex(32)

if __name__ == "__main__":
    netns.enter()
    netns.require_tbf()
    unittest.main(verbosity=2)

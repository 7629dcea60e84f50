"""NCCL itself over the plugin's tcp on a fabric of namespaces, its GPU scripted: with a plan its flows fill both spines
evenly; the same job without a plan runs beside it, and what its ports do is printed."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import nccl_job  # noqa: E402
import netns  # noqa: E402

COUNT = 500_000  # floats of a rank


class NcclPlannedTest(unittest.TestCase):
    def test_nccls_flows_fill_both_spines_by_the_plan(self):
        with tempfile.TemporaryDirectory(prefix="weft-nccl-") as name, \
             netns.Fabric(leaves=2, spines=2, hosts_per_leaf=2) as fabric:
            folder = pathlib.Path(name)
            plan = nccl_job.make_plan(fabric, folder, COUNT)
            with_plan, said, evenly, ways = nccl_job.run(fabric, folder, COUNT, plan)
            without_plan, _, by_chance, no_ways = nccl_job.run(fabric, folder, COUNT, None)
        for text in said:
            self.assertIn("Using network weft", text)
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
    if nccl_job.missing():
        netns.skip(nccl_job.missing())
    unittest.main(verbosity=2)

"""weft-plan paths makes a plan directory, and weft-run --plan runs a job on its paths."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import all_reduce  # noqa: E402
import netns  # noqa: E402
import planned  # noqa: E402

SIZE, REPEATS = 1 << 20, 2


def bw(transport, *more, algorithm="ring", size=SIZE):
    return [planned.BIN / "weft-bw", "--transport", transport, "--algorithm", algorithm, "-b", size,
            "-n", 1, "--repeats", REPEATS, "-w", 1, "--place", "in", "-a", 3, "--set",
            all_reduce.BUFFERS, "--json", *more]


def tree_edges(ranks):
    """(child, parent) of both trees of NCCL's double binary tree over an even number of ranks."""
    edges = []
    for rank in range(1, ranks):
        bit = rank & -rank
        parent = rank - bit if rank & 2 * bit or rank + bit >= ranks else rank + bit
        edges += [(rank, parent), (ranks - 1 - rank, ranks - 1 - parent)]
    return edges


class PlannedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-planned-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def plan(self, fabric, seed, algorithm="ring"):
        out = self.folder / f"plan-{algorithm}{seed}"
        fabric_file, hashes = planned.write_fabric(fabric, self.folder)
        planned.plan(fabric_file, hashes, out, fabric.hosts, SIZE, "--order", "random", "--seed",
                     seed, algorithm=algorithm)
        return out

    def test_every_flow_of_the_job_takes_its_planned_spine(self):
        with netns.Fabric(leaves=4, spines=2, hosts_per_leaf=2, mbit=40) as fabric:
            for transport, algorithm, seed in (("tcp", "ring", 1), ("tcp", "ring", 2), ("tcp", "tree", 1),
                                               ("tcp", "tree", 2)):
                out = self.plan(fabric, seed, algorithm)
                expected = self.planned_bytes(fabric, planned.Plan(out), algorithm)
                before = fabric.counters()
                text = planned.wait_all(planned.start_job(
                    fabric, out, bw(transport, algorithm=algorithm), lambda name: int(name[1:])))
                after = fabric.counters()
                row = next(json.loads(line) for line in text.splitlines()
                           if line.startswith("{"))["rows"][0]["in_place"]
                self.assertEqual(row["wrong"], 0)
                sent = [[a - b for a, b in zip(*rows)] for rows in zip(after, before)]
                for leaf in range(fabric.leaves):
                    for spine in range(fabric.spines):
                        self.assertGreaterEqual(sent[leaf][spine], expected[leaf][spine],
                                                (transport, algorithm, leaf, spine, sent, expected))

    def test_collectives_are_planned_by_the_switches_of_the_plan(self):
        with netns.Fabric(leaves=4, spines=2, hosts_per_leaf=2, mbit=40) as fabric:
            out = self.plan(fabric, 1)
            for more, switches in (((), 4), (("--set", "collective.fabric=leaf-spine:leaves=1,hosts_per_leaf=8",
                                                 "--set", "collective.fabric_host=h0"), 0)):
                text = planned.wait_all(planned.start_job(
                    fabric, out, bw("tcp", *more, algorithm="auto", size=4096), lambda name: int(name[1:])))
                row = next(json.loads(line) for line in text.splitlines()
                           if line.startswith("{"))["rows"][0]
                self.assertIn("8 hosts under 4 switches" if switches else "8 hosts; ", row["why"])

    def test_a_comparison_marks_what_the_job_takes_without_it(self):
        def rows(*more):
            text = planned.wait_all(planned.start_job(
                fabric, out, bw("tcp", "-e", 1 << 18, "-f", 64, *more, algorithm="auto", size=4096),
                lambda name: int(name[1:])))
            return next(json.loads(line) for line in text.splitlines() if line.startswith("{"))["rows"]

        with netns.Fabric(leaves=2, spines=2, hosts_per_leaf=2, mbit=40) as fabric:
            out = self.plan(fabric, 1)
            alone, compared = rows(), rows("--compare")
            self.assertEqual([row["size"] for row in alone], [4096, 1 << 18])
            for row in alone:
                self.assertIn("4 hosts under 2 switches", row["why"])
                of_size = [other for other in compared if other["size"] == row["size"]]
                self.assertEqual([other["algorithm"] for other in of_size if other["chosen"]], [row["algorithm"]])
                algorithms = [other["algorithm"] for other in of_size]
                self.assertEqual(len(set(algorithms)), len(algorithms))
                # Those of a place with switches are there, as the comparison knows the plan.
                self.assertLessEqual({"ring", "three_level"}, set(algorithms))
                self.assertEqual({other["in_place"]["wrong"] for other in of_size}, {0})

    def planned_bytes(self, fabric, plan, algorithm):
        out = [[0] * fabric.spines for _ in range(fabric.leaves)]
        ranks = len(plan.host_of_rank)
        edges = tree_edges(ranks)
        for rank, peer, choices in plan.flows:
            share = all_reduce.ring_bytes(ranks, SIZE)
            if algorithm == "tree":
                share = SIZE / 2 * sum(edge in ((rank, peer), (peer, rank)) for edge in edges)
            for leaf, choice in choices.items():
                out[int(leaf[4:])][int(choice.split("/")[0])] += share * REPEATS
        return out

    def test_a_plan_of_other_hosts_or_ranks_is_refused_by_name(self):
        with netns.Fabric(leaves=2, spines=2, hosts_per_leaf=2) as fabric:
            out = self.plan(fabric, 1)
            words = [planned.BIN / "weft-run", "--plan", out, "-n", 1, "--", "true"]
            program = fabric.start(0, words, text=True, stderr=planned.subprocess.PIPE)
            self.assertIn("is a plan for 4 ranks, 1 of them on this host (h0); this job has 1",
                          program.communicate(timeout=60)[1])
            self.assertEqual(program.returncode, 3)
            text = (out / "paths.txt").read_text().replace("10.1.0.", "10.7.0.")
            (out / "paths.txt").write_text(text)
            program = fabric.start(0, words, text=True, stderr=planned.subprocess.PIPE)
            self.assertIn(f"{out}/paths.txt is a plan for other hosts",
                          program.communicate(timeout=60)[1])
            self.assertEqual(program.returncode, 3)
            environment = dict(os.environ, WEFT_PLAN=str(out), RANK="0", WORLD_SIZE="2",
                               MASTER_ADDR=fabric.address(0), MASTER_PORT="29401",
                               WEFT_JOB_SECRET="11" * 32)
            program = fabric.start(0, bw("tcp"), env=environment, text=True,
                                   stderr=planned.subprocess.PIPE)
            said = program.communicate(timeout=60)[1]
            self.assertIn("does not name 10.1.0.1; it is for h0 (10.7.0.1)", said)
            self.assertNotEqual(program.returncode, 0)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)

"""The picture of weft-plan paths is XML, and says of each cable what the plan puts on it."""

import collections
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

BIN = pathlib.Path(os.environ.get("WEFT_BIN", "."))
SVG = "{http://www.w3.org/2000/svg}"
LEAVES, SPINES, HOSTS_PER_LEAF = 3, 4, 2
HOSTS = LEAVES * HOSTS_PER_LEAF
SIZE = 6 << 20
CELL, LEFT, TOP = 26, 90, 90  # of the heat maps


class PathsPictureTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="weft-picture-")
        cls.addClassCleanup(folder.cleanup)
        plan, svg = pathlib.Path(folder.name) / "plan", pathlib.Path(folder.name) / "paths.svg"
        cls.paths("--order", "random", "--seed", "3", "--out", plan)
        # A name that XML must not take for its own.
        cls.order = pathlib.Path(folder.name) / "r&d <1>"
        cls.order.write_text((plan / "ranks.txt").read_text())
        cls.paths("--order", cls.order, "--svg", svg, "--out", plan)
        cls.root = xml.etree.ElementTree.parse(svg).getroot()
        cls.leaf_of, cls.flows = {}, []
        for line in (plan / "paths.txt").read_text().splitlines():
            words = line.split()
            if words[0] == "host":
                cls.leaf_of[words[1]] = int(words[3].removeprefix("leaf"))
            if words[0] == "flow":
                spine = [int(word.split(":")[1].split("/")[0]) for word in words[6:]]
                cls.flows.append((cls.leaf_of[words[3].split(":")[0]], cls.leaf_of[words[4].split(":")[0]],
                                  spine[0] if spine else None))

    @staticmethod
    def paths(*more):
        subprocess.run(
            [BIN / "weft-plan", "paths", "--fabric",
             f"leaf-spine:leaves={LEAVES},hosts_per_leaf={HOSTS_PER_LEAF},spines={SPINES},bandwidth=10Gbps,"
             "spine_bandwidth=10Gbps", "--hash", "linux:seed=77", "--layout", f"dp={HOSTS}", "--node", "gpus=1",
             "--traffic", f"name=gradients,axes=dp,collective=all_reduce,bytes={SIZE}", *more],
            check=True, capture_output=True, text=True, timeout=120)

    def cells(self, x0):
        """{(leaf, spine, half): milliseconds} of the map that begins at x0; half 0 is up, 1 is down."""
        out = {}
        for rect in self.root.iter(f"{SVG}rect"):
            title = rect.find(f"{SVG}title")
            if title is None:
                continue
            x, y = int(rect.get("x")) - x0 - LEFT, int(rect.get("y")) - TOP
            if 0 <= x < SPINES * CELL:
                self.assertTrue(title.text.endswith(" ms"), title.text)
                out[y // CELL, x // CELL, x % CELL // (CELL // 2)] = float(title.text[:-3])
        return out

    def test_every_cable_shows_what_the_plan_puts_on_it(self):
        # A ring of all hosts: each sends 2 (n - 1) / n of the size, at 10 Gbit/s.
        each = 2 * (HOSTS - 1) / HOSTS * SIZE * 8 / 10e9 * 1e3
        expected = collections.Counter()
        for source, target, spine in self.flows:
            if spine is not None:
                expected[source, spine, 0] += 1
                expected[target, spine, 1] += 1
        self.assertTrue(expected)
        planned = self.cells(LEFT + SPINES * CELL + 80)
        self.assertEqual(len(planned), LEAVES * SPINES * 2)
        for at, milliseconds in planned.items():
            self.assertAlmostEqual(milliseconds, expected[at] * each, delta=0.001 * each, msg=at)

    def test_titles_name_the_order_and_give_the_fullest_cable(self):
        texts = [text.text for text in self.root.iter(f"{SVG}text")]
        self.assertIn(self.order.name, texts[0])
        for words, x0 in (("before", 0), ("planned", LEFT + SPINES * CELL + 80)):
            title = next(text for text in texts if text.startswith(f"{words}: fullest "))
            fullest = max(self.cells(x0).values())
            self.assertAlmostEqual(float(title.split()[2]), fullest, delta=0.01 * fullest)

    def test_every_flow_is_a_line_over_the_switches_that_it_takes(self):
        lines = [line.get("points").split() for line in self.root.iter(f"{SVG}polyline")]
        self.assertEqual(sorted(map(len, lines)), sorted(3 if spine is None else 5 for _, _, spine in self.flows))
        names = {text.text for text in self.root.iter(f"{SVG}text")}
        for name in ("leaf0", f"leaf{LEAVES - 1}", f"spine{SPINES - 1}", f"h{HOSTS - 1}"):
            self.assertIn(name, names)


if __name__ == "__main__":
    unittest.main(verbosity=2)

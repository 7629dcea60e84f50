"""The page of weft-trace: its script draws a job that hangs and says who is missing.

Its script runs under node with a stand-in for the document (page_test.js); skipped where there is none.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ["WEFT_BIN"])
sys.path.insert(0, str(FOLDER))

from fr_trace_test import HANG, wait_for_finding  # noqa: E402
from unchanged_test import write_config  # noqa: E402


RED, AXES = "#d33", {"tp": "#4a7fc1", "dp": "#b98a2d"}


class Page(unittest.TestCase):
    def page_of(self, program: list, finding: str, fault=None) -> dict:
        """What the page says of a job of four ranks once `finding` is named; `fault`, called with the rings,
        causes it where the program itself does not."""
        with tempfile.TemporaryDirectory(prefix="weft-page-") as folder:
            rings, page = pathlib.Path(folder) / "rings", pathlib.Path(folder) / "trace.html"
            job = subprocess.Popen(
                [BIN / "weft-run", "-n", "4", "--output", "none", "--set", f"records.folder={rings}",
                 "--", *program], stderr=subprocess.DEVNULL, cwd=folder)
            try:
                if fault is not None:
                    fault(rings)
                wait_for_finding(rings, finding)
                subprocess.run([BIN / "weft-trace", "--records", rings, "--html", page], check=True,
                               stdout=subprocess.DEVNULL)
            finally:
                job.terminate()
                job.wait()
            done = subprocess.run(["node", FOLDER / "page_test.js", page], capture_output=True,
                                  text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check_flows(self, said: dict):
        """Flows that stand still are red lines, thick where they touch a rank that is blamed."""
        still = [{rank, peer} for rank, peer, stands in said["flows"] if stands]
        thick = sum(1 for ends in still if ends & set(said["culprits"]))
        self.assertEqual(said["strokes"].count([RED, 3]), thick)
        self.assertEqual(said["strokes"].count([RED, 1]), len(still) - thick)

    def test_draws_a_mesh_by_its_axes(self):
        def stop(rings):
            subprocess.run([BIN / "weft-fault", "inject", "--records", rings, "--rank", "1", "--fault",
                            "stop", "--step", "3"], check=True, stdout=subprocess.DEVNULL)
        with tempfile.TemporaryDirectory(prefix="weft-mesh-") as folder:
            config = write_config(pathlib.Path(folder), 100000)
            said = self.page_of([BIN / "weft-train", config, "--tp", "2", "--run-dir", "run"], "stopped rank", stop)
        self.assertIn("stopped rank: rank 1", said["findings"][0])
        self.assertIn("rank 1 on ", said["opened"])
        self.assertIn("place: TP 1, ", said["opened"].upper().replace("PLACE", "place"))
        self.assertEqual(said["nodes"], 4)
        for color in AXES.values():
            self.assertEqual(said["strokes"].count([color, 1]), 2, "two pairs of neighbours an axis")
        self.check_flows(said)

    def test_shows_who_did_not_call(self):
        said = self.page_of([BIN / "weft-fault", "run", "--fault", "hang-data", "--rank", "2", "--step",
                             "4", "--step-time", "20ms"], HANG)
        self.check_flows(said)
        self.assertIn("4 of 4 ranks", said["facts"])
        self.assertIn("hang outside of communication: rank 2 (data)", said["findings"][0])
        self.assertIn("all_reduce (under way)", said["call"])
        self.assertIn("not called by ranks 1, 2, 3", said["call"])
        self.assertIn("rank 3 on ", said["rank"])
        self.assertIn("group world: 4 ranks, neighbours 2 and 0", said["rank"])
        self.assertIn("rank 2 on ", said["opened"], "the page begins with who is blamed")
        self.assertIn("hang outside of communication", said["opened"])
        self.assertEqual(said["nodes"], 4)
        self.assertIn("rank 1 on ", said["node"])
        self.assertIn("group world: 4 ranks, neighbours 0 and 2", said["node"])
        self.assertRegex(said["node"], r"to 2 over \w+: \d+ bytes")
        self.assertTrue(said["turned"], "dragging turns the mesh and chooses nobody")
        self.assertIn("backward", said["heat"])
        self.assertGreater(said["drawn"], 10)


if __name__ == "__main__":
    if shutil.which("node") is None:
        print("skipped: there is no node here")
        sys.exit(77)
    unittest.main()

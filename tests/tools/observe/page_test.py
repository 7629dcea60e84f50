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

from fr_trace_test import wait_for_finding  # noqa: E402


class Page(unittest.TestCase):
    def test_shows_who_did_not_call(self):
        with tempfile.TemporaryDirectory(prefix="weft-page-") as folder:
            rings, page = pathlib.Path(folder) / "rings", pathlib.Path(folder) / "trace.html"
            job = subprocess.Popen(
                [BIN / "weft-run", "-n", "4", "--output", "none", "--set", f"records.folder={rings}",
                 "--", BIN / "weft-fault", "run", "--fault", "hang-data", "--rank", "2", "--step",
                 "4", "--step-time", "20ms"], stderr=subprocess.DEVNULL)
            try:
                self.assertNotEqual(wait_for_finding(rings), "")
                subprocess.run([BIN / "weft-trace", "--records", rings, "--html", page], check=True,
                               stdout=subprocess.DEVNULL)
            finally:
                job.terminate()
                job.wait()
            done = subprocess.run(["node", FOLDER / "page_test.js", page], capture_output=True,
                                  text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
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

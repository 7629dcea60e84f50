"""Benchmarks with --before: another build's programs are measured in turns, and are a peer by that name."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from _path import SOURCE

SIM = """echo {name} >> {log}
echo '{{"link_traversals": {traversals}, "wall_seconds": 1, "max_rss_mb": 7}}'
"""
BW = """echo {name} >> {log}
echo '{{"rows": [{{"in_place": {{"wrong": 0, "repeats_us": [{us}]}}, "out_of_place": null}}]}}'
"""


class Before(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.log = self.folder / "log"

    def build(self, name: str, **programs: str) -> pathlib.Path:
        folder = self.folder / name
        folder.mkdir()
        for program, text in programs.items():
            path = folder / program.replace("_", "-")
            path.write_text("#!/bin/sh\n" + text)
            path.chmod(0o755)
        return folder

    def bench(self, script: str, here: pathlib.Path, *words) -> list[dict]:
        done = subprocess.run([sys.executable, "-B", SOURCE / f"tests/bench/{script}.py", *map(str, words)],
                              env=dict(os.environ, WEFT_BIN=str(here)), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def turns(self) -> list[str]:
        return self.log.read_text().split()

    def test_the_simulator_of_both_builds_runs_in_turns(self):
        here, before = (
            self.build(name, weft_bw="", weft_sim=SIM.format(name=name, log=self.log, traversals=traversals))
            for name, traversals in (("here", 6_000_000), ("there", 5_000_000)))
        rows = self.bench("sim", here, "--hosts", 128, "--repeats", 2, "--before", before)
        row = next(row for row in rows if row["peer_name"] == "before")
        self.assertEqual((row["ours"], row["peer"], row["ratio"]), (6, 5, 1.2))
        self.assertEqual(len(rows), 2)  # and htsim's figure
        self.assertEqual(self.turns(), ["here", "there"] * 2)

    def test_collectives_of_both_builds_run_in_turns(self):
        here, before = (self.build(name, weft_bw=BW.format(name=name, log=self.log, us=us))
                        for name, us in (("here", 10), ("there", 25)))
        rows = self.bench("collectives", here, "--costs", "defaults", "--rounds", 2, "--ranks", 2, "--sizes", "1KiB",
                          "--peers", "--no-regret", "--limit", 60, "--repeat-ms", 1, "--before", before)
        self.assertEqual({(row["peer_name"], row["ours"], row["peer"], row["ratio"]) for row in rows},
                         {("before", 10, 25, 2.5)})
        self.assertEqual(len(rows), 5)  # one an operation
        # A round has five operations of this build, all-reduce over tcp, and five operations of the other.
        self.assertEqual(self.turns(), (["here"] * 6 + ["there"] * 5) * 2)

    def test_a_folder_without_programs_is_an_error(self):
        here = self.build("here", weft_bw="", weft_sim="")
        done = subprocess.run([sys.executable, "-B", SOURCE / "tests/bench/sim.py", "--before", self.folder],
                              env=dict(os.environ, WEFT_BIN=str(here)), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"there is no weft-bw in {self.folder}", done.stderr)


if __name__ == "__main__":
    unittest.main()

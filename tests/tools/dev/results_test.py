"""tools/dev test and bench: how results are counted, and which rows are accepted."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import _path  # noqa: F401
import bench
import demo
import tests
from common import Failure

CTEST = """<?xml version="1.0"?>
<testsuite name="weft">
  <testcase name="unit.good_test" status="run"><system-out>fine</system-out></testcase>
  <testcase name="unit.bad_test" status="fail"><failure message="Failed"/></testcase>
  <testcase name="local.crash_test" status="fail"><failure message="SEGFAULT"/></testcase>
  <testcase name="unit.script_test" status="run"/>
  <testcase name="torch.loud_test" status="run"><system-out>test_a (__main__.T.test_a) ... ok
test_b (__main__.T.test_b)
What b says. ... skipped "there's no g++"
test_c (__main__.T.test_c) ... printed
skipped 'it\\'s "old"'

Ran 3 tests in 0.001s

OK (skipped=2)
</system-out></testcase>
  <testcase name="launch.quiet_test" status="run"><system-out>ss
----------------------------------------------------------------------
Ran 2 tests in 0.001s

OK (skipped=2)
</system-out></testcase>
  <testcase name="roce.soft_test" status="notrun">
    <skipped message="SKIP_RETURN_CODE=77"/><system-out>x
skipped: there is no /dev/kvm</system-out></testcase>
  <testcase name="unit.lost_test" status="notrun">
    <skipped message="Unable to find executable"/></testcase>
</testsuite>"""

GOOD = """<testsuites><testsuite name="Net">
  <testcase name="Sends" status="run" result="completed" classname="Net"/>
  <testcase name="Ipv6" status="run" result="skipped" classname="Net">
    <skipped message="net_test.cc:12&#x0A;this machine has no IPv6&#x0A;"/></testcase>
  <testcase name="Off" status="notrun" result="suppressed" classname="Net"/>
</testsuite></testsuites>"""

BAD = """<testsuites><testsuite name="Math">
  <testcase name="Adds" status="run" result="completed" classname="Math">
    <failure message="1 != 2"/></testcase>
  <testcase name="Halves" status="run" result="completed" classname="Math"/>
</testsuite></testsuites>"""


class Results(unittest.TestCase):
    def read(self, preset: str) -> tests.Result:
        with tempfile.TemporaryDirectory() as folder:
            reports = pathlib.Path(folder)
            (reports / "ctest.xml").write_text(CTEST)
            (reports / "good_test.xml").write_text(GOOD)
            (reports / "bad_test.xml").write_text(BAD)
            return tests.read_results(reports / "ctest.xml", preset)

    def test_cases_are_counted_and_skips_keep_their_reasons(self):
        result = self.read("release")
        self.assertEqual(result.passed, 4)  # Net.Sends, Math.Halves, script_test, loud_test
        self.assertEqual(result.failures,
                         ["unit.bad_test Math.Adds", "local.crash_test: SEGFAULT",
                          "unit.lost_test: Unable to find executable"])
        self.assertEqual(result.skips,
                         [("unit.good_test Net.Ipv6", "this machine has no IPv6"),
                          ("torch.loud_test", "there's no g++"), ("torch.loud_test", 'it\'s "old"'),
                          *[("launch.quiet_test", "its unittest names the reason with -v only")] * 2,
                          ("roce.soft_test", "there is no /dev/kvm")])

    def test_another_preset_is_named(self):
        self.assertIn("tsan: unit.bad_test Math.Adds", self.read("tsan").failures)

    def test_the_summary_ends_with_the_numbers(self):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            tests.print_summary(self.read("release"))
        self.assertEqual(text.getvalue().splitlines()[-1], "4 passed, 3 failed, 6 skipped")
        self.assertIn("skipped, there is no /dev/kvm:\n    roce.soft_test\n", text.getvalue())

    def test_tiers_are_labels_and_other_words_are_names(self):
        self.assertEqual(tests.selection(None), [])
        self.assertEqual(tests.selection("unit"), ["-L", "^(unit)$"])
        self.assertEqual(tests.selection("unit|local"), ["-L", "^(unit|local)$"])
        self.assertEqual(tests.selection("trace"), ["-R", "trace"])


ROW = {"name": "all_reduce", "case": "1 KiB, 2 ranks", "ours": 2.0, "peer": 1.0,
       "peer_name": "gloo", "unit": "GB/s", "ratio": 2.0, "repeats": 5}


class Bench(unittest.TestCase):
    def collect(self, script: str) -> list[dict]:
        rows: list[dict] = []
        bench.collect([sys.executable, "-c", script], dict(os.environ), rows)
        return rows

    def test_rows_are_collected(self):
        self.assertEqual(self.collect(f"print({json.dumps(ROW)!r})"), [ROW])

    def test_what_more_a_row_says_is_kept(self):
        row = {**ROW, "exposed_share": 0.25}
        self.assertEqual(self.collect(f"print({json.dumps(row)!r})"), [row])

    def test_what_is_no_row_is_an_error(self):
        with self.assertRaisesRegex(Failure, "no row: hello"):
            self.collect("print('hello')")
        with self.assertRaisesRegex(Failure, "ratio"):
            incomplete = {key: value for key, value in ROW.items() if key != "ratio"}
            self.collect(f"print({json.dumps(incomplete)!r})")

    def test_a_script_that_fails_is_an_error(self):
        with self.assertRaisesRegex(Failure, "status 3"):
            self.collect("raise SystemExit(3)")

    def test_what_a_script_measured_before_it_failed_is_kept(self):
        rows: list[dict] = []
        with self.assertRaisesRegex(Failure, "status 3"):
            bench.collect([sys.executable, "-c", f"print({json.dumps(ROW)!r}); raise SystemExit(3)"],
                          dict(os.environ), rows)
        self.assertEqual(rows, [ROW])


class Demo(unittest.TestCase):
    def test_an_earlier_run_is_kept(self):
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(demo, "ROOT", pathlib.Path(folder)), \
                mock.patch.object(demo, "say"):
            run = pathlib.Path(folder) / "demo"
            demo.move_aside(run)  # nothing there: nothing to do
            run.mkdir()
            (run / "loss.svg").touch()
            demo.move_aside(run)
            (aside,) = pathlib.Path(folder).iterdir()
            self.assertNotEqual(aside.name, "demo")
            self.assertTrue((aside / "loss.svg").exists())


if __name__ == "__main__":
    unittest.main()

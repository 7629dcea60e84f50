"""Benchmarks compare like with like: what of either side stands in one row."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

from _path import BIN, SOURCE

os.environ.setdefault("WEFT_BIN", str(BIN))
sys.path.insert(0, str(SOURCE / "tests/bench"))
import train

BW = """case " $* " in
  *" --buffers private "*) echo private >> {log}; us=10 ;;
  *" --buffers shared "*) echo shared >> {log}; us=5 ;;
  *) echo neither >> {log}; us=1 ;;
esac
echo "{{\\"rows\\": [{{\\"in_place\\": {{\\"wrong\\": 0, \\"repeats_us\\": [$us]}}, \\"out_of_place\\": null}}]}}"
"""
# Both programs write their result where --json says.
WRITES = """while [ "$1" != --json ]; do shift; done
echo '{result}' > "$2"
"""


class Programs(unittest.TestCase):
    """Benchmarks on programs that play the built ones."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    def bench(self, script: str, *words) -> list[dict]:
        done = subprocess.run([sys.executable, "-B", SOURCE / f"tests/bench/{script}.py", *map(str, words)],
                              env=dict(os.environ, WEFT_BIN=str(self.folder)), capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_collectives_have_private_memory_as_peers_do_and_shared_memory_is_a_row_of_its_own(self):
        log = self.folder / "log"
        self.put("weft-bw", BW.format(log=log))
        rows = self.bench("collectives", "--costs", "defaults", "--rounds", 1, "--ranks", 2, "--sizes", "1KiB",
                          "--peers", "shared", "--no-regret", "--limit", 60, "--repeat-ms", 1)
        self.assertEqual({(row["peer_name"], row["ours"], row["peer"]) for row in rows},
                         {("weft, shared buffers", 10, 5)})
        # Five operations, all-reduce over tcp, and five operations again.
        self.assertEqual(log.read_text().split(), ["private"] * 6 + ["shared"] * 5)

    def test_groups_are_compared_with_the_other_store_by_the_same_exchange_too(self):
        self.put("weft-init", WRITES.format(result=json.dumps({"phases": {"exchange": 1, "groups": 1}})))
        self.put("tests/init_bench", WRITES.format(result=json.dumps({"one_by_one": {
            "one_by_one": [{"seconds": 100, "predicted": True}], "exchange": {"seconds": 8}}})))
        rows = self.bench("init", "--cases", "groups", "--peers", "torch", "--rounds", 1)
        self.assertEqual({row["case"].partition(", ")[2]: (row["ours"], row["peer"], row["ratio"]) for row in rows},
                         {"TCPStore one by one predicted": (2, 100, 50), "TCPStore by one exchange as ours": (2, 8, 4)})


class WorkOfAStep(unittest.TestCase):
    def classes(self, median: bool) -> tuple[float, float]:
        """The sums over all classes of a step, ours and the peer's: each step is all products."""
        def step(seconds: float) -> dict:
            return {**dict.fromkeys(train.CLASSES, 0.0), "gemm": seconds}

        seconds = [9.0, 9.0, 1.0, 2.0, 4.0]  # two that do not count
        ours = [{"seconds": seconds, "work": [step(one) for one in seconds]}]
        peer = [{"seconds": [9.0, 9.0, 2.0, 3.0, 8.0], "shares": step(1.0)}]
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out, \
                contextlib.redirect_stderr(io.StringIO()):
            scratch = pathlib.Path(folder)
            (scratch / f"data{train.VOCABULARY}.json").write_text("{}")
            options = types.SimpleNamespace(steps=5, repeats=1, median=median)
            train.Case(scratch, "gpt-12m", "2x1", "fp32", options).class_rows(ours, peer, "PyTorch DDP")
        rows = [json.loads(line) for line in out.getvalue().splitlines()]
        self.assertEqual(len(rows), len(train.CLASSES) + 1)
        return sum(row["ours"] for row in rows), sum(row["peer"] for row in rows)

    def test_both_sides_have_their_fastest_step(self):
        self.assertEqual(self.classes(median=False), (1e3, 2e3))

    def test_with_medians_both_sides_have_their_median_step(self):
        self.assertEqual(self.classes(median=True), (2e3, 3e3))


if __name__ == "__main__":
    unittest.main()

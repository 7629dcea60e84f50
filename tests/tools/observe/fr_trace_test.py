"""PyTorch's own analyser of Flight Recorder dumps names the rank that is missing from a collective.

Skipped where no Python has torch.distributed.flight_recorder (WEFT_BENCH_PYTHON names one that does).
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from processes import until  # noqa: E402

BIN = pathlib.Path(os.environ["WEFT_BIN"])
PATIENCE = 120  # seconds, a bound on hangs
HANG = "hang outside of communication"
MODULE = "torch.distributed.flight_recorder.fr_trace"


def interpreter() -> str | None:
    dependencies = os.environ.get("WEFT_DEPS_DIR", "")
    for python in (os.environ.get("WEFT_BENCH_PYTHON"), f"{dependencies}/bench-venv/bin/python",
                   sys.executable):
        if python and pathlib.Path(python).exists() and subprocess.run([python, "-c", f"import {MODULE}"], capture_output=True,
                                     check=False).returncode == 0:
            return python
    return None


def wait_for_finding(rings: pathlib.Path, fault: str) -> None:
    """Until weft-diagnose names that fault: on a busy machine it may find a rank slow before."""
    until(lambda: f"\n{fault}: rank" in subprocess.run(
        [BIN / "weft-diagnose", "--watch", "5s", "--records", rings], capture_output=True, text=True,
        check=False, timeout=PATIENCE).stdout, PATIENCE, f"{fault!r} of weft-diagnose")


class FlightRecorder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-fr-")
        self.rings = pathlib.Path(self.folder.name) / "rings"
        self.dumps = pathlib.Path(self.folder.name) / "dumps"

    def tearDown(self):
        self.folder.cleanup()

    def dump(self, fault: str) -> str:
        """What the analyser prints of a job with this fault on rank 2 of 4."""
        job = subprocess.Popen(
            [BIN / "weft-run", "-n", "4", "--output", "none", "--set",
             f"records.folder={self.rings}", "--set", "records.keep=true", "--", BIN / "weft-fault",
             "run", "--fault", fault, "--rank", "2", "--step", "3", "--steps", "5", "--step-time",
             "20ms"], stderr=subprocess.DEVNULL)
        try:
            if fault == "none":
                self.assertEqual(job.wait(timeout=PATIENCE), 0)
            else:
                wait_for_finding(self.rings, HANG)
            subprocess.run([BIN / "weft-trace", "--records", self.rings, "--flight-recorder",
                            self.dumps], check=True, stdout=subprocess.DEVNULL)
        finally:
            job.terminate()
            job.wait()
        done = subprocess.run([PYTHON, "-m", MODULE, str(self.dumps)], capture_output=True,
                              text=True, check=False)
        return done.stdout + done.stderr

    def test_a_rank_that_hangs_is_missing(self):
        text = self.dump("hang-data")
        self.assertIn("missing ranks: {2}", text)
        self.assertNotIn("Traceback", text)

    def test_a_healthy_job_matches(self):
        text = self.dump("none")
        self.assertNotIn("Error type", text)
        self.assertNotIn("missing ranks", text)
        self.assertNotIn("Traceback", text)


PYTHON = interpreter()

if __name__ == "__main__":
    if PYTHON is None:
        print(f"skipped: no Python here has {MODULE}")
        sys.exit(77)
    unittest.main()

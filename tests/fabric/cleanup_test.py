"""A fabric whose program is killed leaves no process, no namespace and no interface."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
PROGRAM = FOLDER / "cleanup_program.py"
PATIENCE = 60


def descendants(pid) -> set:
    out = set()
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            out |= {child} | descendants(child)
    return out


def alive(pid) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def network() -> tuple:
    names = sorted(path.name for path in pathlib.Path("/sys/class/net").iterdir())
    folder = pathlib.Path("/run/netns")
    return names, sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class CleanupTest(unittest.TestCase):
    def test_a_killed_program_leaves_nothing(self):
        before = network()
        for number in (signal.SIGKILL, signal.SIGTERM):
            with subprocess.Popen([sys.executable, "-B", PROGRAM, FOLDER], text=True,
                                  stdout=subprocess.PIPE) as program:
                self.assertEqual(program.stdout.readline().strip(), "up")
                self.assertEqual(network(), before)  # nor is anything seen while it runs
                inside = descendants(program.pid)
                self.assertGreater(len(inside), 2)
                os.kill(program.pid, number)
                program.wait(timeout=PATIENCE)
            deadline = time.monotonic() + PATIENCE
            while any(map(alive, inside)) and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertEqual([pid for pid in inside if alive(pid)], [])
            self.assertEqual(network(), before)


if __name__ == "__main__":
    probe = subprocess.run([sys.executable, "-B", PROGRAM, FOLDER, "probe"])
    if probe.returncode != 0:  # it has said why
        raise SystemExit(probe.returncode)
    unittest.main(verbosity=2)

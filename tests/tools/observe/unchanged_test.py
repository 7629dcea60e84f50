"""What watches a job does not change it: its losses are the same to the bit, and all its steps are done,
when nobody takes the agent's metrics and when there is no room for the records.

Needs root, for a file system of its own that is full.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests/tools/run"))

import tiny_training  # noqa: E402
from processes import until  # noqa: E402

BIN = pathlib.Path(os.environ["WEFT_BIN"])
STEPS = 30


def write_config(folder: pathlib.Path, steps: int) -> pathlib.Path:
    """Of a tiny model and text that was prepared for it in folder."""
    text, prefix, config = folder / "text", folder / "tiny", folder / "tiny.toml"
    tiny_training.write_text(str(text), random.Random(1))
    subprocess.run([BIN / "weft-data", "prepare", "--input", text, "--output-prefix", prefix, "--vocab-size", "300"],
                   check=True, capture_output=True, timeout=60)
    config.write_text(tiny_training.config(prefix, steps, global_batch=4, checkpoint_every=0))
    return config


def train(config: pathlib.Path, folder: pathlib.Path, *settings: str) -> tuple[list[float], str]:
    """The losses of a run of two ranks, and what it said."""
    words = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run([BIN / "weft-run", "-n", "2", *words, "--", BIN / "weft-train", config, "--run-dir", folder,
                           "--set", "train.tensorboard=true"],
                          capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row], done.stdout + done.stderr


class Agent:
    """A weft-agent whose sink is a port at which nobody listens."""

    def __init__(self, rings: pathlib.Path):
        self.process = subprocess.Popen([BIN / "weft-agent", "--listen", "127.0.0.1:0", "--records", rings, "--otlp",
                                         "127.0.0.1:1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.address = None
        for line in self.process.stdout:
            if found := re.search(r"http://([\d.:]+)", line):
                self.address = found.group(1)
                break
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def number(self, name: str) -> float:
        page = urllib.request.urlopen(f"http://{self.address}/metrics", timeout=60).read().decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if re.match(rf"{name}[{{ ]", line))

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


class Unchanged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="weft-unchanged-")
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.config = write_config(cls.folder, STEPS)
        cls.losses, _ = train(cls.config, cls.folder / "plain", f"records.folder={cls.folder / 'plain-rings'}")
        assert len(cls.losses) == STEPS

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_by_a_sink_that_nobody_serves(self):
        rings = self.folder / "rings"
        agent = Agent(rings)
        try:
            losses, _ = train(self.config, self.folder / "sink", f"records.folder={rings}", "records.keep=true")
            # The agent may come to its turn only now.
            until(lambda: agent.number("weft_agent_push_failures_total") > 0, 60, "a push that fails")
        finally:
            agent.stop()
        self.assertEqual(losses, self.losses)

    def test_by_a_full_disk_under_its_records(self):
        full = self.folder / "full"
        full.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "weft-full", full], check=True)
        try:
            losses, said = train(self.config, self.folder / "disk", f"records.folder={full}/rings")
        finally:
            subprocess.run(["umount", full], check=True)
        self.assertIn("No space left on device", said)
        self.assertEqual(losses, self.losses)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: mounting a full file system needs root")
        sys.exit(77)
    if "--mounted" not in sys.argv:
        namespace = ["unshare", "--mount", "--propagation", "private"]
        if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode != 0:
            print("skipped: there are no mount namespaces here")
            sys.exit(77)
        os.execvp("unshare", [*namespace, sys.executable, "-B", __file__, "--mounted"])
    sys.argv.remove("--mounted")
    unittest.main()

"""Connections that never say who they are do not end a training run.

Two ranks over tcp, each of which may have 1,024 descriptors and no more. 1,500 idle connections come
to rank 0 and stay: the run goes on, and commits checkpoints.
"""

import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import tiny_training
from processes import environment, of_job, program, until

LIMIT = 1024
PEERS = 1500
STARTUP = 120.0  # seconds, a bound on hangs


def listeners(pid: int) -> list[int]:
    """The ports at which a process listens."""
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
        except OSError:
            pass
    ports = []
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            ports.append(int(words[1].split(":")[1], 16))
    return ports


def come(port: int, count: int):
    """Connects `count` times, says so, and stays until its standard input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept = [socket.create_connection(("127.0.0.1", port), timeout=STARTUP) for _ in range(count)]
    print(len(kept), flush=True)
    sys.stdin.read()


class UnauthenticatedPeersTest(unittest.TestCase):
    def setUp(self):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < PEERS + 100:
            self.skipTest(f"a process may have {hard} descriptors here")
        folder = tempfile.mkdtemp(prefix="weft-unauthenticated-")
        self.addCleanup(shutil.rmtree, folder)
        draw = random.Random(1)
        text = pathlib.Path(folder, "text.txt")
        text.write_text("".join(draw.choices("abcdefghij    \n", k=60000)), encoding="utf-8")
        prefix = os.path.join(folder, "tiny")
        subprocess.run([program("weft-data"), "prepare", "--input", str(text), "--output-prefix",
                        prefix, "--vocab-size", "300"], check=True, stdout=subprocess.DEVNULL,
                       timeout=STARTUP)
        config = pathlib.Path(folder, "tiny.toml")
        config.write_text(tiny_training.config(prefix, steps=1000000, global_batch=4, checkpoint_every=20),
                          encoding="utf-8")
        self.job = f"unauthenticated-{os.getpid()}"
        self.run_dir = os.path.join(folder, "run")
        self.log = open(os.path.join(folder, "log"), "w+", encoding="utf-8", errors="replace")
        self.addCleanup(self.log.close)
        self.launcher = subprocess.Popen(
            [program("weft-run"), "-n", "2", "--job", self.job, "--grace", f"{STARTUP:.0f}s", "--set",
             "transport=tcp", "--set", "tcp.interface=lo", "--", program("weft-train"), str(config),
             "--run-dir", self.run_dir],
            stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT)))
        self.addCleanup(self.end)

    def end(self):
        self.launcher.kill()
        self.launcher.wait()

    def text(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def committed(self) -> int:
        """The newest checkpoint's step; fails where the run has ended."""
        self.assertIsNone(self.launcher.poll(), self.text())
        steps = [int(name[5:]) for name in os.listdir(os.path.join(self.run_dir, "checkpoints"))
                 if re.fullmatch(r"step-\d+", name)] if os.path.isdir(self.run_dir) and os.path.isdir(
                     os.path.join(self.run_dir, "checkpoints")) else []
        return max(steps, default=0)

    def test_the_run_goes_on_and_commits_checkpoints(self):
        until(lambda: self.committed() > 0, STARTUP)
        ranks = {int(environment(pid)[b"RANK"]): pid for pid in of_job(self.job)
                 if b"RANK" in environment(pid)}
        (port,) = listeners(ranks[0])
        peers = subprocess.Popen([sys.executable, "-B", __file__, "come", str(port)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(peers.stdout.readline(), f"{PEERS}\n")
            step = self.committed()
            until(lambda: self.committed() > step + 40, STARTUP)
            self.assertLess(len(os.listdir(f"/proc/{ranks[0]}/fd")), LIMIT // 2)
            self.launcher.send_signal(signal.SIGTERM)
            self.launcher.wait(STARTUP)
        finally:
            peers.communicate()
        lines = [line for line in self.text().splitlines() if "127.0.0.1:" in line]
        self.assertLess(len(lines), 100, self.text())
        with open(os.path.join(self.run_dir, "metrics.jsonl"), encoding="utf-8") as file:
            last = json.loads(file.read().splitlines()[-1])["step"]
        names = os.listdir(os.path.join(self.run_dir, "checkpoints"))
        self.assertIn(last, [int(name[5:]) for name in names if name.startswith("step-")])


if __name__ == "__main__":
    if sys.argv[1:2] == ["come"]:
        come(int(sys.argv[2]), PEERS)
    else:
        unittest.main(verbosity=2)

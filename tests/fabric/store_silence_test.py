"""A host that vanishes: its link goes away, and nobody says so. The store and its clients notice within
the bound that they were given, and say who is missing and where."""

import os
import pathlib
import subprocess
import sys
import unittest

import netns

netns.enter()

BIN = pathlib.Path(os.environ["WEFT_BIN"])
sys.path.insert(0, str(BIN.parent / "python"))
from weft.store import Client, StoreTimeout  # noqa: E402

SECRET = "cd" * 32
SILENCE = 3
# What is given up by then counts as noticed: machines in tests may be slow.
BOUND = 60

# On the host that vanishes: rank 1 only waits, rank 2 has come to the barrier.
FAR = """
import sys
from weft.store import Client, StoreError
address, secret, rank, silence = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
store = Client(address, secret=secret, rank=rank, silence=silence, reconnect=0.5)
store.set(f"up{rank}", "")
try:
    if rank == 1: store.get("never", 600)
    if rank == 2: store.barrier("all", 2, 3, 600)
except StoreError as error:
    print(error.code, error, flush=True)
"""


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True)


class SilenceTest(unittest.TestCase):
    def setUp(self):
        ip("link", "set", "lo", "up")
        ip("netns", "add", "far")
        ip("link", "add", "near", "type", "veth", "peer", "name", "away", "netns", "far")
        ip("addr", "add", "10.9.0.1/24", "dev", "near")
        ip("link", "set", "near", "up")
        ip("-n", "far", "addr", "add", "10.9.0.2/24", "dev", "away")
        ip("-n", "far", "link", "set", "away", "up")
        self.environment = dict(os.environ, WEFT_JOB_SECRET=SECRET,
                                PYTHONPATH=str(BIN.parent / "python"))

    def start(self, *command: str, **options) -> subprocess.Popen:
        process = subprocess.Popen(command, env=self.environment, text=True,
                                   stdout=subprocess.PIPE, **options)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_both_ends_notice_and_say_who_it_was(self):
        server = self.start(str(BIN / "weft-store"), "--listen", "10.9.0.1:0", "--silence",
                            f"{SILENCE}s")
        address = server.stdout.readline().split()[-1]
        far = [self.start("ip", "netns", "exec", "far", "/usr/bin/python3", "-B", "-c", FAR,
                          address, SECRET, str(rank), str(SILENCE)) for rank in (1, 2)]
        near = Client(address, secret=SECRET, rank=0, silence=SILENCE)
        self.addCleanup(near.close)
        near.wait(["up1", "up2"], BOUND)

        # The near end hears no more than that nothing comes.
        ip("-n", "far", "link", "set", "away", "down")

        for process in far:
            said, _ = process.communicate(timeout=BOUND)
            self.assertRegex(said, r"^UNAVAILABLE .*the store at 10\.9\.0\.1:\d+ is gone; "
                                   r"it was served by weft-store")
        # Their end has come within the bound; the server counts from earlier, of each connection by itself.
        host = os.uname().nodename
        for attempt in range(BOUND):
            with self.assertRaises(StoreTimeout) as missing:
                near.barrier(f"some{attempt}", 0, 3, 1)
            if str(missing.exception).count("whose connection is lost") == 2:
                break
        self.assertRegex(str(missing.exception),
                         rf"2 of 3 ranks missing after 1s: 1 \(rank 1 pid \d+ on {host}\), whose "
                         rf"connection is lost, 2 \(rank 2 pid \d+ on {host}\), whose")
        near.set("still", "here")
        self.assertEqual(near.get("still", BOUND), b"here")


if __name__ == "__main__":
    unittest.main()

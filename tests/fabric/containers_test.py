"""Ranks in containers of one host: `transport=auto` takes what reaches.

Containers differ in their namespaces, and have the kernel and the user in common. Memory is shared
between those of one network and one user namespace; all others talk over tcp.
"""

import os
import pathlib
import re
import secrets
import subprocess
import time
import unittest

import netns

PATIENCE = 60.0  # seconds, a bound on hangs
ADDRESSES = ("10.9.0.1", "10.9.0.2")
PORT = 29500
APART = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork"]
OTHER_USERS = ["unshare", "--user", "--map-root-user"]


def set_up() -> None:
    for name in ("c0", "c1"):
        netns.call(["ip", "netns", "add", name])
    netns.call(["ip", "link", "add", "eth0", "netns", "c0", "type", "veth", "peer", "name", "eth0",
                "netns", "c1"])
    for name, address in zip(("c0", "c1"), ADDRESSES):
        for words in (["addr", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "lo", "up"],
                      ["link", "set", "eth0", "up"]):
            netns.call(["ip", "-netns", name, *words])


def run(containers, wrappers) -> str:
    """An all-reduce of a rank in each of `containers`, as `wrappers` start it; what rank 0 printed."""
    program = pathlib.Path(os.environ["WEFT_BIN"]) / "weft-bw"
    secret = secrets.token_hex(32)
    ranks = []
    for rank, (container, wrapper) in enumerate(zip(containers, wrappers)):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(containers)),
                           LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK=str(rank),
                           MASTER_ADDR=ADDRESSES[0], MASTER_PORT=str(PORT), WEFT_JOB_SECRET=secret)
        ranks.append(subprocess.Popen(
            ["ip", "netns", "exec", container, *wrapper, program, "-b", "64K", "-e", "64K", "-n", "1",
             "--repeats", "1"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True))
    try:
        end = time.monotonic() + PATIENCE
        texts = [rank.communicate(timeout=max(0.1, end - time.monotonic()))[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, text in zip(ranks, texts):
        if rank.returncode != 0:
            raise RuntimeError(f"status {rank.returncode}: {text}")
    return texts[0]


class ContainersTest(unittest.TestCase):
    def transports(self, containers, wrappers) -> list:
        text = run(containers, wrappers)
        return re.findall(r"rank 0 -> \d+: (\w+)", text) or self.fail(text)

    def may(self, wrapper):
        done = subprocess.run([*wrapper, "true"], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"{' '.join(wrapper)}: {done.stderr.strip()}")

    def test_of_other_networks_they_use_tcp(self):
        self.assertEqual(self.transports(["c0", "c1"], [[], []]), ["tcp"])

    def test_of_other_namespaces_of_every_kind_they_use_tcp(self):
        self.may([*OTHER_USERS, *APART])
        wrappers = [APART, [*OTHER_USERS, *APART]]
        self.assertEqual(self.transports(["c0", "c1"], wrappers), ["tcp"])

    def test_of_one_network_and_user_they_share_memory(self):
        self.may(APART)
        self.assertEqual(self.transports(["c0", "c0"], [APART, APART]), ["shm"])
        self.assertEqual(self.transports(["c0", "c0"], [APART, []]), ["shm"])

    def test_of_other_user_namespaces_they_use_tcp(self):
        self.may(OTHER_USERS)
        self.assertEqual(self.transports(["c0", "c0"], [[], OTHER_USERS]), ["tcp"])
        # Whose ranks bear the same numbers, and whom the kernel does not relate.
        wrapper = ["unshare", "--user", "--map-user=0"]
        self.assertEqual(self.transports(["c0", "c0"], [wrapper, wrapper]), ["tcp"])

    def test_those_that_reach_each_other_and_those_that_do_not_are_one_job(self):
        text = run(["c0", "c0", "c1"], [[], [], []])
        self.assertEqual(dict(re.findall(r"rank 0 -> (\d+): (\w+)", text)), {"1": "shm", "2": "tcp"})


if __name__ == "__main__":
    netns.enter()
    try:
        set_up()
    except RuntimeError as error:
        netns.skip(f"no networks of our own here: {error}")
    unittest.main(verbosity=2)

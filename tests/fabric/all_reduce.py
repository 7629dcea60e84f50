"""All-reduce over Weft's tcp transport between the hosts of a netns.Fabric, one rank a host."""

import json
import os
import pathlib
import random
import secrets
import subprocess
import tempfile
import time

import oracle

STORE_PORT, LISTEN_PORT = 29500, 7000
PORTS = (20000, 32000)  # below those that the kernel hands out
SECRET = secrets.token_hex(32)
# So little that a link's queue stays short: else what the receivers have to say (clear to send)
# waits behind the data of others on the way back, 300 ms at worst.
BUFFERS = "tcp.buffer_bytes=64KiB"
# Of a full TCP segment with timestamps: payload and what passes a link (tbf counts the Ethernet
# header).
WIRE = 1514 / 1448


def ring_bytes(ranks: int, size: int) -> float:
    """What each rank sends to the next in a ring all-reduce."""
    return 2 * (ranks - 1) / ranks * size


class Ring:
    """`placement[rank]` is its host."""

    def __init__(self, fabric, placement, size):
        self.fabric, self.placement, self.size = fabric, placement, size
        ranks = len(placement)
        self.links = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
        flows = [[placement[a], placement[b], int(ring_bytes(ranks, size)), LISTEN_PORT + b]
                 for a, b in self.links]
        self.plan = oracle.ask(op="plan", **oracle.describe(fabric), flows=flows, ports=PORTS)

    @property
    def bound(self) -> float:
        """Seconds that no choice of paths can beat."""
        return self.plan["bound"] * WIRE

    def measure(self, planned: bool, repeats: int, limit=120) -> float:
        """Seconds of one all-reduce, of the slowest rank; the median of `repeats`."""
        with tempfile.TemporaryDirectory(prefix="weft-fabric-") as folder:
            more = self._environment(folder) if planned else {}
            words = [pathlib.Path(os.environ["WEFT_BIN"]) / "weft-bw", "--transport", "tcp",
                     "--algorithm", "ring", "-b", self.size, "-n", 1, "--repeats", repeats, "-w", 1,
                     "--place", "in", "-a", 3, "--set", "tcp.sockets=1", "--set", BUFFERS,
                     "--json"]
            ranks = [self._start(rank, words, more) for rank in range(len(self.placement))]
            output = self._wait(ranks, time.monotonic() + limit)
        row = json.loads(output)["rows"][0]["in_place"]
        if row["wrong"]:
            raise RuntimeError(f"wrong sums: {row}")
        return row["time_us"] / 1e6

    @staticmethod
    def _wait(ranks, deadline) -> str:
        """What rank 0 printed; the first rank that fails ends them all."""
        try:
            left = list(enumerate(ranks))
            while left:
                for number, rank in list(left):
                    try:
                        rank.wait(timeout=0.05)
                    except subprocess.TimeoutExpired:
                        continue
                    left.remove((number, rank))
                    if rank.returncode != 0:
                        raise RuntimeError(f"rank {number}: status {rank.returncode}: "
                                           f"{rank.communicate()[1]}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"ranks {[number for number, _ in left]} have not ended")
            return ranks[0].communicate()[0]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()

    def _environment(self, folder) -> dict:
        lines = "".join(f"{a} {b} {' '.join(map(str, ports))}\n"
                        for (a, b), ports in zip(self.links, self.plan["ports"]))
        path = pathlib.Path(folder) / "ports"
        path.write_text("# rank peer ports\n" + lines)
        return {"WEFT_TCP_SOURCE_PORTS": str(path), "WEFT_TCP_LISTEN_PORT": str(LISTEN_PORT)}

    def _start(self, rank, words, more):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(self.placement)),
                           LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK=str(rank),
                           MASTER_ADDR=self.fabric.address(self.placement[0]),
                           MASTER_PORT=str(STORE_PORT), WEFT_JOB_SECRET=SECRET, **more)
        return self.fabric.start(self.placement[rank], words, env=environment, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def placements(hosts: int, count: int, seed=1) -> list:
    draw = random.Random(seed)
    return [draw.sample(range(hosts), hosts) for _ in range(count)]

"""weft-train with each rank on a host of its own: network namespaces, links shaped by tbf, delayed by netem.

    with Hosts(2) as hosts:                       # links as fast as the machine makes them
        hosts.shape(1000)                         # Mbit/s of each host's link, both ways; None: as before
        hosts.delay(50)                           # us that a packet takes longer to its host; 0: as before
        run = hosts.train(folder, ["parallel.tensor=2"])

The ranks are started by one weft-run a host, as on a cluster.
"""

import json
import os
import pathlib
import secrets
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fabric"))
import netns  # noqa: E402
from _bench import BIN  # noqa: E402

PORT = 29500
BURST_MS = 2  # what an idle link saves of its rate: little beside an exchange
PATIENCE = 900


def environment() -> dict:
    """For Weft's programs, which ask for the meaning of each WEFT_ variable."""
    return {name: value for name, value in os.environ.items() if name != netns.INSIDE}


class Run:
    """What a run left: rows of metrics.jsonl after the first `warm_up` steps, and its trace."""

    def __init__(self, folder: pathlib.Path, warm_up: int):
        self._folder, self._warm_up = folder, warm_up
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        self.rows = [row for row in map(json.loads, lines) if row["step"] > warm_up]

    def median(self, key: str) -> float:
        values = sorted(row[key] for row in self.rows)
        return values[len(values) // 2]

    def spans(self) -> list[dict]:
        """With the name of each one's track."""
        events = json.loads((self._folder / "trace.json").read_text())["traceEvents"]
        tracks = {(event["pid"], event["tid"]): event["args"]["name"]
                  for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
        return [dict(event, track=tracks[event["pid"], event["tid"]]) for event in events
                if event["ph"] == "X" and event["args"].get("step", 0) > self._warm_up]


class Hosts:
    """`count` hosts below leaves of their own, all on one spine."""

    def __init__(self, count: int):
        self.count = count

    def __enter__(self):
        self._fabric = netns.Fabric(leaves=self.count, spines=1, hosts_per_leaf=1).__enter__()
        return self

    def __exit__(self, *what):
        self._fabric.__exit__(*what)

    def shape(self, mbit: int | None) -> None:
        for leaf in range(self.count):
            for name, device in ((f"l{leaf}", "s0"), ("s0", f"l{leaf}")):
                if mbit:
                    self._fabric.shape(name, device, mbit, BURST_MS)
                else:
                    subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "del", "dev", device, "root"],
                                   capture_output=True)

    def delay(self, microseconds: int) -> None:
        """Where netns.why_no_netem() has nothing to say. At the leaf's port, whose rate tbf does not shape."""
        for host in range(self.count):
            words = ["tc", "qdisc", "replace" if microseconds else "del", "dev", f"h{host}", "root"]
            if microseconds:
                self._fabric.at(f"l{host}", [*words, "netem", "limit", 10000, "delay", f"{microseconds}us"])
            else:
                subprocess.run(["ip", "netns", "exec", f"l{host}", *words], capture_output=True)

    def train(self, folder: pathlib.Path, settings: list[str], warm_up: int, more: dict | None = None) -> Run:
        """`more`: environment of the ranks."""
        command = [BIN / "weft-train", "--run-dir", folder]
        for setting in settings:
            command += ["--set", setting]
        job = dict(environment(), WEFT_JOB_SECRET=secrets.token_hex(32), **(more or {}))
        with open(f"{folder}.out", "w+") as output:
            hosts = [self._fabric.start(host, [BIN / "weft-run", "-n", 1, "--nnodes", self.count, "--node-rank",
                                               host, "--master-addr", self._fabric.address(0), "--master-port",
                                               PORT, "--", *command],
                                        env=job, stdout=output, stderr=output)
                     for host in range(self.count)]
            try:
                deadline = time.monotonic() + PATIENCE
                for host in hosts:
                    host.wait(timeout=max(1, deadline - time.monotonic()))
            finally:
                for host in hosts:
                    if host.poll() is None:
                        host.kill()
            if any(host.returncode for host in hosts):
                output.seek(0)
                sys.exit(f"{' '.join(map(str, settings))}: the run failed:\n{output.read()[-3000:]}")
        return Run(folder, warm_up)

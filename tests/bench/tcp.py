"""Goodput and CPU of the tcp transport beside iperf3's, on loopback and over a shaped fabric.

Both with as many streams and in pieces of 512 KiB, in turns. Loopback: one process each side. Fabric:
three hosts, links of 200 Mbit/s (tbf), the payload of one host's flow; needs root, else it is left
out. CPU: seconds of both sides' processes for 10^9 bytes; ours sleeps where it has nothing to do
(weft-bw link -e), as iperf3 does, and spins for goodput, as a job's progress threads do. With --before rows of
another build's weft-bw, in turns with this one's.
"""
# needs: iperf3

import argparse
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fabric"))
import netns  # noqa: E402

import _before  # noqa: E402
from _bench import say  # noqa: E402

PORT = 5201
PIECE = "512K"


def row(case, ours, peer_name, peer, unit, better, repeats) -> None:
    print(json.dumps({"name": "tcp", "case": case, "ours": round(ours, 4), "peer": round(peer, 4),
                      "peer_name": peer_name, "unit": unit,
                      "ratio": round(ours / peer if better == "more" else peer / ours, 3),
                      "repeats": repeats}), flush=True)


def words(command) -> list:
    return [str(word) for word in command]


class Loopback:
    """Both ends here."""
    server = "127.0.0.1"

    def ours(self, programs, more) -> dict:
        done = subprocess.run(words([programs / "weft-bw", "link", "--ranks", 2, *more]),
                              env={**os.environ, "WEFT_TCP_INTERFACE": "=lo"}, check=True,
                              capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout)

    @staticmethod
    def start(_, command, **more):
        return subprocess.Popen(words(command), **more)


class Shaped:
    """Host 0 sends to host 1, which is behind other switches."""

    def __init__(self, fabric):
        self.fabric, self.server = fabric, fabric.address(1)

    def ours(self, programs, more) -> dict:
        link = [programs / "weft-bw", "link"]
        environment = dict(os.environ, WEFT_JOB_SECRET=secrets.token_hex(32))
        server = self.start(1, [*link, "--listen", self.server], env=environment,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = self.start(0, [*link, self.server, "--pattern", "many-to-one", *more],
                            env=environment, stdout=subprocess.PIPE, text=True)
        text = client.communicate(timeout=120)[0]
        if client.returncode or server.wait(timeout=20):
            raise SystemExit(f"weft-bw link: exit status {client.returncode}\n{text}")
        return json.loads(text)

    def start(self, host, command, **more):
        return self.fabric.start(host, command, **more)


def ours(programs, place, streams: int, seconds: float) -> tuple:
    """GB/s, and CPU seconds a GB of a second run, which sleeps."""
    more = ["-s", PIECE, "-t", 8, "-q", streams, "-D", seconds, "--json", "-"]
    rate = place.ours(programs, more)["rows"][0]["GBps"]
    return rate, place.ours(programs, [*more, "-e"])["rows"][0]["cpu_seconds_per_GB"]


def iperf_once(place, streams: int, seconds: float) -> dict:
    server = place.start(1, ["iperf3", "-s", "-1", "-p", PORT], stdout=subprocess.DEVNULL)
    command = ["iperf3", "-c", place.server, "-p", PORT, "-t", seconds, "-O", 1, "-P", streams,
               "-l", PIECE, "-J"]
    for _ in range(100):  # until it listens; a probe would use up its one test
        client = place.start(0, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             text=True)
        text = client.communicate(timeout=120)[0]
        if client.returncode == 0:
            break
        time.sleep(0.05)
    else:
        raise SystemExit(f"iperf3 says {text}")
    server.terminate()  # its one test is over, but now and then it stays
    server.wait(timeout=30)
    return json.loads(text)["end"]


def iperf(place, streams: int, seconds: float) -> tuple:
    """As ours(). Now and then iperf3 3.12 ends without a result; then it runs again."""
    for _ in range(3):
        end = iperf_once(place, streams, seconds)
        if "sum_received" in end:
            break
        say("iperf3 gave no result; once more")
    else:
        raise SystemExit("iperf3 gave no result three times")
    rate = end["sum_received"]["bits_per_second"] / 8e9
    cpu = end["cpu_utilization_percent"]
    return rate, (cpu["host_total"] + cpu["remote_total"]) / 100 / rate


def compare(name: str, place, streams: int, options) -> None:
    """Ours first; the others are its peers."""
    runs = {build: lambda programs=programs: ours(programs, place, streams, options.seconds)
            for build, programs in _before.builds(options).items()}
    runs["iperf3"] = lambda: iperf(place, streams, round(options.seconds))
    results = {program: [] for program in runs}
    case = f"{name}, {streams} stream{'s' if streams > 1 else ''}"
    for repeat in range(options.repeats):
        for program, run in runs.items():
            rate, cost = run()
            results[program].append((rate, cost))
            say(f"{case}, {repeat + 1} of {options.repeats}: {program} {rate:.3f} GB/s, CPU {cost:.3f} s/GB")
    rates, costs = ({program: statistics.median(one[i] for one in results[program]) for program in runs}
                    for i in range(2))
    for peer in list(runs)[1:]:
        row(f"goodput, {case}", rates["weft"], peer, rates[peer], "GB/s", "more", options.repeats)
        row(f"CPU, {case}", costs["weft"], peer, costs[peer], "s/GB", "less", options.repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", choices=["loopback", "fabric"])
    _before.add_argument(parser)
    options = parser.parse_args()
    if options.only != "fabric":
        for streams in options.streams:
            compare("loopback", Loopback(), streams, options)
    if options.only != "loopback" and os.environ.get(netns.INSIDE):
        with netns.Fabric(leaves=2, spines=1, hosts_per_leaf=1, mbit=200) as fabric:
            for streams in options.streams:
                compare("200 Mbit/s", Shaped(fabric), streams, options)


if __name__ == "__main__":
    if os.geteuid() == 0:
        netns.enter()
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    main()

"""What records cost: the same collectives with records off, on and off again, in turns.

weft-bw's all-reduce, where a call is all that is done: what a record costs shows there most. A round runs
off, on and off; the peer is the mean of both offs. Then an emulated training job of 8 ranks with records: bytes a
step and host; and what its agent sends to a reader that looks each second: so much a look, and so much a step, by jobs
of two step times. Of 2,048 such hosts, 16,384 ranks with a step of 5 s, this makes the stream at their reader.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from _bench import BIN, say

SIZES = {"8 B": 8, "64 KiB": 64 << 10, "4 MiB": 4 << 20}


def measure(size: int, ranks: int, on: bool) -> float:
    """Microseconds of a call: the median of weft-bw's repeats."""
    command = [BIN / "weft-bw", "--ranks", ranks, "--op", "all_reduce", "--place", "in", "-b", size,
               "-a", 3, "--repeats", 9, "--repeat-time", "60ms", "-w", 3, "--json"]
    environment = {**os.environ, "WEFT_RECORDS_ENABLED": "true" if on else "false"}
    text = subprocess.run([str(word) for word in command], env=environment, check=True, text=True,
                          stdout=subprocess.PIPE, timeout=300).stdout
    return statistics.median(json.loads(text)["rows"][0]["in_place"]["repeats_us"])


def bytes_a_step(ranks: int, steps: int) -> float:
    with tempfile.TemporaryDirectory(prefix="weft-records-") as folder:
        subprocess.run([BIN / "weft-run", "-n", str(ranks), "--job", "bench", "--output", "none",
                        "--set", f"records.folder={folder}/rings", "--set", "records.keep=true",
                        "--", BIN / "weft-fault", "run", "--steps", str(steps)], check=True)
        rings = (pathlib.Path(folder) / "rings").glob("*.weft")
        written = sum(int.from_bytes(ring.read_bytes()[NEXT:NEXT + 8], "little") for ring in rings)
    return written * 64 / steps


def stream(ranks: int, step_ms: int, seconds: int) -> tuple[float, float]:
    """Steps and bytes a second that a reader gets of an agent's host."""
    with tempfile.TemporaryDirectory(prefix="weft-records-") as folder:
        rings = f"{folder}/rings"
        job = subprocess.Popen([BIN / "weft-run", "-n", str(ranks), "--job", "bench", "--output", "none",
                                "--set", f"records.folder={rings}", "--", BIN / "weft-fault", "run",
                                "--steps", "100000", "--step-time", f"{step_ms}ms"])
        agent = subprocess.Popen([BIN / "weft-agent", "--listen", "127.0.0.1:0", "--records", rings],
                                 stdout=subprocess.PIPE, text=True)
        port = agent.stdout.readline().rpartition(":")[2].partition("/")[0]
        top = None
        try:
            until = time.monotonic() + 60
            while len(list(pathlib.Path(rings).glob("*.weft"))) < ranks and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(2)
            top = subprocess.Popen([BIN / "weft-top", "--json", "--every", "1s", "--agent",
                                    f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
            looks = []
            for _ in range(seconds + 1):
                said = json.loads(top.stdout.readline())
                looks.append((time.monotonic(), said["step"], said["received_bytes"]))
        finally:
            for process in (top, agent, job):
                if process is not None:
                    process.terminate()
                    process.wait(timeout=30)
    (first_s, first_step, first), (last_s, last_step, last) = looks[0], looks[-1]
    return ((last_step - first_step) / (last_s - first_s), (last - first) / (last_s - first_s))


def report_stream(ranks: int, seconds: int) -> None:
    fast, fast_bytes = stream(ranks, 100, seconds)
    slow, slow_bytes = stream(ranks, 1000, seconds)
    a_step = (fast_bytes - slow_bytes) / (fast - slow)
    a_look = slow_bytes - a_step * slow
    say(f"an agent of {ranks} ranks sends {a_look / 1e3:.1f} KB a look and {a_step / 1e3:.1f} KB a step")
    hosts, step_s = 16384 // ranks, 5.0
    row(f"stream of {hosts} hosts of {ranks} ranks, a look a second, steps of 5 s",
        hosts * (a_look + a_step / step_s) / 1e6, 50, "goal", "MB/s", 2)


NEXT = 256  # where the number of records stands in the file (base/records.h)


def row(case: str, ours: float, peer: float, peer_name: str, unit: str, repeats: int) -> None:
    print(json.dumps({"name": "records", "case": case, "ours": round(ours, 3),
                      "peer": round(peer, 3), "peer_name": peer_name, "unit": unit,
                      "ratio": round(peer / ours, 4), "repeats": repeats}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    for name, size in SIZES.items():
        on, off = [], []
        for number in range(rounds):
            before = measure(size, options.ranks, False)
            on.append(measure(size, options.ranks, True))
            off.append((before + measure(size, options.ranks, False)) / 2)
            say(f"{name}, round {number + 1} of {rounds}: off {off[-1]:.2f} us, on {on[-1]:.2f} us")
        row(f"all-reduce of {name}, {options.ranks} ranks", statistics.median(on),
            statistics.median(off), "records off", "us", rounds)
    row("emulated training, 8 ranks on a host", bytes_a_step(8, 30), 25000, "goal",
        "bytes a step", 1)
    report_stream(8, 5 if options.quick else 15)


if __name__ == "__main__":
    main()

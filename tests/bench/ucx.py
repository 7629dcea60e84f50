"""The ucx transport beside ucx_perftest, over UCX's tcp on loopback.

Bandwidth of tagged messages (tag_bw) and of active messages (ucp_am_bw), the better of the two, with 16
sends under way; ours is weft-bw link with 16 messages under way in one buffer, as theirs, in turns. GB/s
of 10^9 bytes. Beside them what theirs have on endpoints that tell of failures, as ours do (-e). Not over
UCX's shared memory: it cannot tell of a peer's failure, which our transport demands of UCX.
"""
# needs: ucx-utils

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_port  # noqa: E402
from _bench import BIN, say  # noqa: E402

SIZES = {"64KiB": 1 << 16, "256KiB": 1 << 18, "1MiB": 1 << 20, "4MiB": 1 << 22}
# UCX's names of transports, and of devices.
WAYS = {"tcp": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}}
# The goal is the better of the first two; the others' endpoints tell of failures, as ours do.
TESTS = {"tag_bw": [], "ucp_am_bw": [], "tag_bw -e": ["-e"], "ucp_am_bw -e": ["-e"]}
DEPTH = 16
WARMUP = 50


def ours(way: str, size: int, seconds: float) -> float:
    settings = [f"ucx.tls={WAYS[way]['UCX_TLS']}"]
    if "UCX_NET_DEVICES" in WAYS[way]:
        settings.append(f"ucx.net_devices={WAYS[way]['UCX_NET_DEVICES']}")
    words = [BIN / "weft-bw", "link", "--ranks", 2, "--transport", "ucx", "-s", size, "-t", DEPTH,
             "--one-buffer", "-D", seconds, "--json", "-"]
    for setting in settings:
        words += ["--set", setting]
    done = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True,
                          env={**os.environ, "WEFT_TCP_INTERFACE": "=lo"}, timeout=120)
    return json.loads(done.stdout)["rows"][0]["GBps"]


def perftest(way: str, test: str, size: int, count: int) -> float:
    environment = {**os.environ, **WAYS[way]}
    port = str(free_port())
    server = subprocess.Popen(["ucx_perftest", "-p", port], env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command = ["ucx_perftest", "127.0.0.1", "-p", port, "-t", test.split()[0], "-s", str(size), "-n", str(count),
               "-w", str(WARMUP), "-O", str(DEPTH), "-f", "-v", *TESTS[test]]
    try:
        for _ in range(100):  # until it listens
            run = subprocess.run(command, env=environment, capture_output=True, text=True,
                                 timeout=120)
            if run.returncode == 0:
                break
            time.sleep(0.05)
        else:
            raise SystemExit(f"ucx_perftest says {run.stdout}{run.stderr}")
        server.wait(timeout=30)
    finally:
        server.kill()
    rows = [line.split(",") for line in run.stdout.splitlines() if "," in line]
    values = dict(zip(rows[-2], rows[-1]))
    return float(values["overall_bw"]) * (1 << 20) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.3)
    options = parser.parse_args()
    for way in options.ways:
        for name in options.sizes:
            size = SIZES[name]
            mine, theirs = [], {test: [] for test in TESTS}
            for repeat in range(options.repeats):
                mine.append(ours(way, size, options.seconds))
                # For as long as ours took.
                count = max(int(mine[-1] * 1e9 * options.seconds / size), 4 * DEPTH)
                for test, values in theirs.items():
                    values.append(perftest(way, test, size, count))
                say(f"{way} {name}, {repeat + 1} of {options.repeats}: {mine[-1]:.3f} GB/s, "
                    + ", ".join(f"{test} {values[-1]:.3f}" for test, values in theirs.items()))
            one = statistics.median(mine)
            medians = {test: statistics.median(values) for test, values in theirs.items()}
            for flags in ([], ["-e"]):
                best = max((test for test in TESTS if TESTS[test] == flags), key=medians.get)
                print(json.dumps({"name": "ucx", "case": f"{way}, {name}", "ours": round(one, 3),
                                  "peer": round(medians[best], 3),
                                  "peer_name": f"ucx_perftest {best}", "unit": "GB/s",
                                  "ratio": round(one / medians[best], 3),
                                  "repeats": options.repeats}), flush=True)


if __name__ == "__main__":
    main()

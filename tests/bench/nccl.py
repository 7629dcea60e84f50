"""The NCCL plugin over tcp on loopback, driven by weft-nccl-harness: goodput beside iperf3's.

Both with as many sockets, alternating; large messages in NCCL's pieces of 512 KiB, eight and more in flight.
"""
# needs: iperf3

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_port  # noqa: E402
from _bench import BIN  # noqa: E402

REPEATS = 5
SECONDS = 2
PLUGIN = BIN.parent / "lib/libnccl-net-weft.so"


def plugin_goodput(sockets: int) -> float:
    """GB/s of messages of 64 MiB."""
    environment = {**os.environ, "NCCL_SOCKET_IFNAME": "=lo", "WEFT_TCP_SOCKETS": str(sockets)}
    with tempfile.NamedTemporaryFile() as result:
        subprocess.run([BIN / "weft-nccl-harness", PLUGIN, "--measure", "-b", "64M", "-e", "64M", "-n", "60",
                        "--chunk", "512K", "--json", result.name],
                       env=environment, check=True, stdout=subprocess.DEVNULL)
        measured = json.load(open(result.name))["scenarios"][0]["measured"][0]
    if measured["wrong_bytes"]:
        raise SystemExit("nccl: wrong bytes")
    return measured["gigabytes_per_second"]


def iperf_goodput(sockets: int) -> float:
    port = str(free_port())
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL)
    for _ in range(100):  # until it listens; a probe would use up its one test
        run = subprocess.run(["iperf3", "-c", "127.0.0.1", "-p", port, "-t", str(SECONDS), "-O", "1", "-P",
                              str(sockets), "-l", "512K", "-J"], check=False, capture_output=True, text=True)
        if run.returncode == 0:
            break
        time.sleep(0.05)
    else:
        raise SystemExit(f"nccl: iperf3 says {run.stdout}")
    server.wait(timeout=30)
    return json.loads(run.stdout)["end"]["sum_received"]["bits_per_second"] / 8e9


def main() -> None:
    for sockets in (1, 2):
        ours, theirs = [], []
        for repeat in range(REPEATS):
            print(f"{sockets} sockets, repeat {repeat + 1} of {REPEATS}", file=sys.stderr)
            ours.append(plugin_goodput(sockets))
            theirs.append(iperf_goodput(sockets))
        one, other = statistics.median(ours), statistics.median(theirs)
        print(json.dumps({"name": "nccl", "case": f"goodput on loopback, {sockets} sockets",
                          "ours": round(one, 3), "peer": round(other, 3), "peer_name": "iperf3", "unit": "GB/s",
                          "ratio": round(one / other, 3), "repeats": REPEATS}), flush=True)


if __name__ == "__main__":
    main()

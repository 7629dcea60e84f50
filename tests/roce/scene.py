"""What suites and benchmarks of the Soft-RoCE machine share: their scripts' parts, and reading."""

import os
import pathlib
import re
import sys
from typing import NamedTuple

import machine

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ.get("WEFT_BIN", "build/release/bin"))

# Shell functions on top of fabric.sh. Programs find their settings in the environment or as
# arguments; a rank's own are its interface and its devices.
FUNCTIONS = """
cd /tmp
export WEFT_LOG_LEVEL=${WEFT_LOG_LEVEL:-warn}
rank() {  # program, rank, devices, file, arguments...
  program=$1 rank=$2 devices=$3 file=$4; shift 4
  host_exec $rank timeout 150 $program $rank $file "$@" tcp.interface=m$rank verbs.devices==$devices
}
shown() { sed "s/^/$1: /" $2; }  # label, file
both() {  # label, rail, arguments...: verbs_pair at both hosts, over one rail
  label=$1 rail=$2; shift 2
  rm -f pair.0 pair.1
  rank verbs_pair 1 rxe$((2 * rail + 1)) pair "$@" > pair1.txt 2>&1 & other=$!
  rank verbs_pair 0 rxe$((2 * rail)) pair "$@" > pair0.txt 2>&1; echo "status $label.0 $?"
  wait $other; echo "status $label.1 $?"
  shown $label.0 pair0.txt; shown $label.1 pair1.txt
}
lane_spines() {  # label, what verbs_pair printed: the spine of each source port, by leaf 0's hash
  local port
  for port in $(grep '^lane ' $2 | cut -d' ' -f4 | sort -u); do
    echo "$1: $port $(ip -n leaf0 route get 10.1.1.1 from 10.1.0.1 iif d0 ipproto udp \\
      sport $port dport 4791 | grep -o 'up[01]' | tr -d up)"
  done
}
perftest() {  # label, program, rail, arguments...
  label=$1 program=$2 rail=$3; shift 3
  host_exec 1 timeout 100 $program -d rxe$((2 * rail + 1)) -x 1 -F "$@" > server.txt 2>&1 & other=$!
  sleep 0.7
  host_exec 0 timeout 100 $program -d rxe$((2 * rail)) -x 1 -F "$@" 192.168.77.2 > client.txt 2>&1
  echo "status $label $?"
  wait $other
  shown $label client.txt
}
"""


def programs(*names: str) -> list[pathlib.Path]:
    folders = (BIN / "tests", BIN, BIN.parent / "lib", BIN.parent / "lib/scripted",
               BIN.parent / "lib/scripted/verbs/plugin")
    return [next((folder / name for folder in folders if (folder / name).exists()), BIN / name)
            for name in (*names, "libweft-verbs.so")]


def script(text: str) -> str:
    return (HERE / "fabric.sh").read_text() + FUNCTIONS + text


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(77)


def run(text: str, names: tuple[str, ...], limit: float, show=None,
        **options) -> tuple[list[str], str]:
    """What is wrong with the run as such, and what it printed. Skips where there can be none.
    `options`: of machine.run()."""
    try:
        status, printed = machine.run(script(text), programs(*names), limit, show, **options)
    except machine.Unavailable as reason:
        skip(str(reason))
    if status == 0:
        return [], printed
    return [{124: "the machine did not end in time", 125: "the machine did not boot"}.get(
        status, f"the machine's script ended with status {status}")], printed


def skip_unless_asked() -> None:
    if os.environ.get("WEFT_ROCE") != "1":
        skip("Soft-RoCE takes minutes: tools/dev test roce")


def rows(text: str, label: str) -> list[str]:
    mark = f"{label}: "
    return [line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)]


def ill(text: str, *labels: str) -> list[str]:
    return [f"{label} did not end well" for label in labels if f"status {label} 0\n" not in text]


def measured(text: str, label: str, kind: str) -> dict[int, float]:
    """By size: lines "bandwidth SIZE MB_PER_S" and "latency SIZE US" of verbs_pair."""
    found = [line.split() for line in rows(text, label) if line.startswith(kind + " ")]
    return {int(words[1]): float(words[2]) for words in found}


def latency(text: str, label: str) -> float:
    """The first figure of verbs_pair: it ends with another round."""
    return float(next(line.split()[2] for line in rows(text, label) if line.startswith("latency ")))


class Lane(NamedTuple):
    port: str
    spine: str  # "" where the port is none's any more
    megabytes: float  # of all queue pairs that were here so far
    milliseconds: float  # round trip


def lane_parts(text: str, label: str, spines: str) -> list[tuple[float, list[Lane]]]:
    """Of each of verbs_pair's bandwidths that a step "lanes" followed: MB/s, and the queue pairs
    then; `spines`: the label of lane_spines."""
    at = {words[0]: words[1] for words in map(str.split, rows(text, spines)) if len(words) == 2}
    out: list[tuple[float, list[Lane]]] = []
    for words in map(str.split, rows(text, label)):
        if words[0] == "bandwidth":
            out.append((float(words[2]), []))
        elif words[0] == "lane":
            out[-1][1].append(Lane(words[3], at.get(words[3], ""), int(words[1]) / 1e6,
                                   float(words[2]) / 1e3))
    return out


def perftest(text: str, label: str, column: int) -> dict[int, float]:
    """By size: a column of perftest's table. 3 of bandwidth: average, MiB/s; 4 of latency: typical,
    us."""
    out = {}
    for line in rows(text, label):
        words = line.split()
        if len(words) > column and words[0].isdigit() and re.fullmatch(r"[\d.]+", words[column]):
            out[int(words[0])] = float(words[column])
    return out


def end(problems: list[str], text: str) -> int:
    if problems:
        print(text)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0

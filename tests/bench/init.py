"""Rendezvous stores: ours against Redis and torch's TCPStore, and a new group over real processes.

All three servers are driven by clients of init_bench's own: connections without a thread each, in
two processes, and no client library of anybody is measured. A round runs ours, Redis' and TCPStore's in
turn; a row's number is the median over the rounds. Messages are those of one round on the wire.

Cases: each phase of all ranks, of `--layouts`; operations per second and 99th percentile of their
latency; groups made one by one as torch does, and by one exchange, on TCPStore, against one exchange on ours; and
a new group over 64 and 128 real processes, against the goals of 8 and 20 ms (Gloo on another machine took
359 and 1,850 ms, lazily connected 34 ms). With --before all of ours in turns with another build's, whose
folder holds tests/init_bench as well.
"""
# needs: torch

import argparse
import json
import os
import statistics
import subprocess
import tempfile

import _before
from _bench import BIN, say

BENCH = "tests/init_bench"
PEERS = {"redis": "Redis", "torch": "TCPStore"}
NAMES = {**PEERS, _before.NAME: _before.NAME}
LIMIT_S = 600


def measure(name, *arguments, programs=BIN) -> dict:
    """What the program `name` writes as its result."""
    program = programs / name
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [str(word) for word in (program, *arguments, "--json", file.name)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=LIMIT_S)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}")
        return json.load(open(file.name))


def measure_store(options, store: str, *arguments) -> dict:
    """Of the store `store`, by this build's init_bench; "before": of the other build's store, by its own."""
    if store == _before.NAME:
        return measure(BENCH, *arguments, *on("weft"), programs=options.before)
    return measure(BENCH, *arguments, *on(store))


def on(store: str) -> list:
    python = os.environ.get("WEFT_BENCH_PYTHON", "python3")
    return ["--store", store] + (["--torch-python", python] if store == "torch" else [])


def row(case: str, ours: float, peer: float, name: str, unit: str, repeats: int) -> None:
    larger = unit.endswith("/s")
    ratio = (ours / peer if larger else peer / ours) if ours and peer else 0
    print(json.dumps({"name": "init", "case": case, "ours": round(ours, 6), "peer": round(peer, 6),
                      "peer_name": name, "unit": unit, "ratio": round(ratio, 3),
                      "repeats": repeats}), flush=True)


def compare(rounds: int, what: str, peers: list, run, cases) -> None:
    """`run(store)` gives a result; `cases(result)` a dict of (case, unit) -> number."""
    results = {store: [] for store in ("weft", *peers)}
    for turn in range(rounds):
        for store in results:
            say(f"{what}, round {turn + 1} of {rounds}: {store}")
            results[store].append(cases(run(store)))
    for case, unit in results["weft"][0]:
        ours = statistics.median(one[case, unit] for one in results["weft"])
        for store in peers:
            peer = statistics.median(one[case, unit] for one in results[store])
            row(f"{what}: {case}", ours, peer, NAMES[store], unit, rounds)


def phases(result: dict) -> dict:
    times = result["phases"]
    return {("connect + barrier", "s"): times["connect"] + times["register"],
            ("all-gather", "s"): times["exchange"],
            ("messages", "messages"): result["messages"],
            ("server CPU", "s"): result["server_cpu_seconds"]}


def operations(result: dict) -> dict:
    numbers = {}
    for one in result["ops"]:
        case = f"{one['op']}, {one['connections']} connections, {one['depth']} under way"
        numbers[case, "op/s"] = one["per_second"]
        numbers[f"{case}, p99", "us"] = one["p99_seconds"] * 1e6
        numbers[f"{case}, messages an op", "messages"] = one["messages_per_operation"]
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layouts", nargs="+", default=["tp8,pp8,dp16", "tp8,pp8,dp32"])
    _before.add_argument(parser)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--cases", nargs="+", default=["phases", "ops", "groups", "new-group"],
                        choices=["phases", "ops", "groups", "new-group"])
    parser.add_argument("--group-layout", default="tp8,pp8,dp8")
    parser.add_argument("--processes", type=int, nargs="+", default=[64, 128])
    options = parser.parse_args()
    peers = [*options.peers, *([_before.NAME] if options.before else [])]
    if "phases" in options.cases:
        for layout in options.layouts:
            compare(options.rounds, layout, peers, lambda store, layout=layout: measure_store(
                options, store, "phases", "--records", "all", "--layout", layout, "--connect-ranks", 0), phases)
    if "ops" in options.cases:
        compare(options.rounds, "ops", peers, lambda store: measure_store(options, store, "operations"), operations)
    if "groups" in options.cases and "torch" in options.peers:
        groups(options)
    for processes in options.processes if "new-group" in options.cases else []:
        new_group(options, processes)


def new_group(options, processes: int) -> None:
    builds = _before.builds(options)
    times = {name: [] for name in builds}
    for turn in range(options.rounds):
        for name, programs in builds.items():
            say(f"new group, {processes} processes, round {turn + 1} of {options.rounds}: {name}")
            result = measure("weft-init", "new-group", "--ranks", processes, programs=programs)
            times[name].append(result["ready_seconds"] * 1e3)
    peers = {"goal": {64: 8.0, 128: 20.0}.get(processes, 0.0)}
    if options.before:
        peers[_before.NAME] = statistics.median(times[_before.NAME])
    for peer_name, peer in peers.items():
        row(f"new group over {processes} processes", statistics.median(times["weft"]), peer, peer_name, "ms",
            options.rounds)


def groups(options) -> None:
    ours, torch = [], []
    layout = options.group_layout
    for turn in range(options.rounds):
        say(f"all groups of {layout}, round {turn + 1} of {options.rounds}")
        compared = measure(BENCH, "groups", "--layout", layout, *on("torch"))
        torch.append(compared["one_by_one"])
        times = measure("weft-init", "phases", "--layout", layout, "--connect-ranks", 0)["phases"]
        ours.append(times["exchange"] + times["groups"])
    last = [one["one_by_one"][-1] for one in torch]
    how = "predicted" if last[0]["predicted"] else "measured"
    for what, peer in ((f"one by one {how}", last), ("by one exchange as ours", [one["exchange"] for one in torch])):
        row(f"all groups of {layout}, TCPStore {what}", statistics.median(ours),
            statistics.median(one["seconds"] for one in peer), "TCPStore", "s", options.rounds)


if __name__ == "__main__":
    main()

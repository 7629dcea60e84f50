"""Rendezvous stores: ours against Redis and torch's TCPStore, and a new group over real processes.

All three servers are driven by clients of init_bench's own: connections without a thread each, in
two processes, and no client library of anybody is measured. A round runs ours, Redis' and TCPStore's in
turn; a row's number is the median over the rounds. Messages are those of one round on the wire.

Cases: each phase of all ranks, of `--layouts`; operations per second and 99th percentile of their
latency; groups made one by one as torch does, on TCPStore, against one exchange on ours; and a new
group over 64 and 128 real processes, against the goals of 8 and 20 ms (Gloo on another machine took
359 and 1,850 ms, lazily connected 34 ms).
"""
# needs: torch

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

BENCH = "tests/init_bench"
PEERS = {"redis": "Redis", "torch": "TCPStore"}
LIMIT_S = 600


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(name, *arguments) -> dict:
    """What the program `name` writes as its result."""
    program = pathlib.Path(os.environ["WEFT_BIN"]) / name
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [str(word) for word in (program, *arguments, "--json", file.name)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=LIMIT_S)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}")
        return json.load(open(file.name))


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
            row(f"{what}: {case}", ours, peer, PEERS[store], unit, rounds)


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
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--cases", nargs="+", default=["phases", "ops", "groups", "new-group"],
                        choices=["phases", "ops", "groups", "new-group"])
    parser.add_argument("--group-layout", default="tp8,pp8,dp8")
    parser.add_argument("--processes", type=int, nargs="+", default=[64, 128])
    options = parser.parse_args()
    if "phases" in options.cases:
        for layout in options.layouts:
            compare(options.rounds, layout, options.peers, lambda store, layout=layout: measure(
                BENCH, "phases", "--records", "all", "--layout", layout, "--connect-ranks", 0,
                *on(store)), phases)
    if "ops" in options.cases:
        compare(options.rounds, "ops", options.peers,
                lambda store: measure(BENCH, "operations", *on(store)), operations)
    if "groups" in options.cases and "torch" in options.peers:
        groups(options)
    for processes in options.processes if "new-group" in options.cases else []:
        times = []
        for turn in range(options.rounds):
            say(f"new group, {processes} processes, round {turn + 1} of {options.rounds}")
            result = measure("weft-init", "new-group", "--ranks", processes)
            times.append(result["ready_seconds"] * 1e3)
        goal = {64: 8.0, 128: 20.0}.get(processes, 0.0)
        row(f"new group over {processes} processes", statistics.median(times), goal, "goal", "ms",
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
    row(f"all groups of {layout}, one by one {how}", statistics.median(ours),
        statistics.median(one["seconds"] for one in last), "TCPStore", "s", options.rounds)


if __name__ == "__main__":
    main()

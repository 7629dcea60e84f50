"""How often, how rightly and how soon weft-diagnose names a fault, on emulated jobs.

Each run is a job of `weft-fault run` under weft-run, whose compute are timers, with a fault on a rank and
at a step that the seed draws; weft-diagnose watches it from its start to its first finding, and looks at
what it left behind where it found nothing in time. Right: the finding has the fault's name and the rank
is among its culprits. Benign disturbances are healthy runs: there any finding is a false alarm.
Precision = right findings / all findings; recall = right findings / faulty runs; both with Wilson's 95 %
interval. Times are from the onset that the injector prints to the finding, both on one clock; of slowdowns, in
steps of the job. Peers are goals. Faults and severities: `weft-fault list`.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(os.environ["WEFT_BIN"])
STOPS = ("dead rank", "rank left early", "stopped rank", "hang outside of communication",
         "different calls", "deadlock", "receiver does not post")
LIMIT_S = 60


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def faults() -> list[dict]:
    text = subprocess.run([BIN / "weft-fault", "list"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def wilson(right: int, all_runs: int) -> tuple[float, float]:
    if all_runs == 0:
        return (0.0, 1.0)
    z, p = 1.96, right / all_runs
    middle = (p + z * z / (2 * all_runs)) / (1 + z * z / all_runs)
    half = z * math.sqrt(p * (1 - p) / all_runs + z * z / (4 * all_runs**2)) / (1 + z * z / all_runs)
    return (middle - half, middle + half)


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0


class Run:
    """One job with one fault; `finding` is what was said of it first, or None."""

    def __init__(self, fault: dict, seed: int, options):
        self.fault, self.seed = fault, seed
        self.rank = (seed * 7 + len(fault["fault"])) % options.ranks
        self.step = 8 + seed % 5
        self.onset, self.finding, self.said_ns, self.said_step = None, None, 0, 0
        folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-diagnosis-"))
        try:
            self.go(folder, options)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def go(self, folder: pathlib.Path, options) -> None:
        rings = folder / "rings"
        command = [BIN / "weft-run", "-n", options.ranks, "--job", "bench", "--no-prefix",
                   "--set", f"records.folder={rings}", "--set", "collective.timeout=30s", "--",
                   BIN / "weft-fault", "run", "--fault", self.fault["fault"], "--rank", self.rank,
                   "--step", self.step, "--steps", options.steps, "--seed", self.seed,
                   "--severity", options.severity, "--step-time", options.step_time]
        with open(folder / "log", "w+", encoding="utf-8") as log:
            job = subprocess.Popen([str(word) for word in command], stdout=log,
                                   stderr=subprocess.DEVNULL)
            try:
                self.watch(job, rings)
            finally:
                job.kill()
                job.wait()
            log.seek(0)
            for line in log:
                if line.startswith("{\"onset_ns\""):
                    self.onset = json.loads(line)["onset_ns"]
                    self.pid = json.loads(line)["pid"]
        self.end_ranks(rings)

    def end_ranks(self, rings: pathlib.Path) -> None:
        """weft-run was killed: its ranks follow; those that are stopped are told to."""
        for ring in rings.glob("*.weft"):
            pid = int(ring.stem.rpartition("-")[2])
            comm = pathlib.Path(f"/proc/{pid}/comm")
            if comm.exists() and comm.read_text().strip() == "weft-fault":
                os.kill(pid, 9)

    def watch(self, job, rings: pathlib.Path) -> None:
        until = time.monotonic() + LIMIT_S
        while self.finding is None and time.monotonic() < until:
            ended = job.poll() is not None
            self.ask(rings, ["--replay"] if ended else ["--watch", "500ms"])
            if ended:
                return

    def ask(self, rings: pathlib.Path, how: list[str]) -> None:
        done = subprocess.run([BIN / "weft-diagnose", "--json", "--records", rings, *how],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if done.returncode == 1:
            time.sleep(0.02)  # it has not begun
            return
        said = json.loads(done.stdout)
        if said["findings"]:
            self.finding, self.said_ns = said["findings"][0], said["now_ns"]
            self.said_step = said["step"]

    @property
    def faulty(self) -> bool:
        return self.fault["expected"] != ""

    @property
    def right(self) -> bool:
        return (self.faulty and self.finding is not None and self.onset is not None
                and self.finding["fault"] == self.fault["expected"]
                and self.rank in self.finding["culprits"])

    def text(self) -> str:
        said = "nothing" if self.finding is None else (
            f"{self.finding['fault']} ({self.finding['component']}) {self.finding['culprits']}")
        verdict = "right" if self.right or (not self.faulty and self.finding is None) else "WRONG"
        return f"{verdict}: {self.fault['fault']} on rank {self.rank}, seed {self.seed}: {said}"


def row(case: str, ours: float, goal: float, unit: str, runs: int, better_low: bool = False) -> None:
    ratio = (goal / ours if ours else 0) if better_low else (ours / goal if goal else 0)
    print(json.dumps({"name": "diagnosis", "case": case, "ours": round(ours, 3), "peer": goal,
                      "peer_name": "goal", "unit": unit, "ratio": round(ratio, 3),
                      "repeats": runs}), flush=True)


def report(runs: list[Run]) -> None:
    faulty = [run for run in runs if run.faulty]
    said = [run for run in runs if run.finding is not None]
    right = [run for run in faulty if run.right]
    low, high = wilson(len(right), len(said))
    row(f"precision, 95 % within {low:.2f}..{high:.2f}", len(right) / max(len(said), 1), 0.97, "",
        len(said))
    low, high = wilson(len(right), len(faulty))
    row(f"recall, 95 % within {low:.2f}..{high:.2f}", len(right) / max(len(faulty), 1), 0.95, "",
        len(faulty))
    component = [run for run in right if run.finding["component"] == run.fault["component"]]
    row("component is right", len(component) / max(len(right), 1), 0.90, "", len(right))
    healthy = [run for run in runs if not run.faulty]
    row("healthy runs without an alarm", sum(run.finding is None for run in healthy)
        / max(len(healthy), 1), 1.0, "", len(healthy))
    stops = [(run.said_ns - run.onset) / 1e9 for run in right if run.fault["expected"] in STOPS]
    slow = [run.said_step - run.step for run in right if run.fault["expected"] not in STOPS]
    for part in (0.5, 0.9, 0.99):
        row(f"stops: onset to culprit, p{part * 100:.0f}", percentile(stops, part), 2.0, "s",
            len(stops), better_low=True)
    for part in (0.5, 0.9, 0.99):
        row(f"slowdowns: onset to culprit, p{part * 100:.0f}", percentile(slow, part), 5.0,
            "steps", len(slow), better_low=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3, help="runs of each fault")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--severity", type=float, default=2.0)
    parser.add_argument("--step-time", default="60ms")
    parser.add_argument("--quick", action="store_true", help="one seed, fewer steps")
    parser.add_argument("--faults", help="comma list; default: all")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps = 1, 30
    wanted = options.faults.split(",") if options.faults else None
    runs = []
    for seed in range(options.first, options.first + options.seeds):
        for fault in faults():
            if wanted and fault["fault"] not in wanted:
                continue
            runs.append(Run(fault, seed, options))
            say(runs[-1].text())
    report(runs)


if __name__ == "__main__":
    main()

"""How often, how rightly and how soon weft-diagnose names a fault, on emulated jobs.

Each run is a job of `weft-fault run` under weft-run, whose compute are timers, with a fault on a rank and
at a step that the seed draws; weft-diagnose watches it from its start, and looks at what it left behind
where it found nothing in time. Right: a finding has the fault's name, and blames nobody but the ranks that have
it; of a link, its ends. The first finding counts, or a better one within two seconds. Benign disturbances are healthy
runs: there any finding is a false alarm. Precision = right runs / runs with a finding; recall = right runs /
faulty runs; each with the ends of Wilson's 95 % interval. "unknown" is the share of faulty runs that were seen and
not named: each is a wrong run, too. Times are from the onset that the injector prints to the first finding (alert)
and to the right one (culprit), all on one clock; of slowdowns in steps of the job. Each detector of the literature
is run alone on the same records and scored by culprit, on the faults that it is for and the healthy runs. Peers are
goals, for detectors Minder's published precision and recall. Faults: `weft-fault list`.

--setup draws the faults as a paper's own evaluation had them, as far as it tells and as these faults can stand for
them: mycroft (SOSP'25: 32 GPUs, seven faults: NIC down, NIC rate limit, PCIe downgrade, GPU power cap, background
compute, background traffic, a proxy that sleeps), greyhound (ATC'25: twelve slowdowns of compute and communication),
minder (NSDI'25: faults in the shares of its fleet over seven months; F1 0.893 on 150 of them).
"""

import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

from _bench import BIN, say

SLOWDOWNS = ("slow rank", "slow data", "slow flow", "slow NIC", "slow storage", "congestion",
             "lossy link", "communication thread held up")
LINKS = ("slow flow", "lossy link", "stuck flow", "broken path", "corrupt data")  # two ends
DETECTORS = {"minder": SLOWDOWNS, "greyhound": SLOWDOWNS,
             "mycroft": ("stuck flow", "broken path", "receiver does not post", "deadlock",
                         "hang outside of communication", "stopped rank", "stopped host")}
ALONE_S = 1.2
# Faults with the number of their runs for each seed.
SETUPS = {
    "mycroft": {"nic-down": 1, "slow-nic": 1, "slow-compute": 2, "cpu-quota": 1, "congestion": 1,
                "late-thread": 1},
    "greyhound": {"slow-compute": 3, "cpu-quota": 3, "slow-nic": 3, "congestion": 3},
    # Per cent of Minder's fleet: ECC 39, CUDA 15, GPU 8, PCIe 7, unreachable 6, NIC 6, HDFS 6, card 2, NVLink 2, AOC 1.
    "minder": {"ecc": 39, "crash": 15, "xid": 10, "slow-nic": 7, "stop-host": 6, "nic-down": 6,
               "slow-storage": 6, "slow-compute": 2, "link-flaps": 1},
}
SETUP_RANKS = {"mycroft": 32, "greyhound": 32, "minder": 8}
PERIODIC = "slow-at-times"  # one step in four: six periods are its goal
NOBODYS = ("congestion", "control plane lost")
LIMIT_S = 60


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
        self.onset, self.onset_step, self.ranks = None, 0, set()
        self.findings, self.said_ns, self.said_step = [], 0, 0
        self.alert_ns, self.alert_step = 0, 0
        self.alone: dict[str, list] = {}  # what each detector alone says in the end
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
        self.log = folder / "log"
        with open(self.log, "w", encoding="utf-8") as log:
            job = subprocess.Popen([str(word) for word in command], stdout=log,
                                   stderr=subprocess.DEVNULL)
            try:
                self.watch(job, rings)
                # A window that a detector alone wants is longer than three steps.
                if self.onset is not None and self.fault["expected"] in SLOWDOWNS and job.poll() is None:
                    time.sleep(max(0.0, ALONE_S - (self.said_ns - self.onset) / 1e9))
                for detector in DETECTORS:
                    done = subprocess.run(
                        [BIN / "weft-diagnose", "--json", "--records", rings, "--detector", detector,
                         *(["--replay"] if job.poll() is not None else [])],
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                    self.alone[detector] = (json.loads(done.stdout)["findings"]
                                            if done.returncode in (0, 3) else [])
            finally:
                job.kill()
                job.wait()
            self.read_onsets()
        self.end_ranks(rings)

    def read_onsets(self) -> None:
        for line in self.log.read_text().splitlines():
            if line.startswith('{"onset_ns"') and line.endswith("}"):
                said = json.loads(line)
                self.ranks.add(said["rank"])
                if self.onset is None or said["onset_ns"] < self.onset:
                    self.onset, self.onset_step = said["onset_ns"], said["step"]

    def end_ranks(self, rings: pathlib.Path) -> None:
        """weft-run was killed: its ranks follow; those that are stopped are told to."""
        for ring in rings.glob("*.weft"):
            pid = int(ring.stem.rpartition("-")[2])
            comm = pathlib.Path(f"/proc/{pid}/comm")
            with contextlib.suppress(OSError):  # it has ended since
                if comm.read_text().strip() == "weft-fault":
                    os.kill(pid, 9)

    def watch(self, job, rings: pathlib.Path) -> None:
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            ended = job.poll() is not None
            self.ask(rings, ["--replay"] if ended else ["--watch", "500ms"])
            # After a first alert that is not right it may say better within two seconds.
            late = bool(self.alert_ns) and (not self.faulty or self.said_ns - self.alert_ns > 2e9)
            if ended or self.right or late:
                return

    def ask(self, rings: pathlib.Path, how: list[str]) -> None:
        done = subprocess.run([BIN / "weft-diagnose", "--json", "--records", rings, *how],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if done.returncode == 1:
            time.sleep(0.02)  # it has not begun
            return
        said = json.loads(done.stdout)
        self.read_onsets()
        if said["findings"]:
            self.findings, self.said_ns = said["findings"], said["now_ns"]
            self.said_step = said["step"]
            if not self.alert_ns:
                self.alert_ns, self.alert_step = self.said_ns, self.said_step

    @property
    def faulty(self) -> bool:
        return self.fault["expected"] != ""

    @property
    def finding(self) -> dict | None:
        """The one that has the fault's name, else the first."""
        named = [one for one in self.findings if one["fault"] == self.fault["expected"]]
        return (named or self.findings or [None])[0]

    @property
    def right(self) -> bool:
        """The fault's name, and nobody blamed but the ranks that have it; of a link, its two ends."""
        if not self.faulty or self.finding is None or self.finding["fault"] != self.fault["expected"]:
            return False
        blamed = {rank for one in self.findings if one["fault"] == self.fault["expected"]
                  for rank in one["culprits"]}
        ranks = self.ranks or {self.rank}
        if self.fault["expected"] in NOBODYS:
            return not blamed
        if self.fault["expected"] in LINKS:
            return bool(blamed & ranks) and len(blamed) <= 3
        return bool(blamed) and blamed <= ranks | self.partners(blamed)

    def partners(self, blamed: set[int]) -> set[int]:
        """A circle of a deadlock names who waits for whom; a stopped host all its ranks."""
        if self.fault["expected"] == "deadlock":
            return blamed if self.rank in blamed else set()
        return set()

    def text(self) -> str:
        said = "nothing" if self.finding is None else (
            f"{self.finding['fault']} ({self.finding['component']}) {self.finding['culprits']}")
        verdict = "right" if self.right or (not self.faulty and self.finding is None) else "WRONG"
        return (f"{verdict}: {self.fault['fault']} on rank {self.rank}, seed {self.seed}: {said}"
                + (f" after {(self.alert_ns - self.onset) / 1e9:.2f} s, {self.said_step - self.onset_step}"
                   " steps" if self.onset and self.finding else "")
                + (f" of {len(self.findings)}" if len(self.findings) > 1 else ""))


def row(case: str, ours: float, goal: float, unit: str, runs: int, better_low: bool = False) -> None:
    ratio = (goal / ours if ours else 0) if better_low else (ours / goal if goal else 0)
    print(json.dumps({"name": "diagnosis", "case": case, "ours": round(ours, 3), "peer": goal,
                      "peer_name": "goal", "unit": unit, "ratio": round(ratio, 3),
                      "repeats": runs}), flush=True)


def share_row(case: str, right: int, of: int, goal: float) -> None:
    """A share with the ends of its interval, a row each."""
    low, high = wilson(right, of)
    row(case, right / max(of, 1), goal, "", of)
    row(f"{case}_wilson95_low", low, goal, "", of)
    row(f"{case}_wilson95_high", high, goal, "", of)


def report(runs: list[Run]) -> None:
    faulty = [run for run in runs if run.faulty]
    said = [run for run in runs if run.finding is not None]
    right = [run for run in faulty if run.right]
    share_row("precision", len(right), len(said), 0.97)
    share_row("recall", len(right), len(faulty), 0.95)
    component = [run for run in right if run.finding["component"] == run.fault["component"]]
    share_row("component", len(component), len(right), 0.90)
    unknown = [run for run in faulty if run.finding is not None and run.finding["fault"] == "unknown"]
    row("unknown", len(unknown) / max(len(faulty), 1), 0.05, "", len(faulty), better_low=True)
    healthy = [run for run in runs if not run.faulty]
    quiet = sum(run.finding is None for run in healthy)
    share_row("healthy_without_alarm", quiet, len(healthy), 1.0)
    if precision_and_recall := [part for part in (len(right) / max(len(said), 1),
                                                  len(right) / max(len(faulty), 1)) if part]:
        row("F1", statistics.harmonic_mean(precision_and_recall), 0.893, "", len(runs))
    stops = [run for run in right if run.fault["expected"] not in SLOWDOWNS and run.onset]
    slow = [run for run in right if run.fault["expected"] in SLOWDOWNS and run.onset
            and run.fault["fault"] != PERIODIC]
    periodic = [run.said_step - run.onset_step for run in right if run.fault["fault"] == PERIODIC]
    if periodic:
        row("periodic_culprit_p90_steps", percentile(periodic, 0.9), 24.0, "steps", len(periodic),
            better_low=True)
    for part in (0.5, 0.9, 0.99):
        row(f"stop_alert_p{part * 100:.0f}_s",
            percentile([(run.alert_ns - run.onset) / 1e9 for run in stops], part), 2.0, "s",
            len(stops), better_low=True)
        row(f"stop_culprit_p{part * 100:.0f}_s",
            percentile([(run.said_ns - run.onset) / 1e9 for run in stops], part), 2.0, "s",
            len(stops), better_low=True)
        row(f"slow_culprit_p{part * 100:.0f}_steps",
            percentile([run.said_step - run.onset_step for run in slow], part), 5.0, "steps",
            len(slow), better_low=True)


def report_alone(runs: list[Run], detector: str, scope: tuple[str, ...]) -> None:
    """Culprits only, over the faults that the detector is for and the healthy runs."""
    runs = [run for run in runs if not run.faulty or run.fault["expected"] in scope]
    said = [run for run in runs if run.alone.get(detector)]
    faulty = [run for run in runs if run.faulty and run.fault["expected"] not in NOBODYS]
    right = [run for run in faulty if run.alone.get(detector)
             and {rank for one in run.alone[detector] for rank in one["culprits"]} & run.ranks]
    share_row(f"{detector}_alone_precision", len(right), len(said), 0.904)
    share_row(f"{detector}_alone_recall", len(right), len(faulty), 0.883)


def overhead(options) -> None:
    """The median step of a healthy job with records, over that without: off, on, off, in turns."""
    def step_ns(records: str) -> float:
        with tempfile.TemporaryDirectory(prefix="weft-overhead-") as folder:
            done = subprocess.run([str(word) for word in (
                BIN / "weft-run", "-n", options.ranks, "--no-prefix", "--set",
                f"records.folder={folder}", "--set", f"records.enabled={records}", "--",
                BIN / "weft-fault", "run", "--steps", 60, "--step-time", options.step_time,
                "--seed", options.first, "--timing")], check=True, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True)
        return next(json.loads(line)["step_median_ns"] for line in done.stdout.splitlines()
                    if line.startswith('{"step_median_ns"'))

    turns = 1 if options.quick else 5
    off, on = [], []
    for _ in range(turns):
        off.append(step_ns("false"))
        on.append(step_ns("true"))
        off.append(step_ns("false"))
    cost = statistics.median(on) / statistics.median(off) - 1
    row("overhead_percent", max(0.01, cost * 100), 0.5, "%", 3 * turns, better_low=True)


def plan_of(options) -> list[tuple[dict, int]]:
    """Every run's fault and seed, which differs between runs of one fault; seed by seed."""
    wanted = set(options.faults.split(",")) if options.faults else None
    plan = []
    for fault in faults():
        if wanted and fault["fault"] not in wanted:
            continue
        runs = options.seeds
        if not fault["expected"]:
            runs = options.seeds if options.healthy is None else options.healthy
        elif options.setup:
            runs *= SETUPS[options.setup].get(fault["fault"], 0)
        plan += [(fault, options.first + number) for number in range(runs)]
    return sorted(plan, key=lambda one: one[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10, help="runs of each fault")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--severity", type=float, default=2.0)
    parser.add_argument("--step-time", default="60ms")
    parser.add_argument("--at-once", type=int, default=2, help="jobs")
    parser.add_argument("--quick", action="store_true", help="one seed, fewer ranks and steps")
    parser.add_argument("--faults", help="comma list; default: all")
    parser.add_argument("--healthy", type=int, help="runs of each benign disturbance; default: as --seeds")
    parser.add_argument("--setup", choices=SETUPS, help="of a paper")
    options = parser.parse_args()
    if options.setup:
        options.ranks = SETUP_RANKS[options.setup]
    if options.quick:
        options.seeds, options.steps, options.ranks = 1, 30, 4
    runs = []
    plan = plan_of(options)
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for run in pool.map(lambda one: Run(*one, options), plan):
            runs.append(run)
            say(run.text())
    report(runs)
    for detector, scope in DETECTORS.items():
        report_alone(runs, detector, scope)
    overhead(options)


if __name__ == "__main__":
    main()

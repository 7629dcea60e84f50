"""Faults that cost a run no step: a full disk, a killed store, sockets and paths that are cut.

Each is done to a run under weft-run that may start no rank anew (but for the store's, whose ranks
watch the store for a peer's death): if a rank ended, the run would fail.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time

from _recovery import (BIN, PATIENCE, Job, differs, last_step, losses, metrics, say,
                       train_command)

STEPS = 400
WARM = 5  # steps before times count
STEPS_AFTER = 25  # that are done after each fault, before the next
SKIPPED = 77  # tests/fabric/netns.py's status where there are no namespaces
LONGER = ["validation.every=0", "train.global_batch=32"]  # steps of some 20 ms
SETTINGS = ["checkpoint.every=0", *LONGER]
MOUNT = 'mkdir -p "$0" && mount -t tmpfs -o size=16m tmpfs "$0" && exec "$@"'
LOOPBACK = 'ip link set lo up && exec "$@"'


class Watch(threading.Thread):
    """The longest time between two steps, and steps that were taken back, while it goes on."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(daemon=True)
        self.folder, self.stopped = folder, threading.Event()
        self.longest, self.again = 0.0, 0
        self.start()

    def run(self) -> None:
        while last_step(self.folder) < WARM and not self.stopped.wait(0.005):
            pass
        at, last = time.monotonic(), last_step(self.folder)
        while not self.stopped.wait(0.005):
            step, now = last_step(self.folder), time.monotonic()
            if step != last:
                self.longest = max(self.longest, now - at)
                self.again += max(0, last - step)
                at, last = now, step
        self.longest = max(self.longest, time.monotonic() - at)

    def stop(self) -> None:
        self.stopped.set()
        self.join(PATIENCE)


def wait_until(what: str, condition, job: Job) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if job.is_over() or time.monotonic() > end:
            raise SystemExit(f"{job.run}: {what}: not within {PATIENCE} s, or before its end")
        time.sleep(0.01)


def failed_checkpoints(run: pathlib.Path) -> int:
    return sum("checkpoint_failed" in row for row in metrics(run))


def fill_disk(job: Job) -> str:
    """Until three checkpoints have failed; the disk is the job's own, a tmpfs of its namespace."""
    folder = pathlib.Path(f"/proc/{job.process.pid}/root{job.run}/checkpoints")
    filler = folder / "filler"
    job.wait_for(12)
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:  # it is full
            pass
    wait_until("three failed checkpoints", lambda: failed_checkpoints(job.run) >= 3, job)
    filler.unlink()
    failed = failed_checkpoints(job.run)
    job.wait_for(last_step(job.run) + STEPS_AFTER)
    if failed_checkpoints(job.run) > failed + 1:  # one may have been under way
        raise SystemExit(f"{job.run}: checkpoints fail although the disk has room again")
    return f"{failed} checkpoints failed"


class Store:
    """A weft-store with a journal, which can be killed and started again at its address."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir()
        self.folder, self.address = folder, "127.0.0.1:0"
        self.environment = dict(os.environ, WEFT_JOB_SECRET="5a" * 32)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [BIN / "weft-store", "--json", "--listen", self.address, "--state-dir", self.folder],
            env=self.environment, stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["address"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def restart_store(job: Job, store: Store) -> str:
    """Twice; each time it is away for a second."""
    for _ in range(2):
        job.wait_for(last_step(job.run) + 12)
        store.kill()
        time.sleep(1)
        store.start()
        job.wait_for(last_step(job.run) + STEPS_AFTER)
    return "killed twice, away for 1 s each"


def cut_sockets(job: Job, rng: random.Random) -> str:
    """Every TCP connection of the job at once, the store's among them, three times."""
    cut = 0
    for _ in range(3):
        job.wait_for(last_step(job.run) + 12)
        time.sleep(rng.random() * 0.1)
        done = subprocess.run(["nsenter", "-t", str(job.process.pid), "-n", "ss", "-HtK", "state",
                               "established"], capture_output=True, text=True, check=False)
        if not done.stdout.strip():
            raise SystemExit(f"ss -K has cut no connection: {done.stderr}")
        cut += len(done.stdout.strip().splitlines())
        job.wait_for(last_step(job.run) + STEPS_AFTER)
    return f"{cut} ends of connections cut in 3 times"


def print_row(case: str, again: int, longest: float, median: float, equal: bool, what: str) -> None:
    common = {"name": "recovery", "repeats": 1}
    print(json.dumps({**common, "case": f"{case}: steps lost", "ours": again, "peer": 0,
                      "peer_name": f"goal; losses {'equal' if equal else 'DIFFER'}; {what}",
                      "unit": "steps", "ratio": 1.0 if again == 0 else 0.0}), flush=True)
    print(json.dumps({**common, "case": f"{case}: longest time between two steps",
                      "ours": round(longest, 3), "peer": round(median, 4),
                      "peer_name": "median step", "unit": "s",
                      "ratio": round(median / max(longest, 1e-4), 3)}), flush=True)


def median_step(run: pathlib.Path) -> float:
    return statistics.median(row["step_seconds"] for row in metrics(run) if "loss" in row)


def cut_path(options, data: str, run: pathlib.Path) -> dict | None:
    """In namespaces of its own, by a program of its own; None: they cannot be had."""
    script = pathlib.Path(__file__).parent / "recovery/cut_path.py"
    words = train_command(run, data, options.steps, options.steps, SETTINGS)
    done = subprocess.run([sys.executable, "-B", script, run, *words], stdout=subprocess.PIPE,
                          text=True, timeout=2 * PATIENCE, check=False)
    if done.returncode == SKIPPED:
        say(f"  {done.stdout.strip()}")
        return None
    if done.returncode != 0:
        raise SystemExit(f"{script.name}: status {done.returncode}: {done.stdout}")
    return json.loads(done.stdout)


def measure_free(options, data: str, folder: pathlib.Path) -> int:
    """Prints two rows for each fault; returns how many runs had other losses."""
    options = argparse.Namespace(**vars(options))
    options.steps = STEPS
    rng = random.Random(options.seed)
    say("the unbroken run")
    whole = Job(options, data, folder / "free_whole", 0, SETTINGS, snapshot="off")
    whole.finish()
    unbroken = losses(whole.run)
    wrong = 0

    def end(case: str, job: Job, watch: Watch, what: str) -> None:
        nonlocal wrong
        watch.stop()
        job.finish()
        is_other = differs(job, unbroken)
        started = sum("recovered_rank" in row for row in metrics(job.run))
        if started:
            raise SystemExit(f"{job.run}: {started} ranks were started anew")
        wrong += is_other
        print_row(case, watch.again, watch.longest, median_step(job.run), not is_other, what)

    for background in "false", "true":
        case = f"disk full, checkpoints {'in the background' if background == 'true' else 'of all'}"
        say(f"{case}:")
        job = Job(options, data, folder / f"full_{background}", 0,
                  ["checkpoint.every=2", f"checkpoint.background={background}", *LONGER],
                  snapshot="off",
                  around=("unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNT,
                          str(folder / f"full_{background}" / "checkpoints")))
        watch = Watch(job.run)
        end(case, job, watch, fill_disk(job))
    say("store killed and started again:")
    store = Store(folder / "store")
    try:
        job = Job(options, data, folder / "store_killed", 1, SETTINGS,
                  launcher=("--store", store.address, "--store-patience", "30s"),
                  environment=store.environment)
        watch = Watch(job.run)
        end("store killed and started again", job, watch, restart_store(job, store))
    finally:
        store.kill()
    say("TCP connections cut:")
    job = Job(options, data, folder / "sockets", 0, SETTINGS, snapshot="off",
              around=("unshare", "--net", "sh", "-c", LOOPBACK, "sh"),
              launcher=("--set", "transport=tcp"))
    watch = Watch(job.run)
    end("all TCP connections cut", job, watch, cut_sockets(job, rng))
    say("a path between two hosts cut:")
    pair = Job(options, data, folder / "pair_whole", 0, SETTINGS, snapshot="off", ranks=2)
    pair.finish()
    cut = cut_path(options, data, folder / "path")
    if cut is not None:
        is_other = losses(folder / "path") != losses(pair.run)
        if is_other:
            say("  FAILED: losses differ from those of the unbroken run")
        wrong += is_other
        print_row("one of two paths drops everything", cut["again"], cut["longest"],
                  median_step(folder / "path"), not is_other, cut["what"])
    return wrong

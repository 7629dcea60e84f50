"""What a rank costs that dies: seconds until the next new step is done, and steps done again.

weft-train on generated text under weft-run --recover, --ranks processes; after each pause of random
length a rank, drawn too, is killed by SIGKILL, --faults times, with snapshots in memory, once where
the other ranks keep their connections and once where all join anew (recovery.join=all), and once
with checkpoints every 10 steps alone. Ours: the median of the seconds from the kill to the end
of the first step that had not been done. The peer is the same fault with the whole job ended and
started again by hand, --resume, as one has to without --recover.

The same under weft-driver and weft-executors, two hosts of half the ranks each and a spare one, all
on this machine: a rank is killed, with and without a warm spare process; a host is lost (its
executor and ranks); the driver is killed and started again. Under the row of each fault, the phases
of its recovery as the run itself tells them, medians too; "noticed" is the time from the kill until
the launcher saw the end of the process.

--parts ettr: a run of --minutes with a rank killed every --fault-every seconds and a warm spare
process: the part of its time that went into steps that count, once each (the effective training
time ratio, ETTR), of a model whose steps take some 100 ms on two cores; beside it the same until
the first fault, which is what lies between steps without any, and what a fault cost, its phases
again. --minutes with the other parts adds it to them.

--parts executors: --hosts executors without ranks at one weft-driver with a journal, as
weft-executor talks to it, all of one process on this machine: seconds until all have joined, the
longest that a report went without an answer then (the lease ends ranks after 5 s), from the report
of a host that leaves until all others know the decision, and the driver's processor time a second.
The peer is one heartbeat's period, 0.25 s.

--quick: 3 faults each, without the rows of checkpoints alone and of the driver's end, and an ETTR
over 2 minutes.

Losses of all runs must be those of the unbroken run to the bit, or the exit status is 1.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/tools/driver"))
from driven_job import DrivenJob  # noqa: E402

BIN = pathlib.Path(os.environ["WEFT_BIN"])
SOURCE = pathlib.Path(os.environ["WEFT_SOURCE"])
SPARES = 3  # processes that are warm on each host, and faults that take one, in the row of these
SPARE_STEPS = 1500  # that such a run has beyond the others', while its spare processes load
PATIENCE = 300  # seconds that anything may take
# Of the run for the ETTR: larger models, and steps of some 100 ms.
ETTR_SETTINGS = ("checkpoint.every=1000", "model.hidden=256", "model.layers=4",
                 "train.global_batch=32", "validation.every=0")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def losses(run: pathlib.Path) -> dict[int, float]:
    rows = {}
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return rows
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # being written
            continue
        if "loss" in row:
            rows[row["step"]] = row["loss"]
    return rows


def recovered(run: pathlib.Path, since: float) -> dict[str, float] | None:
    """The phases of the recovery that began after `since` (time.monotonic()), in seconds: of the
    rank that was the last to be back, where there were several. None: the run has told none."""
    found = None
    for line in (run / "metrics.jsonl").read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # being written
            continue
        if "recovered_rank" not in row or row["began_ns"] * 1e-9 < since:
            continue
        phases = {"noticed": row["began_ns"] * 1e-9 - since}
        phases.update((phase, took / 1e3) for phase, took in row["phases_ms"].items())
        if found is None or sum(phases.values()) > sum(found.values()):
            found = phases
    return found


def print_phases(case: str, whole: float, all_phases: list[dict[str, float] | None]) -> None:
    """A row for each phase: the median over the recoveries that told it."""
    told = [phases for phases in all_phases if phases is not None]
    for phase in told[0] if told else ():
        took = statistics.median(phases.get(phase, 0.0) for phases in told)
        print(json.dumps({
            "name": "recovery", "case": f"{case}: {phase}", "ours": round(took, 4),
            "peer": round(whole, 3), "peer_name": "the whole of it", "unit": "s",
            "ratio": round(took / whole, 3), "repeats": len(told)}), flush=True)


def last_step(run: pathlib.Path) -> int:
    return max(losses(run), default=0)


def process_of(run: pathlib.Path, rank: int) -> int | None:
    """The weft-train of this run and rank."""
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
            program = os.readlink(folder / "exe")
        except OSError:
            continue
        if (str(run).encode() in words and b"RANK=%d" % rank in variables
                and program.endswith("weft-train")):
            return int(folder.name)
    return None


def waiting_spares(run: pathlib.Path) -> int:
    """Spare processes of this run that are warm and wait for a place: they read standard input."""
    count = 0
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            is_spare = b"WEFT_SPARE=1" in (folder / "environ").read_bytes().split(b"\0")
            is_of_run = str(run).encode() in (folder / "cmdline").read_bytes().split(b"\0")
            call = (folder / "syscall").read_text()
        except OSError:
            continue
        count += is_spare and is_of_run and call.startswith(("0 0x0 ", "63 0x0 "))
    return count


class Run:
    """A training run in a folder."""

    run: pathlib.Path
    options: argparse.Namespace

    def settings(self) -> list[str]:
        return [f"data.prefix={self.data}", f"train.steps={self.steps}", "train.precision=fp32",
                "train.peak_tflops=1", "sample.tokens=5",
                f"optimizer.decay_steps={self.options.steps + SPARE_STEPS}", *self.more]

    def train(self, *extra: str) -> list[str]:
        command = [BIN / "weft-train", SOURCE / "trainer/configs/tiny.toml", "--run-dir", self.run,
                   *extra]
        return [str(word) for word in command] + [word for setting in self.settings()
                                                  for word in ("--set", setting)]

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def wait_for(self, step: int) -> None:
        """Until that step is done, or the job is over."""
        end = time.monotonic() + PATIENCE
        while last_step(self.run) < step and not self.is_over():
            if time.monotonic() > end:
                raise SystemExit(f"{self.run}: step {step} is not done after {PATIENCE} s")
            time.sleep(0.002)

    def finish(self) -> None:
        status = self.process.wait(PATIENCE)
        if status != 0:
            raise SystemExit(f"{self.run}: exit status {status}")


class Job(Run):
    def __init__(self, options, data: str, run: pathlib.Path, recover: int, more: list[str],
                 snapshot: str = "memory", join: str = "changed"):
        self.snapshot = snapshot
        self.join = join
        self.steps = options.steps
        self.run = run
        self.options = options
        self.data = data
        self.recover = recover
        self.more = more
        self.start()

    def start(self, *extra: str) -> None:
        self.process = subprocess.Popen(
            [BIN / "weft-run", "-n", str(self.options.ranks), "--output", "none", "--recover",
             str(self.recover), "--set", f"recovery.snapshot={self.snapshot}", "--set",
             f"recovery.join={self.join}", "--",
             *self.train(*extra)])

    def process_of(self, rank: int) -> int | None:
        return process_of(self.run, rank)


class Driven(Run):
    """The same under weft-driver and three weft-executors."""

    def __init__(self, options, data: str, run: pathlib.Path, steps: int, spares: int = 0,
                 more: tuple[str, ...] = ("checkpoint.every=10",)):
        self.options, self.data, self.run, self.steps = options, data, run, steps
        self.more = list(more)
        folder = run.parent / (run.name + "_job")
        folder.mkdir()
        self.job = DrivenJob(folder, f"bench-{os.getpid()}-{run.name}", options.ranks // 2)
        self.arguments = ("--recover", "1000")
        self.job.drive(*self.arguments, lease=f"{options.lease}s")
        self.job.join("--output", "none", "--spares", str(spares), command=self.train())

    @property
    def process(self) -> subprocess.Popen:
        return self.job.driver

    def process_of(self, rank: int) -> int | None:
        """Of its newest generation; a moment passes until the driver knows it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not self.is_over():
            state = self.job.state()["ranks"][rank]
            if state["state"] == "done":
                return None
            pid = state["pid"]
            if state["state"] == "runs" and pid and pathlib.Path(f"/proc/{pid}").exists():
                return pid
            time.sleep(0.05)
        return None

    def wait_for_spares(self, count: int) -> None:
        """Until so many are warm, on all hosts together."""
        end = time.monotonic() + PATIENCE
        while waiting_spares(self.run) < count:
            if self.is_over() or time.monotonic() > end:
                raise SystemExit(f"{self.run}: {waiting_spares(self.run)} warm spare processes, "
                                 f"not {count}, when it ended")
            time.sleep(0.05)

    def restart_driver(self) -> None:
        self.job.driver.kill()
        self.job.driver.wait()
        self.job.drive(*self.arguments, lease=f"{self.options.lease}s")


def fault(job: Job, rng: random.Random,
          by_hand: bool) -> tuple[float, int, dict[str, float] | None]:
    """Kills a rank after a while: seconds until the next new step, steps done again, phases."""
    job.wait_for(last_step(job.run) + rng.randint(3, 12))
    time.sleep(rng.random() * job.options.jitter)
    rank = rng.randrange(job.options.ranks)
    pid = job.process_of(rank)
    if pid is None:
        raise SystemExit(f"{job.run}: rank {rank} is not there; more --steps are needed")
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    if by_hand:
        job.process.wait(PATIENCE)
        before = last_step(job.run)
        job.start("--resume")
    else:
        # Until the others have heard of it, a step may yet end.
        time.sleep(0.05)
        before = last_step(job.run)
    took, lowest = until_next_step(job, before, begin)
    say(f"  rank {rank} killed after step {before}: next step after {took:.2f} s, "
        f"went on from step {lowest}")
    return took, before - lowest, None if by_hand else recovered(job.run, begin)


def until_next_step(job: Run, before: int, begin: float) -> tuple[float, int]:
    """Seconds from `begin` until a step after `before` is done, and the step gone on from."""
    lowest = before  # a file that was cut back tells it
    end = begin + PATIENCE
    while last_step(job.run) <= before and not job.is_over():
        lowest = min(lowest, last_step(job.run))
        if time.monotonic() > end:
            raise SystemExit(f"{job.run}: no new step after {PATIENCE} s")
        time.sleep(0.002)
    return time.monotonic() - begin, lowest


def lose_host(job: Driven) -> tuple[float, int, dict[str, float] | None]:
    """Kills the executor that has node 1, and with it its ranks."""
    job.wait_for(12)
    begin = time.monotonic()
    job.job.executors["b"].kill()
    time.sleep(0.05)
    before = last_step(job.run)
    took, lowest = until_next_step(job, before, begin)
    say(f"  host lost after step {before}: next step after {took:.2f} s, went on from {lowest}")
    return took, before - lowest, recovered(job.run, begin)


def lose_driver(job: Driven) -> tuple[float, int, None]:
    """The longest time between two steps while the driver is killed and started again."""
    job.wait_for(12)
    job.restart_driver()
    longest, at, last = 0.0, time.monotonic(), last_step(job.run)
    end = at + 3
    while time.monotonic() < end and not job.is_over():
        step = last_step(job.run)
        now = time.monotonic()
        if step > last:
            longest, at, last = max(longest, now - at), now, step
        time.sleep(0.002)
    say(f"  driver killed and started again: at most {longest:.2f} s between two steps")
    return longest, 0, None


def step_seconds(run: pathlib.Path, first: int, last: int) -> float:
    """Of all steps after `first` up to `last`; of one that was done again, the last time."""
    took = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "loss" in row and first < row["step"] <= last:
            took[row["step"]] = row["step_seconds"]
    return sum(took.values())


def effective_time(job: Driven, seconds: float, every: float,
                   rng: random.Random) -> tuple[float, float, list[dict[str, float] | None]]:
    """Kills a rank every so often: the parts of the time that are in steps that count, in all and
    until the first fault; and the phases of each recovery."""
    job.wait_for(3)
    calm = 0.0
    begin, first = time.monotonic(), last_step(job.run)
    phases: list[dict[str, float] | None] = []
    # Half a period at both ends, so that the run has a fault in each of its periods.
    due = begin + min(every, seconds) / 2
    while due < begin + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        if not phases:
            now = last_step(job.run)
            calm = step_seconds(job.run, first, now) / (time.monotonic() - begin)
        rank = rng.randrange(job.options.ranks)
        pid = job.process_of(rank)
        if pid is None:
            raise SystemExit(f"{job.run}: rank {rank} is not there")
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        before = last_step(job.run)
        took, _ = until_next_step(job, before, killed)
        say(f"  rank {rank} killed after step {before}: next step after {took:.2f} s")
        phases.append(recovered(job.run, killed))
        due += every
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    wall, last = time.monotonic() - begin, last_step(job.run)
    say(f"  {len(phases)} kills in {wall:.0f} s, {last - first} steps")
    return step_seconds(job.run, first, last) / wall, calm, phases


def prepare(folder: pathlib.Path) -> str:
    """Sentences with some grammar; the prefix of what weft-data makes of them."""
    rng = random.Random(5)
    things = "horse river lamp field ship song".split()
    verbs = "carries sees follows keeps makes".split()
    documents = ["".join(f"the {rng.choice(things)} {rng.choice(verbs)} the {rng.choice(things)} "
                         f"of {rng.randrange(100)}.\n" for _ in range(4)) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(documents))
    subprocess.run([BIN / "weft-data", "prepare", "--input", folder / "text.txt",
                    "--output-prefix", folder / "data", "--vocab-size", "320",
                    "--validation-fraction", "0.1"], check=True, stdout=subprocess.DEVNULL)
    return str(folder / "data")


def differs(job: Run, unbroken: dict[int, float]) -> bool:
    wanted = {step: loss for step, loss in unbroken.items() if step <= job.steps}
    if losses(job.run) == wanted:
        return False
    say("  FAILED: losses differ from those of the unbroken run")
    return True


def measure_faults(options, data: str, folder: pathlib.Path) -> int:
    """Prints the rows of each kind of fault; returns how many runs had other losses."""
    say("the unbroken run")
    longest = argparse.Namespace(**vars(options))
    longest.steps += SPARE_STEPS  # other runs' losses are the first of these
    whole = Job(longest, data, folder / "whole", 0, [f"optimizer.decay_steps={longest.steps}"])
    whole.finish()
    unbroken = losses(folder / "whole")
    every = ["checkpoint.every=10"]
    kinds = {"memory": (False, []), "memory, all join anew": (False, []),
             "checkpoints": (False, every), "by hand": (True, every)}
    if options.quick:
        del kinds["checkpoints"]
    results: dict[str, list[tuple[float, int, dict[str, float] | None]]] = {}
    wrong = 0
    for kind, (by_hand, more) in kinds.items():
        say(f"{kind}:")
        rng = random.Random(options.seed)
        job = Job(options, data, folder / kind.replace(" ", "_"),
                  0 if by_hand else options.faults, more,
                  "memory" if kind.startswith("memory") else "off",
                  "all" if "all join" in kind else "changed")
        results[kind] = [fault(job, rng, by_hand) for _ in range(options.faults)]
        job.finish()
        wrong += differs(job, unbroken)
    peer = statistics.median(took for took, _, _ in results["by hand"])
    driven = [("weft-driver", 0, None), ("weft-driver, warm spare", SPARES, None),
              ("host lost", 0, lose_host), ("driver killed", 0, lose_driver)]
    for kind, spares, lose in driven[1:3] if options.quick else driven:
        say(f"{kind}:")
        rng = random.Random(options.seed)
        job = Driven(options, data, folder / kind.replace(" ", "_").replace(",", ""),
                     options.steps + (SPARE_STEPS if spares else 0), spares)
        try:
            faults = options.faults if lose is None else 1
            if spares:
                faults = min(faults, spares)
                job.wait_for_spares(3 * spares)
            results[kind] = [fault(job, rng, False) if lose is None else lose(job)
                             for _ in range(faults)]
            job.finish()
        finally:
            job.job.close()
        wrong += differs(job, unbroken)
    for kind in results:
        if kind == "by hand":
            continue
        times = sorted(took for took, _, _ in results[kind])
        ours = statistics.median(times)
        what = kind if "lost" in kind or "killed" in kind else (
            f"kill -9 of a rank of {options.ranks}, {kind}")
        print(json.dumps({
            "name": "recovery", "case": what, "ours": round(ours, 3),
            "slowest": round(times[-1], 3),
            "steps_again": round(statistics.mean(s for _, s, _ in results[kind]), 2),
            "peer": round(peer, 3), "peer_name": "ended, --resume by hand", "unit": "s",
            "ratio": round(peer / ours, 2), "repeats": len(times)}), flush=True)
        print_phases(what, ours, [phases for _, _, phases in results[kind]])
    return wrong


def measure_ettr(options, data: str, folder: pathlib.Path) -> None:
    say(f"a rank killed every {options.fault_every:g} s, for {options.minutes:g} min:")
    job = Driven(options, data, folder / "ettr", 10**7, spares=1, more=ETTR_SETTINGS)
    try:
        ratio, calm, phases = effective_time(job, options.minutes * 60, options.fault_every,
                                             random.Random(options.seed))
        job.job.call("POST", "/stop", job.job.token())
    finally:
        job.job.close()
    case = f"ETTR, a fault every {options.fault_every:g} s for {options.minutes:g} min"
    print(json.dumps({
        "name": "recovery", "case": case, "ours": round(ratio, 4), "peer": 0.97,
        "peer_name": "goal", "until_first_fault": round(calm, 4), "unit": "part",
        "ratio": round(ratio / 0.97, 4), "repeats": 1}), flush=True)
    whole = statistics.median(sum(p.values()) for p in phases if p is not None)
    print_phases(f"{case}, kill -9 of a rank", whole, phases)


def processor_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_executors(options, folder: pathlib.Path) -> None:
    environment = dict(os.environ, WEFT_JOB_SECRET="5a" * 32)
    for hosts in map(int, options.hosts.split(",")):
        log = folder / f"driver-{hosts}"
        with open(log, "w", encoding="utf-8") as said:
            driver = subprocess.Popen(
                [BIN / "weft-driver", "--nodes", str(hosts - 1), "-n", "1", "--job", "many",
                 "--listen", "127.0.0.1:0", "--state-dir", folder / f"state-{hosts}", "--still",
                 "0s"], stderr=said, env=environment)
        try:
            end = time.monotonic() + PATIENCE
            while not (found := re.search(r"serving job '.*' at (\S+),", log.read_text())):
                if driver.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"weft-driver: {log.read_text()}")
                time.sleep(0.02)
            before, begin = processor_seconds(driver.pid), time.monotonic()
            done = subprocess.run(
                [BIN / "tests/executors_bench", "--driver", found.group(1), "--job", "many",
                 "--hosts", str(hosts), "--seconds", str(options.seconds)], env=environment,
                stdout=subprocess.PIPE, timeout=2 * PATIENCE, check=True)
            busy = (processor_seconds(driver.pid) - before) / (time.monotonic() - begin)
        finally:
            driver.kill()
            driver.wait()
        result = json.loads(done.stdout)
        if result["failed"]:
            raise SystemExit(f"{result['failed']} of {hosts} executors ended: {result['why']}")
        for case, ours in (("joined", result["join_s"]),
                           ("longest without an answer", result["stalest_s"]),
                           ("a decision known to all", result["told_s"]),
                           ("the driver's processor time a second", busy)):
            print(json.dumps({
                "name": "recovery", "case": f"{hosts} executors: {case}", "ours": round(ours, 3),
                "peer": 0.25, "peer_name": "a heartbeat's period", "unit": "s",
                "ratio": round(0.25 / max(ours, 1e-3), 3), "repeats": 1}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--faults", type=int, default=10, help="in each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="of a run; 0: 180 for each fault")
    parser.add_argument("--jitter", type=float, default=0.2,
                        help="seconds, at most, from the end of a step to the kill")
    parser.add_argument("--lease", type=float, default=5, help="of weft-driver, in seconds")
    parser.add_argument("--parts", default="faults", help="comma list of faults, ettr, executors")
    parser.add_argument("--hosts", default="64,256,1025", help="comma list, of executors")
    parser.add_argument("--seconds", type=float, default=10, help="of watching executors beat")
    parser.add_argument("--minutes", type=float, default=0,
                        help="of the run for the ETTR; 0: 30 with --parts ettr, else none")
    parser.add_argument("--fault-every", type=float, default=60, help="seconds, in that run")
    parser.add_argument("--quick", action="store_true", help="some minutes in all")
    options = parser.parse_args()
    if options.quick:
        options.faults, options.minutes = min(options.faults, 3), options.minutes or 2
    parts = options.parts.split(",")
    if not set(parts) <= {"faults", "ettr", "executors"}:
        parser.error(f"--parts {options.parts}: faults, ettr, executors are the parts there are")
    if "ettr" in parts:
        options.minutes = options.minutes or 30
    options.steps = options.steps or 180 * options.faults + 10
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wrong = 0
        if "executors" in parts:
            measure_executors(options, folder)
        if parts == ["executors"]:
            return 0
        data = prepare(folder)
        if "faults" in parts and options.faults > 0:
            wrong = measure_faults(options, data, folder)
        if options.minutes > 0:
            measure_ettr(options, data, folder)
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

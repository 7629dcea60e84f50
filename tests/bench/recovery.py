"""What a rank costs that dies: seconds until the next new step is done, and steps done again.

weft-train on generated text under weft-run --recover, --ranks processes; after each pause of random
length a rank, drawn too, is killed by SIGKILL, --faults times, with snapshots in memory, once where
the other ranks keep their connections and once where all join anew (recovery.join=all), and once
with checkpoints every 10 steps alone. Ours: the median of the seconds from the kill to the end
of the first step that had not been done; the row below has the slowest. The peer is the same fault
with the whole job ended and started again by hand, --resume, as one has to without --recover.

The same under weft-driver and weft-executors, two hosts of half the ranks each and a spare one, all
on this machine: a rank is killed, with and without a warm spare process; a host is lost (its
executor and ranks), --host-losses times, each a job of its own; the driver is killed and started
again. Under the row of each fault, the phases of its recovery as the run itself tells them, medians
too; "noticed" is the time from the kill until the launcher saw the end of the process.

--parts ettr: a run of --minutes with a rank killed every --fault-every seconds and a warm spare
process: the part of its time that went into steps that count, once each (the effective training
time ratio, ETTR), of a model whose steps take some 100 ms on two cores; beside it the same until
the first fault, which is what lies between steps without any, and what a fault cost, its phases
again. --minutes with the other parts adds it to them. Then as many steps without a fault, which
takes about as long, to compare the losses.

--parts free: faults that cost no step (_recovery_free.py): a disk that is full while checkpoints
are written, in the foreground and in the background; a store that is killed and started again;
every TCP connection of a job cut at once; one of two paths between two hosts that drops everything
(network namespaces; needs root). Two rows each: steps lost, and the longest time between two steps.

--parts hangs: --runs small jobs of two ranks under weft-run --recover, of several layouts in turns;
in each a rank is killed, twice in some, or stopped for up to a second, at a random moment from its
start to its end (_recovery_hangs.py). 20 runs by default; 200 are the goal's.

--parts executors: --hosts executors without ranks at one weft-driver with a journal, as
weft-executor talks to it, all of one process on this machine: seconds until all have joined, the
longest that a report went without an answer then (the lease ends ranks after 5 s), from the report
of a host that leaves until all others know the decision, and the driver's processor time a second.
The peer is one heartbeat's period, 0.25 s.

--quick: 3 faults each, without the rows of checkpoints alone and of the driver's end, and an ETTR
over 2 minutes.

Losses of all runs must be those of the unbroken run to the bit, or the exit status is 1; each
part's last row says how many runs were compared, and how many differ.
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

from _recovery import (BIN, PATIENCE, SPARE_STEPS, Driven, Job, differs, last_step, losses,
                       metrics, prepare, recovered, say, until_next_step)
from _recovery_free import measure_free
from _recovery_hangs import measure_hangs

PARTS = ("faults", "free", "hangs", "ettr", "executors")
SPARES = 3  # processes that are warm on each host, and faults that take one, in the row of these
# Of the run for the ETTR: larger models, and steps of some 100 ms.
ETTR_SETTINGS = ("checkpoint.every=1000", "model.hidden=256", "model.layers=4",
                 "train.global_batch=32", "validation.every=0")


def print_phases(case: str, whole: float, all_phases: list[dict[str, float] | None]) -> None:
    """A row for each phase: the median over the recoveries that told it."""
    told = [phases for phases in all_phases if phases is not None]
    for phase in told[0] if told else ():
        took = statistics.median(phases.get(phase, 0.0) for phases in told)
        print(json.dumps({
            "name": "recovery", "case": f"{case}: {phase}", "ours": round(took, 4),
            "peer": round(whole, 3), "peer_name": "the whole of it", "unit": "s",
            "ratio": round(took / whole, 3), "repeats": len(told)}), flush=True)


def print_times(case: str, times: list[float], peer: float, peer_name: str) -> None:
    """A row of the slowest of several recoveries."""
    print(json.dumps({
        "name": "recovery", "case": f"{case}: the slowest", "ours": round(max(times), 3),
        "peer": round(peer, 3), "peer_name": peer_name, "unit": "s",
        "ratio": round(peer / max(times), 2), "repeats": len(times)}), flush=True)


def print_losses(case: str, compared: int, other: int, unit: str) -> None:
    print(json.dumps({
        "name": "recovery", "case": f"{case}: losses that are not the unbroken run's to the bit",
        "ours": other, "peer": compared, "peer_name": "compared", "unit": unit,
        "ratio": 1.0 if other == 0 else 0.0, "repeats": 1}), flush=True)


def fault(job: Job, rng: random.Random,
          by_hand: bool) -> tuple[float, int, dict[str, float] | None]:
    """Kills a rank after a while: seconds until the next new step, steps done again, phases."""
    job.wait_for(last_step(job.run) + rng.randint(3, 12))
    time.sleep(rng.random() * job.options.jitter)
    rank = rng.randrange(job.options.ranks)
    pid = job.process_of(rank)
    if pid is None:
        status = job.process.poll()
        raise SystemExit(f"{job.run}: rank {rank} is not there after step {last_step(job.run)} of "
                         f"{job.steps}: the job " +
                         ("is running" if status is None else f"ended with status {status}"))
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


def lose_host(job: Driven,
              rng: random.Random) -> tuple[float, int, dict[str, float] | None]:
    """Kills the executor that has node 1, and with it its ranks."""
    job.wait_for(rng.randint(3, 20))
    time.sleep(rng.random() * job.options.jitter)
    begin = time.monotonic()
    job.job.executors["b"].kill()
    time.sleep(0.05)
    before = last_step(job.run)
    took, lowest = until_next_step(job, before, begin)
    say(f"  host lost after step {before}: next step after {took:.2f} s, went on from {lowest}")
    return took, before - lowest, recovered(job.run, begin)


def lose_driver(job: Driven, _: random.Random) -> tuple[float, int, None]:
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
    for row in metrics(run):
        if "loss" in row and first < row["step"] <= last:
            took[row["step"]] = row["step_seconds"]
    return sum(took.values())


def effective_time(job: Driven, seconds: float, every: float,
                   rng: random.Random) -> tuple[float, float, list[float],
                                                list[dict[str, float] | None]]:
    """Kills a rank every so often: the parts of the time that are in steps that count, in all and
    until the first fault; and of each recovery the seconds to the next step, and its phases."""
    job.wait_for(3)
    calm = 0.0
    begin, first = time.monotonic(), last_step(job.run)
    phases: list[dict[str, float] | None] = []
    times: list[float] = []
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
        times.append(took)
        due += every
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    wall, last = time.monotonic() - begin, last_step(job.run)
    say(f"  {len(phases)} kills in {wall:.0f} s, {last - first} steps")
    return step_seconds(job.run, first, last) / wall, calm, times, phases


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
    wrong = compared = 0
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
        compared += 1
    peer = statistics.median(took for took, _, _ in results["by hand"])
    driven = [("weft-driver", 0, None), ("weft-driver, warm spare", SPARES, None),
              ("host lost", 0, lose_host), ("driver killed", 0, lose_driver)]
    for kind, spares, lose in driven[1:3] if options.quick else driven:
        say(f"{kind}:")
        rng = random.Random(options.seed)
        results[kind] = []
        # The one spare host is used up by the loss of one.
        for repeat in range(options.host_losses if lose is lose_host else 1):
            name = f"{kind.replace(' ', '_').replace(',', '')}_{repeat}"
            job = Driven(options, data, folder / name,
                         options.steps + (SPARE_STEPS if spares else 0), spares)
            try:
                faults = options.faults if lose is None else 1
                if spares:
                    faults = min(faults, spares)
                    job.wait_for_spares(3 * spares)
                results[kind] += [fault(job, rng, False) if lose is None else lose(job, rng)
                                  for _ in range(faults)]
                job.finish()
            finally:
                job.job.close()
            wrong += differs(job, unbroken)
            compared += 1
    for kind in results:
        if kind == "by hand":
            continue
        times = sorted(took for took, _, _ in results[kind])
        ours = statistics.median(times)
        what = kind if "lost" in kind or "killed" in kind else (
            f"kill -9 of a rank of {options.ranks}, {kind}")
        print(json.dumps({
            "name": "recovery", "case": what, "ours": round(ours, 3),
            "peer": round(peer, 3), "peer_name": "ended, --resume by hand", "unit": "s",
            "ratio": round(peer / ours, 2), "repeats": len(times)}), flush=True)
        print_times(what, times, *((10, "goal") if kind == "host lost" else (ours, "its median")))
        again = statistics.mean(again for _, again, _ in results[kind])
        print(json.dumps({
            "name": "recovery", "case": f"{what}: steps done again, mean", "ours": round(again, 2),
            "peer": 1, "peer_name": "goal, at most", "unit": "steps",
            "ratio": round(1 / max(again, 1), 2), "repeats": len(times)}), flush=True)
        print_phases(what, ours, [phases for _, _, phases in results[kind]])
    print_losses("faults", compared, wrong, "runs")
    return wrong


def measure_ettr(options, data: str, folder: pathlib.Path) -> int:
    """Prints its rows; returns how many runs had other losses."""
    say(f"a rank killed every {options.fault_every:g} s, for {options.minutes:g} min:")
    job = Driven(options, data, folder / "ettr", 10**7, spares=1, more=ETTR_SETTINGS)
    try:
        ratio, calm, times, phases = effective_time(job, options.minutes * 60, options.fault_every,
                                                    random.Random(options.seed))
        job.job.call("POST", "/stop", job.job.token())
    finally:
        job.job.close()
    case = f"ETTR, a fault every {options.fault_every:g} s for {options.minutes:g} min"
    print(json.dumps({
        "name": "recovery", "case": case, "ours": round(ratio, 4), "peer": 0.97,
        "peer_name": "goal", "unit": "part", "ratio": round(ratio / 0.97, 4), "repeats": 1}),
        flush=True)
    print(json.dumps({
        "name": "recovery", "case": f"{case}: until the first fault", "ours": round(calm, 4),
        "peer": 1, "peer_name": "nothing between steps", "unit": "part", "ratio": round(calm, 4),
        "repeats": 1}), flush=True)
    whole = statistics.median(times)
    what = f"{case}, kill -9 of a rank"
    print_times(what, times, whole, "its median")
    print_phases(what, whole, phases)
    found = losses(job.run)
    say(f"the same {len(found)} steps without a fault:")
    unbroken = Driven(options, data, folder / "ettr_whole", max(found), more=ETTR_SETTINGS)
    try:
        unbroken.wait_for(max(found))
        unbroken.finish()
    finally:
        unbroken.job.close()
    wanted = losses(unbroken.run)
    other = sum(found.get(step) != loss for step, loss in wanted.items())
    print_losses(case, len(wanted), other, "steps")
    return int(other > 0 or len(found) != len(wanted))


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
    parser.add_argument("--host-losses", type=int, default=3, help="jobs that lose a host")
    parser.add_argument("--runs", type=int, default=20, help="of the part hangs; the goal's: 200")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="of a run; 0: 180 for each fault")
    parser.add_argument("--jitter", type=float, default=0.2,
                        help="seconds, at most, from the end of a step to the kill")
    parser.add_argument("--lease", type=float, default=5, help="of weft-driver, in seconds")
    parser.add_argument("--parts", default="faults", help=f"comma list of {', '.join(PARTS)}")
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
    if not set(parts) <= set(PARTS):
        parser.error(f"--parts {options.parts}: {', '.join(PARTS)} are the parts there are")
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
            wrong += measure_faults(options, data, folder)
        if "free" in parts:
            wrong += measure_free(options, data, folder)
        if "hangs" in parts:
            wrong += measure_hangs(options, data, folder)
        if options.minutes > 0 and {"faults", "ettr"} & set(parts):
            wrong += measure_ettr(options, data, folder)
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Seeded faults of a RoCE network while two hosts send each other messages over verbs.

What must hold: every message arrives, whole and right; or, where nothing was left to send on, both
sides end with an error that names what was tried, within the time that was set. Nobody hangs.
"""

import os
import random
import sys

import scene

# A queue pair gives up after (retries + 1) * 4.096 us * 2^timeout. Below 7 retries: rxe never gives
# up with 7.
TIMEOUT, RETRIES, GIVE_UP_SECONDS = 13, 3, 9
DETECTION = (RETRIES + 1) * 4.096e-6 * 2 ** TIMEOUT
SETTINGS = f"verbs.timeout={TIMEOUT} verbs.retry_count={RETRIES} verbs.stall_after=1s"
SECONDS_A_RUN = 15  # both ranks' start and end, beside what the run takes, or until it hangs
SECONDS_A_BOOT = 60
SLACK = 6.0  # seconds that an error may come late on a machine that has other work

SCRIPT = """
COUNTERS="completer_retry_err duplicate_request out_of_seq_request rcvd_seq_err retry_exceeded_err"
counters() {  # of all devices together, in that order
  local name of sum
  for name in $COUNTERS; do
    sum=0
    for of in /sys/class/infiniband/rxe*/ports/1/hw_counters/$name; do
      sum=$((sum + $(cat $of)))
    done
    printf "%s " $sum
  done
}
begin() {  # run, devices of host 0, of host 1, arguments...
  run=$1 first=$2 second=$3; shift 3
  echo "run$run counters: $(counters)"
  rm -f s.0 s.1
  rank verbs_stream 1 $second s "$@" > out1.txt 2>&1 & p1=$!
  rank verbs_stream 0 $first s "$@" > out0.txt 2>&1 & p0=$!
  for i in $(seq 200); do
    grep -q going out0.txt && grep -q going out1.txt && break
    sleep 0.1
  done
}
kill_rank() {  # without a last word
  for process in $(pidof verbs_stream); do
    case $(tr '\\0' ' ' < /proc/$process/cmdline) in
      "verbs_stream $1 "*) kill -9 $process ;;
    esac
  done
}
both_ranks() { kill -$1 $(pidof verbs_stream); }  # signal
happens() { echo "run$run fault: $(now) $*"; "$@"; }
finish() {
  wait $p0; echo "status run$run.0 $?"
  wait $p1; echo "status run$run.1 $?"
  shown run$run.0 out0.txt; shown run$run.1 out1.txt
  echo "run$run counters: $(counters)"
  calm
}
"""


class Plan:
    """One run: what is done, and what must come of it."""

    def __init__(self, seed: int, bytes_max: int = 1 << 20) -> None:
        self.seed = seed
        self.bytes_max = bytes_max  # of a message
        self.draw = random.Random(seed)
        self.kind = list(KINDS)[seed % len(KINDS)]
        self.rails = 1
        self.seconds = 3
        self.queue_pairs = self.draw.choice((2, 4))
        self.give_up = GIVE_UP_SECONDS
        self.limit = 30  # seconds without anything done: a hang
        self.outcome = "all"  # or "killed", "nothing left"
        self.dark = False  # a path dies: the time to recover counts
        self.gaps: list[int] = []  # of both ranks, ms
        self.steps = [f"sleep {self.draw.uniform(0.2, 1.0):.2f}", *KINDS[self.kind](self)]

    def script(self) -> str:
        first, second = ("rxe0", "rxe1") if self.rails == 1 else ("rxe0,rxe2", "rxe1,rxe3")
        return "\n".join([
            f"begin {self.seed} {first} {second} seed:{self.seed} seconds:{self.seconds} "
            f"limit:{self.limit} bytes:{self.bytes_max} "
            f"verbs.queue_pairs={self.queue_pairs} {SETTINGS} "
            f"verbs.give_up_after={self.give_up}s", *self.steps, "finish", ""])


def quality(arguments: str):
    def plan(plan: Plan) -> list[str]:
        return [f"happens netem {arguments}"]
    return plan


def port_down(seconds: int):
    """Of one host, with nothing else to go by."""
    def plan(plan: Plan) -> list[str]:
        plan.seconds = seconds + 2
        plan.give_up = max(GIVE_UP_SECONDS, 2 * seconds)
        plan.limit = max(plan.limit, 2 * seconds)
        port = plan.draw.choice((0, 1))
        return [f"happens port_down {port}", f"sleep {seconds}", f"happens port_up {port}"]
    return plan


def dark_spine(reroutes: bool):
    def plan(plan: Plan) -> list[str]:
        plan.dark = True
        spine = plan.draw.choice((0, 1))
        after = [f"sleep {plan.draw.uniform(0.05, 0.5):.2f}", f"happens reroute_around {spine}"]
        return [f"happens spine_dark {spine}", *(after if reroutes else []), "sleep 2"]
    return plan


def lost_rail(plan: Plan) -> list[str]:
    plan.rails, plan.dark = 2, True
    return [f"happens port_down {plan.draw.choice((2, 3))}", "sleep 2"]


def flapping_rail(plan: Plan) -> list[str]:
    plan.rails, plan.seconds = 2, 6
    steps = []
    for port in plan.draw.choices((0, 1, 2, 3), k=4):
        pause = plan.draw.uniform(0.1, 0.9)
        steps += [f"happens port_down {port}", f"sleep {pause:.2f}", f"happens port_up {port}",
                  f"sleep {1 - pause:.2f}"]
    return steps


def killed_peer(plan: Plan) -> list[str]:
    plan.outcome, plan.seconds = "killed", 30
    return ["happens kill_rank 1"]


def suspended(plan: Plan) -> list[str]:
    """Both ends, as a batch system suspends a job, for longer than they try in vain."""
    stopped = GIVE_UP_SECONDS + 3
    plan.seconds = stopped + 4
    port = plan.draw.choice((0, 1))
    return [f"happens port_down {port}", "sleep 1", "happens both_ranks STOP", f"sleep {stopped}",
            "happens both_ranks CONT", "sleep 1", f"happens port_up {port}"]


def nothing_left(plan: Plan) -> list[str]:
    plan.outcome, plan.seconds = "nothing left", 30
    return ["happens spine_dark 0", "happens spine_dark 1"]


KINDS = {
    "loss 0.1 %": quality("loss 0.1%"),
    "loss 1 %": quality("loss 1%"),
    "port down 1 s": port_down(1),
    "dark spine": dark_spine(reroutes=False),
    "reordering": quality("delay 1ms reorder 25% 50%"),
    "dark spine, rerouted": dark_spine(reroutes=True),
    "duplication": quality("duplicate 1%"),
    "rail lost": lost_rail,
    "corruption": quality("corrupt 0.2%"),
    "peer killed": killed_peer,
    "port down 5 s": port_down(5),
    "rails flap": flapping_rail,
    "nothing left": nothing_left,
    "port down, suspended": suspended,
    "port down 30 s": port_down(30),
}
SHORT = len(KINDS) - 1  # seeds from 0 on: each kind once, but for the longest


def value(lines: list[str], word: str) -> list[str] | None:
    """The words after `word` of the last line that begins with it."""
    found = [line for line in lines if line.startswith(word + " ")]
    return found[-1].removeprefix(word).split() if found else None


def judge(plan: Plan, text: str) -> tuple[str, list[str]]:
    """A line of the table, and what is wrong."""
    problems = []
    faults = [line.split() for line in scene.rows(text, f"run{plan.seed} fault")]
    cells = [f"{plan.seed:4} {plan.kind:20} {plan.queue_pairs} queue pairs {plan.rails} rail"]
    for rank in (0, 1):
        lines = scene.rows(text, f"run{plan.seed}.{rank}")
        status = value(text.splitlines(), f"status run{plan.seed}.{rank}")
        status = int(status[0]) if status else None
        broken, hang = value(lines, "broken"), value(lines, "hang")
        for word in ("wrong", "hang"):
            if value(lines, word):
                problems.append(f"rank {rank}: {word} {' '.join(value(lines, word))}")
        if plan.outcome == "killed" and rank == 1:
            continue
        if plan.outcome == "all":
            if status != 0 and hang is None:
                problems.append(f"rank {rank} ended with status {status}")
        elif broken is None or status != 3:
            problems.append(f"rank {rank} ended with status {status}, without an error of its link")
        else:
            problems += judge_error(plan, rank, broken, float(faults[-1][0]))
            cells.append(f"error after {float(broken[0]) - float(faults[-1][0]):.1f} s")
        gap = value(lines, "gap")
        if plan.outcome == "all" and gap:
            plan.gaps.append(int(gap[0]))
            cells.append(f"none came for {int(gap[0]):4} ms")
            if plan.dark:
                cells.append(f"({int(gap[0]) - DETECTION * 1e3:+.0f} of detection)")
    counts = [[int(word) for word in line.split()]
              for line in scene.rows(text, f"run{plan.seed} counters")]
    if len(counts) == 2:
        cells.append("counters " + "/".join(str(after - before) for before, after in zip(*counts)))
    return "  ".join(cells), [f"seed {plan.seed}, {plan.kind}: {one}" for one in problems]


def judge_error(plan: Plan, rank: int, broken: list[str], fault: float) -> list[str]:
    words = " ".join(broken[1:])
    late = float(broken[0]) - fault
    if plan.outcome == "killed":
        limit, named = 0.5 + SLACK, ("died", f"rank {1 - rank}")
    else:
        limit, named = plan.give_up + 2 * DETECTION + SLACK, ("likely cause", "queue pair")
    problems = [f"rank {rank}'s error says nothing of \"{name}\": {words}"
                for name in named if name not in words]
    if late > limit:
        problems.append(f"rank {rank}'s error came after {late:.1f} s; limit {limit:.1f} s")
    return problems


def boot(plans: list[Plan], out=None) -> list[str]:
    """Runs them in one machine, prints a line each to `out`; what is wrong."""
    text = SCRIPT + "".join(plan.script() for plan in plans)
    limit = SECONDS_A_BOOT + sum(SECONDS_A_RUN + plan.limit + plan.seconds for plan in plans)
    problems, printed = scene.run(text, ("verbs_stream",), limit, show_progress)
    for plan in plans:
        line, wrong = judge(plan, printed)
        print(line, file=out, flush=True)
        if wrong or os.environ.get("WEFT_ROCE_SHOW"):
            print("\n".join(row for row in printed.splitlines()
                            if row.startswith((f"run{plan.seed}.", f"run{plan.seed} "))), file=out)
        problems += wrong
    return problems


def explain(out=None) -> None:
    print(f"a queue pair gives up after {DETECTION * 1e3:.0f} ms (timeout {TIMEOUT}, "
          f"{RETRIES} retries), a link after {GIVE_UP_SECONDS} s; counters: timeouts and NAKs of "
          "requesters / duplicates / out of sequence / NAKs received / retries exceeded",
          file=out, flush=True)


def show_progress(line: str) -> None:
    if line.startswith("status run"):
        print(line, file=sys.stderr, flush=True)

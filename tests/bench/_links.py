"""Links for tests/bench/overlap.py that fit the machine: chosen by a run over links that are not shaped.

    exchanges = exchanges_of(run.spans(), "data", ranks=2)         # what the axis moved, and under which computation
    link = choose(traffic_of(exchanges), hideable(exchanges), 0.5)  # communication takes half of what could hide it
    sum(stalls(exchanges, link))                                   # what that computation cannot hide over such a link

Times are in seconds on the clock of rank 0's computation, which stands still while rank 0 waits for other ranks: two
moments of it are as far apart as there is computation between them. An exchange can be hidden by what rank 0 computes
between the call that starts it and the moment at which its result is needed. Arithmetic alone: no process, no file.
"""

import bisect
import collections

MOST_DELAY_US = 50
DELAY_PART = 0.25  # at most so much of the communication is delay, the rest is rate
LEAST_MBIT, MOST_MBIT = 10, 2000  # what tbf keeps while the cores are busy

TRACKS = {"data": "communication"}  # the others are "AXIS communication"
OUT, IN = "out", "in"

# bytes: over rank 0's link, each of `ways`; turns: messages that follow each other, each delayed.
Exchange = collections.namedtuple("Exchange", "name ways bytes turns posted needed step", defaults=[0])
Traffic = collections.namedtuple("Traffic", "bytes turns")  # of the busier way
Link = collections.namedtuple("Link", "mbit delay_us")


def load_of(name: str, size: int, ranks: int) -> tuple:
    """Ways, bytes over the link of a rank each way, and turns, of an exchange whose buffer has `size` bytes."""
    if name == "send":
        return (OUT,), size, 1
    if name == "receive":
        return (IN,), size, 1
    if name in ("dispatch", "return"):  # rows for others alone
        return (OUT, IN), size, 1
    share, turns = {"all_gather": (1, ranks - 1), "reduce_scatter": (1, ranks - 1), "all_to_all": (1, 1),
                    "all_reduce": (2, 2 * (ranks - 1))}[name]
    return (OUT, IN), share * size * (ranks - 1) / ranks, turns


class ComputeClock:
    """Seconds that a rank has not waited, at a moment of its trace."""

    def __init__(self, waits: list):
        """`waits`: (begin, end) in seconds, disjoint."""
        self._begins, self._before, self._ends = [], [], []
        waited = 0.0
        for begin, end in sorted(waits):
            self._begins.append(begin)
            self._ends.append(end)
            self._before.append(waited)
            waited += end - begin

    def at(self, moment: float) -> float:
        index = bisect.bisect_right(self._begins, moment) - 1
        if index < 0:
            return moment
        return moment - self._before[index] - (min(moment, self._ends[index]) - self._begins[index])


def exchanges_of(spans: list, axis: str, ranks: int) -> list:
    """Rank 0's exchanges along the axis, of Run.spans() in the order in which they were recorded: the wait for an
    exchange comes before the exchange itself."""
    spans = [span for span in spans if span["pid"] == 0]
    seconds = [(span, span["ts"] * 1e-6, (span["ts"] + span["dur"]) * 1e-6) for span in spans]
    clock = ComputeClock([(begin, end) for span, begin, end in seconds
                          if span["track"] == "compute" and span["name"].startswith("wait_")])
    first = min((begin for span, begin, _ in seconds if span["track"] == "compute"), default=0.0)
    found, needed = [], None
    for span, begin, _ in seconds:
        if span["track"] == f"exposed {axis}":
            needed = begin
        elif span["track"] == TRACKS.get(axis, f"{axis} communication") and needed is not None:
            ways, size, turns = load_of(span["name"], span["args"].get("bytes", 0), ranks)
            posted = clock.at(max(first, begin))
            found.append(Exchange(span["name"], ways, size, turns, posted, max(posted, clock.at(needed)),
                                  span["args"].get("step", 0)))
            needed = None
    return found


def hideable(exchanges: list) -> float:
    """Seconds of computation under which at least one exchange may be under way."""
    total, end = 0.0, float("-inf")
    for one in sorted(exchanges, key=lambda one: one.posted):
        total += max(0.0, one.needed - max(end, one.posted))
        end = max(end, one.needed)
    return total


def traffic_of(exchanges: list) -> Traffic:
    each = [Traffic(sum(one.bytes for one in exchanges if way in one.ways),
                    sum(one.turns for one in exchanges if way in one.ways)) for way in (OUT, IN)]
    return max(each)


def seconds_of(traffic: Traffic, link: Link) -> float:
    return traffic.bytes * 8 / (link.mbit * 1e6) + traffic.turns * link.delay_us * 1e-6


def choose(traffic: Traffic, compute: float, part: float, mbit: int | None = None,
           delay_us: int | None = None) -> Link:
    """The link over which `traffic` takes `part` of `compute` seconds; a rate or a delay that is given stays."""
    if traffic.bytes <= 0 or compute <= 0:
        raise ValueError(f"no link fits {traffic.bytes:.0f} bytes and {compute:.3g} s of computation that could hide "
                         "them: both must be more than 0")
    budget = part * compute
    if delay_us is None:
        delay_us = min(MOST_DELAY_US, int(DELAY_PART * budget / max(traffic.turns, 1) * 1e6))
    if mbit is None:
        left = budget - traffic.turns * delay_us * 1e-6
        wanted = traffic.bytes * 8 / left / 1e6 if left > 0 else MOST_MBIT
        mbit = round(min(max(wanted, LEAST_MBIT), MOST_MBIT))
    return Link(mbit, delay_us)


def stalls(exchanges: list, link: Link) -> list:
    """Seconds that rank 0 waits for each exchange, over a link that moves one exchange after the other each way, in the
    order of their calls, at its full rate: what the computation between calls and needs cannot hide. The trace has the
    call of an exchange that is queued behind another as late as that one's end: where a peer was slow, this is too
    much, so take the median of several steps."""
    moments = []
    for index, one in enumerate(exchanges):
        moments.append((one.posted, 1, index))
        moments.append((one.needed, 0 if one.needed > one.posted else 2, index))
    late, free, done = 0.0, dict.fromkeys((OUT, IN), float("-inf")), {}
    found = [0.0] * len(exchanges)
    for moment, kind, index in sorted(moments):
        one, now = exchanges[index], moment + late
        if kind == 1:
            end = max(now, *(free[way] for way in one.ways)) + one.bytes * 8 / (link.mbit * 1e6)
            free.update(dict.fromkeys(one.ways, end))
            done[index] = end + one.turns * link.delay_us * 1e-6
        elif done[index] > now:
            found[index] = done[index] - now
            late += found[index]
    return found


# ---- pipelines, whose messages are under way between the passes of two ranks

def passes_of(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> list:
    """(kind, chunk, micro-batch) in the order of topology/job/pipeline_schedule.h: gpipe, 1f1b, eager-1f1b,
    interleaved."""
    total = micro_batches * chunks

    def kth(kind: str, k: int) -> tuple:
        chunk = k % (stages * chunks) // stages
        micro = k // (stages * chunks) * stages + k % stages if chunks > 1 else k
        return kind, chunk if kind == "forward" or chunks == 1 else chunks - 1 - chunk, micro

    behind = stages - 1 - stage
    wanted = {"gpipe": total, "1f1b": behind}.get(schedule, 2 * behind + (chunks - 1) * stages)
    warm_up = min(total, wanted)
    order = [kth("forward", k) for k in range(warm_up)]
    for k in range(total):
        if k + warm_up < total:
            order.append(kth("forward", k + warm_up))
        order.append(kth("backward", k))
    return order


def waits_of_first_stage(schedule: str, stages: int, micro_batches: int, chunks: int, seconds: dict,
                         message: float, delay: float = 0.0) -> float:
    """Seconds that stage 0 waits for its inputs in a step, passes taking seconds["forward"] and seconds["backward"],
    where every message sets out when its pass ends and takes `message` seconds of the way between two stages, one
    after the other, and `delay` more."""
    depth = stages * chunks
    lists = [passes_of(schedule, stage, stages, micro_batches, chunks) for stage in range(stages)]
    there, free = {}, collections.defaultdict(float)  # inputs by (kind, depth, micro-batch); ways by (from, to)
    clocks, at, waited = [0.0] * stages, [0] * stages, 0.0
    while any(at[stage] < len(lists[stage]) for stage in range(stages)):
        ready = []
        for stage in range(stages):
            if at[stage] == len(lists[stage]):
                continue
            kind, chunk, micro = lists[stage][at[stage]]
            here = chunk * stages + stage
            ends = here == 0 if kind == "forward" else here == depth - 1
            arrival = 0.0 if ends else there.get((kind, here, micro))
            if arrival is not None:
                ready.append((max(clocks[stage], arrival), stage))
        begin, stage = min(ready)  # the earliest, so that messages of a way are in the order of time
        kind, chunk, micro = lists[stage][at[stage]]
        here = chunk * stages + stage
        waited += begin - clocks[stage] if stage == 0 else 0.0
        clocks[stage] = end = begin + seconds[kind]
        at[stage] += 1
        target = here + (1 if kind == "forward" else -1)
        if 0 <= target < depth:
            way = (stage, target % stages)
            if way[0] != way[1]:
                free[way] = end = max(end, free[way]) + message
                end += delay
            there[(kind, target, micro)] = end
    return waited

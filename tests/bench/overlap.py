"""Communication hidden under computation, by axis, over shaped links; the bubble of each pipeline schedule.

Ranks train with weft-train under weft-run, each on a host of its own (network namespaces, links shaped by tbf), three
runs a turn: links as fast as the machine makes them, links shaped with this axis' overlap switched off
(parallel.overlap, parallel.receives_ahead), links shaped with it. Shaped links also have a delay where the kernel has
netem; where it does not, standard error says so, and each row's case. `peer` is all communication of a step: what rank
0 waits for it without overlap. `ours` is what it waits with. The pipeline's bubble is part of neither (bubble_seconds
of metrics.jsonl); what rank 0 waits on fast links, for unequal ranks, is taken off both. `ratio` is how much of the
communication there is for each second exposed; the case says the exposed share beside its goal: 1/10, and for data
parallelism 1/(2 vpp), with vpp chunks of the model a rank: 1/2 on two ranks, and 1/4 on two replicas of an interleaved
pipeline of two stages. The latter has four ranks: on fewer cores they wait for cores as well, on fast links as on
shaped ones, and the computation of one rank may hide what another one waits for. Computation is real, one thread a
rank.

Links are chosen by the machine (_links.py), from the trace of the first turn's run on fast links: what the axis moves a
step, and the computation that could hide it, which is what rank 0 computes between the call of an exchange and the
moment that needs its result; for a pipeline, a forward pass for each message that stage 0 receives. The rate is such
that all communication takes --part of that computation. --rate and --delay fix both instead. The row has what was
chosen, and `no_compute_left_seconds`: what even such a link, used to its full rate from every call on, would expose,
because no computation is left between call and need. It is part of `ours`; the goal is of all communication. The pipelines' model
has no tied embedding, and once has one: its gradient's exchange between the first and the last stage is then part of
what is exposed.

The rows "bubble" are measured in one host's memory: `ours` is the part of the step's passes, from the first to the
last on any stage, in which a stage ran none; `peer` is theory, with the mean durations that the run had.
`of_the_schedule` is bubble_share of metrics.jsonl: what the schedule idles with the very durations of each step's
passes and free messages; the rest of `ours` is messages and what runs between passes. Needs root.
"""

import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import _links
import _shaped
from _bench import BIN, say
from _shaped import Hosts, Run, netns
from train import make_data

WARM_UP = 3
VOCABULARY = 512  # small: the embedding is as small a part of the model as in large ones
COMMON = ["train.precision=fp32", "train.threads=1", "train.peak_tflops=1", "validation.every=0",
          "validation.batches=1", "sample.tokens=0", "checkpoint.every=0"]
# bare: what no computation is left for, by the order of a step.
Case = collections.namedtuple("Case", "axis goal off bare settings hosts", defaults=[2])
AXIS_RANKS = 2  # of each case's axis
GPT = ["model.layers=4", "model.hidden=256", "model.heads=4"]
MICRO_BATCHES_OF_PIPELINE = 32
TIED_PIPELINE = [*GPT, "model.sequence=128", f"train.global_batch={MICRO_BATCHES_OF_PIPELINE}", "train.micro_batch=1",
                 "parallel.pipeline=2", "parallel.stages=even"]
# A tied embedding's gradient is whole on the first stage when the step's last pass ends: nothing hides its exchange.
PIPELINE = [*TIED_PIPELINE, "model.tied=false"]
CASES = {
    "data": Case("data", 0.5, "parallel.overlap=none", "the last reduce-scatter and the first layers' all-gathers",
                 [*GPT, "model.layers=6", "model.sequence=256", "train.global_batch=16",
                  "parallel.bucket_bytes=1MiB"]),
    "data, 2 chunks a stage": Case("data", 0.25, "parallel.overlap=none",
                                   "what the first passes of the first micro-batch and the last ones of the last "
                                   "micro-batch are too short for",
                                   [*GPT, "model.layers=8", "model.sequence=256", "train.global_batch=16",
                                    "train.micro_batch=1", "parallel.pipeline=2", "parallel.schedule=interleaved",
                                    "parallel.chunks=2", "parallel.stages=even", "parallel.bucket_bytes=1MiB"],
                                   hosts=4),
    "tensor": Case("tensor", 0.1, "parallel.overlap=none",
                   "the first piece of a gather, the last of a reduce-scatter, the embedding's exchange",
                   # Layers enough that the exchanges of embedding and head, four of 64, are few beside theirs.
                   ["model.layers=12", "model.hidden=768", "model.heads=6", "model.sequence=256",
                    "model.block=parallel", "train.global_batch=4", "parallel.tensor=2",
                    "parallel.tensor_chunks=16"]),
    "context": Case("context", 0.1, "parallel.overlap=none", "hops longer than their part of the rank's own keys",
                    ["model.layers=2", "model.hidden=128", "model.heads=2", "model.sequence=8192",
                     "train.global_batch=1", "parallel.context=2"]),
    # 16 heads a rank, in pieces of 1 and 2. Gradients, which share the link, are exchanged behind the last pass.
    "context, ulysses": Case("context", 0.1, "parallel.overlap=data",
                             "the first piece in and the last piece out, of each pass",
                             ["model.layers=2", "model.hidden=512", "model.heads=32", "model.sequence=2048",
                              "train.global_batch=1", "parallel.context=2", "parallel.context_method=ulysses",
                              "parallel.zero=0", "parallel.bucket_bytes=64MiB"]),
    "pipeline, gpipe": Case("pipeline", 0.1, "parallel.receives_ahead=0", "the first message each way",
                            [*PIPELINE, "parallel.schedule=gpipe"]),
    "pipeline, 1f1b": Case("pipeline", 0.1, "parallel.receives_ahead=0",
                           "a message of every micro-batch: the loop of two micro-batches through both stages has "
                           "no slack",
                           [*PIPELINE, "parallel.schedule=1f1b"]),
    "pipeline, eager-1f1b": Case("pipeline", 0.1, "parallel.receives_ahead=0",
                                 "the messages of the passes in which the pipeline fills and empties",
                                 [*PIPELINE, "parallel.schedule=eager-1f1b"]),
    "pipeline, eager-1f1b, tied": Case("pipeline", 0.1, "parallel.receives_ahead=0",
                                       "the messages of the passes in which the pipeline fills and empties, and the "
                                       "tied embedding's gradient",
                                       [*TIED_PIPELINE, "parallel.schedule=eager-1f1b"]),
    "pipeline, interleaved": Case("pipeline", 0.1, "parallel.receives_ahead=0",
                                  "the messages of the passes in which the pipeline fills and empties",
                                  [*PIPELINE, "parallel.schedule=interleaved"]),
    "expert": Case("expert", 0.1, "parallel.overlap=none",
                   "the counts, and what of the first dispatch and the last return is longer than a rank's own rows",
                   ["model.style=mixtral", "model.layers=2", "model.hidden=256", "model.heads=4", "model.ffn=2048",
                    "model.experts=8", "model.experts_per_token=1", "model.sequence=256", "train.global_batch=8",
                    "parallel.expert=2"]),
}
SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-v")
STAGES, MICRO_BATCHES = 2, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=13, help=f"of each run; the first {WARM_UP} do not count")
    parser.add_argument("--quick", action="store_true", help="one turn of 7 steps each")
    parser.add_argument("--part", type=float, default=0.5,
                        help="of the computation that could hide an axis' communication, that it takes: sets the rate")
    parser.add_argument("--rate", type=int, metavar="MBIT", help="of each shaped link (default: by --part)")
    parser.add_argument("--delay", type=int, metavar="US",
                        help="of each shaped link, one way, where there is netem (default: "
                             f"{_links.MOST_DELAY_US}, less where turns would take more than "
                             f"{_links.DELAY_PART} of the communication)")
    parser.add_argument("--case", choices=[*CASES, "bubble"], action="append")
    options = parser.parse_args()
    if not 0 < options.part <= 1:
        parser.error(f"--part {options.part}: above 0, at most 1")
    if options.rate is not None and options.rate < 1:
        parser.error(f"--rate {options.rate}: at least 1 Mbit/s")
    if options.delay is not None and options.delay < 0:
        parser.error(f"--delay {options.delay}: at least 0 us")
    if options.quick:
        options.repeats, options.steps = 1, 7
    if options.steps < WARM_UP + 2:
        parser.error(f"--steps {options.steps}: at least {WARM_UP + 2}, of which {WARM_UP} do not count")
    netns.enter()
    netns.require_tbf()
    netns.call(["ip", "link", "set", "lo", "up"])  # for the rows "bubble", which need no hosts
    if options.delay != 0 and (reason := netns.why_no_netem()):
        say(f"links have no delay, since this kernel has no netem: {reason}")
        options.delay = 0
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        make_data(scratch, VOCABULARY)
        common = [*COMMON, f"data.prefix={scratch / 'data'}", f"train.steps={options.steps}"]
        for name, case in CASES.items():
            if not options.case or name in options.case:
                with Hosts(case.hosts) as hosts:
                    print(json.dumps(overlap(hosts, scratch, name, case, common, options)), flush=True)
        if not options.case or "bubble" in options.case:
            for schedule in SCHEDULES:
                print(json.dumps(bubble(scratch, schedule, common, options)), flush=True)


# seconds: of computation that could hide the traffic; bare(link): seconds that none is left for.
Step = collections.namedtuple("Step", "traffic seconds bare")


def step_of(run: Run, case: Case) -> Step:
    """What a step's communication is, by a run over fast links. Spans of the last step have the run's validation."""
    last = run.rows[-1]["step"]
    spans, steps = [span for span in run.spans() if span["args"].get("step", 0) < last], len(run.rows) - 1
    found = _links.exchanges_of(spans, case.axis, AXIS_RANKS)
    if case.axis != "pipeline":
        traffic = _links.Traffic(*(value / steps for value in _links.traffic_of(found)))

        def stalled(link: _links.Link) -> float:
            by_step = dict.fromkeys((one.step for one in found), 0.0)
            for one, seconds in zip(found, _links.stalls(found, link)):
                by_step[one.step] += seconds
            return statistics.median(by_step.values())

        return Step(traffic, _links.hideable(found) / steps, stalled)
    received = [one for one in found if one.name == "receive"]
    traffic = _links.Traffic(sum(one.bytes for one in received) / steps, len(received) / steps)
    tied = sum(one.bytes for one in found if one.name == "all_reduce") / steps
    seconds = {kind: statistics.mean(span["dur"] * 1e-6 for span in spans if span["name"] == kind)
               for kind in ("forward", "backward")}
    schedule = next(setting.split("=")[1] for setting in case.settings if setting.startswith("parallel.schedule="))

    def bare(link: _links.Link) -> float:
        message = traffic.bytes / traffic.turns * 8 / (link.mbit * 1e6)
        with_messages, without = (
            _links.waits_of_first_stage(schedule, AXIS_RANKS, MICRO_BATCHES_OF_PIPELINE,
                                        2 if schedule == "interleaved" else 1, seconds, *each)
            for each in ((message, link.delay_us * 1e-6), (0.0, 0.0)))
        return with_messages - without + tied * 8 / (link.mbit * 1e6)

    return Step(traffic, traffic.turns * min(seconds.values()), bare)


def overlap(hosts: Hosts, scratch: pathlib.Path, name: str, case: Case, common: list, options) -> dict:
    waits, seconds = collections.defaultdict(list), collections.defaultdict(list)
    step, link = None, None

    def train(what: str, turn: int, shape: _links.Link | None, more: list) -> Run:
        hosts.shape(shape and shape.mbit)
        hosts.delay(shape.delay_us if shape else 0)
        run = hosts.train(scratch / f"{name.replace(', ', '-').replace(' ', '-')}-{what}-{turn}",
                          [*common, *case.settings, *more], WARM_UP)
        waits[what].append(run.median(f"exposed_{case.axis}_seconds"))
        seconds[what].append(run.median("step_seconds"))
        return run

    for turn in range(options.repeats):
        traced = link is None
        fast = train("fast", turn, None, [f"log.trace_steps={options.steps if traced else 0}"])
        if traced:
            step = step_of(fast, case)
            link = _links.choose(step.traffic, step.seconds, options.part, options.rate, options.delay)
            say(f"overlap, {name}: {step.traffic.bytes / 1e6:.2f} MB in {step.traffic.turns:.0f} turns a step, "
                f"{step.seconds:.3f} s of computation that could hide them: {link.mbit} Mbit/s, {link.delay_us} us")
        train("off", turn, link, [case.off, "log.trace_steps=0"])
        train("on", turn, link, ["log.trace_steps=0"])
        say(f"overlap turn {turn + 1}, {name}: waits on fast links {waits['fast'][-1]:.3f} s, shaped "
            f"{waits['off'][-1]:.3f} s, with overlap {waits['on'][-1]:.3f} s a step of {seconds['on'][-1]:.3f} s")
    fast, off, on = (statistics.median(waits[what]) for what in ("fast", "off", "on"))
    total, exposed = max(off - fast, 1e-9), max(on - fast, 1e-9)
    bare = step.bare(link)
    words = f"{link.mbit} Mbit/s, " + (f"{link.delay_us} us" if link.delay_us else "no delay")
    return {"name": "overlap",
            "case": f"{name}, {words}: exposed {exposed / total:.2f} of it, goal {case.goal}; no computation is left "
                    f"for {bare / total:.2f}: {case.bare}",
            "ours": exposed, "peer": total, "peer_name": "all communication", "unit": "s a step",
            "ratio": total / exposed, "repeats": options.repeats, "exposed_share": exposed / total,
            "goal": case.goal, "mbit": link.mbit, "delay_us": link.delay_us,
            "bytes_per_step": step.traffic.bytes, "turns_per_step": step.traffic.turns,
            "communication_by_link_seconds": _links.seconds_of(step.traffic, link),
            "could_hide_seconds": step.seconds, "no_compute_left_seconds": bare,
            "no_compute_left_share": bare / total, "no_compute_left": case.bare,
            "step_seconds": {what: statistics.median(values) for what, values in seconds.items()}}


def bubble(scratch: pathlib.Path, schedule: str, common: list, options) -> dict:
    measured, theory, of_the_schedule = [], [], []
    settings = [*common, "model.layers=8", "model.hidden=384", "model.heads=6", "model.sequence=256",
                f"train.global_batch={MICRO_BATCHES}", "train.micro_batch=1", f"parallel.pipeline={STAGES}",
                "parallel.stages=even", f"parallel.schedule={schedule}", "log.trace_steps=100"]
    for turn in range(options.repeats):
        folder = scratch / f"bubble-{schedule}-{turn}"
        command = [BIN / "weft-run", "-n", str(STAGES), "--", BIN / "weft-train", "--run-dir", folder]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=_shaped.environment())
        if done.returncode != 0:
            sys.exit(f"{schedule} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        run = Run(folder, WARM_UP)
        found = bubbles(run, schedule)
        of_the_schedule.append(run.median("bubble_share"))
        measured.append(statistics.median(value for value, _ in found))
        theory.append(statistics.median(value for _, value in found))
        say(f"bubble turn {turn + 1}, {schedule}: {measured[-1]:.3f}, of the schedule {of_the_schedule[-1]:.3f}, "
            f"theory {theory[-1]:.3f}")
    ours, peer = statistics.median(measured), statistics.median(theory)
    return {"name": "overlap", "case": f"bubble of {schedule}, {STAGES} stages x {MICRO_BATCHES} micro-batches",
            "ours": ours, "peer": peer, "peer_name": "theory", "unit": "share", "ratio": peer / ours,
            "repeats": options.repeats, "of_the_schedule": statistics.median(of_the_schedule)}


PASSES = {"forward": "f", "backward": "b", "weight gradients": "w"}


def bubbles(run: Run, schedule: str) -> list[tuple[float, float]]:
    """Of each step: the bubble that it had, and that of theory with its mean durations of passes."""
    steps = collections.defaultdict(list)
    for span in run.spans():
        if span["name"] in PASSES:
            steps[span["args"]["step"]].append(span)
    found = []
    for spans in steps.values():
        begin = min(span["ts"] for span in spans)
        end = max(span["ts"] + span["dur"] for span in spans)
        busy = sum(span["dur"] for span in spans)
        mean = dict.fromkeys("fbw", 0.0)
        for letter in mean:
            chosen = [span["dur"] for span in spans if PASSES[span["name"]] == letter]
            mean[letter] = statistics.mean(chosen) if chosen else 0.0
        f, b, w = mean.values()
        lost = {"zb-h1": (STAGES - 1) * (f + b - w), "zb-v": (STAGES - 1) * f}.get(
            schedule, (STAGES - 1) * (f + b))
        found.append((1 - busy / STAGES / (end - begin), lost / (lost + busy / STAGES)))
    return found


if __name__ == "__main__":
    main()

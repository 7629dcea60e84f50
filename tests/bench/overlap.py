"""Communication hidden under computation, by axis, over shaped links; the bubble of each pipeline schedule.

Ranks train with weft-train under weft-run, each on a host of its own (network namespaces, links shaped by tbf), three
runs a turn: links as fast as the machine makes them, links shaped with this axis' overlap switched off
(parallel.overlap, parallel.receives_ahead), links shaped with it. Shaped links also have a delay (--delay) where the
kernel has netem; where it does not, standard error says so, and each row's case. `peer` is all communication of a
step: what rank 0 waits for it without overlap. `ours` is what it waits with. The pipeline's bubble is part of neither
(bubble_seconds of metrics.jsonl); what rank 0 waits on fast links, for unequal ranks, is taken off both. `ratio` is how
much of the communication there is for each second exposed; the case says the exposed share beside its goal: 1/10, and
for data parallelism 1/(2 vpp), with vpp chunks of the model a rank: 1/2 on two ranks, and 1/4 on two replicas of an
interleaved pipeline of two stages. The latter has four ranks: on fewer cores they wait for cores as well, on fast links
as on shaped ones, and the computation of one rank may hide what another one waits for. Computation is real, one thread
a rank.

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

import _shaped
from _bench import BIN, say
from _shaped import Hosts, Run, netns
from train import make_data

WARM_UP = 3
VOCABULARY = 512  # small: the embedding is as small a part of the model as in large ones
COMMON = ["train.precision=fp32", "train.threads=1", "train.peak_tflops=1", "validation.every=0",
          "validation.batches=1", "sample.tokens=0", "checkpoint.every=0"]
# Mbit/s: slow enough that communication is a good part of the step, fast enough that computation could hide it, and
# what tbf keeps on two busy cores.
Case = collections.namedtuple("Case", "axis mbit goal off settings hosts", defaults=[2])
GPT = ["model.layers=4", "model.hidden=256", "model.heads=4"]
PIPELINE = [*GPT, "model.sequence=128", "train.global_batch=32", "train.micro_batch=1", "parallel.pipeline=2",
            "parallel.stages=even"]
CASES = {
    "data": Case("data", 300, 0.5, "parallel.overlap=none",
                 [*GPT, "model.layers=6", "model.sequence=256", "train.global_batch=16",
                  "parallel.bucket_bytes=1MiB"]),
    "data, 2 chunks a stage": Case("data", 300, 0.25, "parallel.overlap=none",
                                   [*GPT, "model.layers=8", "model.sequence=256", "train.global_batch=16",
                                    "train.micro_batch=1", "parallel.pipeline=2", "parallel.schedule=interleaved",
                                    "parallel.chunks=2", "parallel.stages=even", "parallel.bucket_bytes=1MiB"],
                                   hosts=4),
    "tensor": Case("tensor", 500, 0.1, "parallel.overlap=none",
                   ["model.layers=4", "model.hidden=1024", "model.heads=8", "model.sequence=256",
                    "model.block=parallel", "train.global_batch=4", "parallel.tensor=2",
                    "parallel.tensor_chunks=16"]),
    "context": Case("context", 500, 0.1, "parallel.overlap=none",
                    ["model.layers=2", "model.hidden=128", "model.heads=2", "model.sequence=8192",
                     "train.global_batch=1", "parallel.context=2"]),
    "pipeline, gpipe": Case("pipeline", 400, 0.1, "parallel.receives_ahead=0",
                            [*PIPELINE, "parallel.schedule=gpipe"]),
    "pipeline, 1f1b": Case("pipeline", 400, 0.1, "parallel.receives_ahead=0",
                           [*PIPELINE, "parallel.schedule=1f1b"]),
    "pipeline, interleaved": Case("pipeline", 400, 0.1, "parallel.receives_ahead=0",
                                  [*PIPELINE, "parallel.schedule=interleaved"]),
    "expert": Case("expert", 300, 0.1, "parallel.overlap=none",
                   ["model.style=mixtral", "model.layers=2", "model.hidden=256", "model.heads=4", "model.ffn=2048",
                    "model.experts=8", "model.experts_per_token=1", "model.sequence=256", "train.global_batch=8",
                    "parallel.expert=2"]),
}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
STAGES, MICRO_BATCHES = 2, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=13, help=f"of each run; the first {WARM_UP} do not count")
    parser.add_argument("--quick", action="store_true", help="one turn of 7 steps each")
    parser.add_argument("--delay", type=int, default=50, help="us of each shaped link, one way, where there is netem")
    parser.add_argument("--case", choices=[*CASES, "bubble"], action="append")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.steps = 1, 7
    netns.enter()
    netns.require_tbf()
    netns.call(["ip", "link", "set", "lo", "up"])  # for the rows "bubble", which need no hosts
    if options.delay and (reason := netns.why_no_netem()):
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


def overlap(hosts: Hosts, scratch: pathlib.Path, name: str, case: Case, common: list, options) -> dict:
    waits, seconds = collections.defaultdict(list), collections.defaultdict(list)
    for turn in range(options.repeats):
        for what, mbit, more in (("fast", None, []), ("off", case.mbit, [case.off]), ("on", case.mbit, [])):
            hosts.shape(mbit)
            hosts.delay(options.delay if mbit else 0)
            run = hosts.train(scratch / f"{name.replace(', ', '-').replace(' ', '-')}-{what}-{turn}",
                              [*common, *case.settings, *more, "log.trace_steps=0"], WARM_UP)
            waits[what].append(run.median(f"exposed_{case.axis}_seconds"))
            seconds[what].append(run.median("step_seconds"))
        say(f"overlap turn {turn + 1}, {name}: waits on fast links {waits['fast'][-1]:.3f} s, shaped {waits['off'][-1]:.3f} s, "
            f"with overlap {waits['on'][-1]:.3f} s a step of {seconds['on'][-1]:.3f} s")
    fast, off, on = (statistics.median(waits[what]) for what in ("fast", "off", "on"))
    total, exposed = max(off - fast, 1e-9), max(on - fast, 1e-9)
    link = f"{case.mbit} Mbit/s, " + (f"{options.delay} us" if options.delay else "no delay")
    return {"name": "overlap", "case": f"{name}, {link}: exposed {exposed / total:.2f} of it, goal {case.goal}",
            "ours": exposed, "peer": total, "peer_name": "all communication", "unit": "s a step",
            "ratio": total / exposed, "repeats": options.repeats, "exposed_share": exposed / total,
            "delay_us": options.delay,
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

"""What a layout costs: tokens/s of weft-train cut over ranks against one process with as many threads as cores.

The same GPT (6 layers, 384 wide, 256 tokens, vocabulary 4096) and global batch in every layout, runs in turns; for
the expert axis the same with 8 experts, 2 a token, and a process of its own beside it. Of each the first steps are left
out, the median step counts, and the row is the median over the turns. The rows say how much of the step the first rank
waited, by axis, which part of the time of all stages a pipeline's schedule left idle (`bubble_share`: where every stage
has a core, about what the ratio lacks of 1 by that alone), and where the first rank's milliseconds went by kind of work
(`work_*_seconds` of metrics.jsonl) beside those of the one process. The row "timers" has one layout with timers on (the
trace's spans, and the records that weft-top reads), off and on again, with four times as many steps: what measuring
costs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from _bench import BIN
from train import make_data

WARM_UP = 4
AXES = ("data", "tensor", "context", "expert", "pipeline")
GPT, EXPERTS = [], ["model.experts=8", "model.experts_per_token=2", "model.ffn=768"]
LAYOUTS = {  # ranks, settings, model
    "dp2": (2, [], GPT),
    "tp2": (2, ["parallel.tensor=2"], GPT),
    "cp2": (2, ["parallel.context=2"], GPT),
    "ep2": (2, ["parallel.expert=2"], EXPERTS),
    "pp2 1f1b": (2, ["parallel.pipeline=2"], GPT),
    "pp2 zb-h1": (2, ["parallel.pipeline=2", "parallel.schedule=zb-h1"], GPT),
    "pp2 zb-v": (2, ["parallel.pipeline=2", "parallel.schedule=zb-v"], GPT),
    "dp2 zero-3": (2, ["parallel.zero=3"], GPT),
    "tp2 pp2 dp2": (8, ["parallel.tensor=2", "parallel.pipeline=2"], GPT),
}
TIMED = "dp2"  # the layout of the row "timers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14, help="of each run; the first 4 do not count")
    parser.add_argument("--layout", choices=list(LAYOUTS), action="append")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="more settings of the layouts, not of the one process beside them")
    parser.add_argument("--timers-only", action="store_true")
    options = parser.parse_args()
    layouts = options.layout or list(LAYOUTS)
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        make_data(scratch)
        if options.timers_only:
            print(json.dumps(timers(scratch, options)), flush=True)
            return
        models = [model for model in (GPT, EXPERTS) if any(LAYOUTS[layout][2] is model for layout in layouts)]
        one, cut = {id(model): [] for model in models}, {layout: [] for layout in layouts}
        for turn in range(options.repeats):
            for number, model in enumerate(models):
                one[id(model)].append(run(scratch, f"one-{number}-{turn}", 1, model, options.steps))
            for layout in layouts:
                ranks, settings, model = LAYOUTS[layout]
                cut[layout].append(run(scratch, f"{layout.replace(' ', '-')}-{turn}", ranks,
                                       [*model, *settings, *options.set], options.steps))
                print(f"splits turn {turn + 1}, {layout}: {cut[layout][-1]['tokens_per_second']:.0f}, "
                      f"one process {one[id(model)][-1]['tokens_per_second']:.0f} tokens/s",
                      file=sys.stderr, flush=True)
        for layout in layouts:
            ours = statistics.median(row["tokens_per_second"] for row in cut[layout])
            whole = one[id(LAYOUTS[layout][2])]
            peer = statistics.median(row["tokens_per_second"] for row in whole)
            waits = {axis: round(statistics.median(row["exposed"][axis] for row in cut[layout]), 3)
                     for axis in AXES}
            print(json.dumps({"name": "splits", "case": layout, "ours": ours, "peer": peer,
                              "peer_name": "one process, all cores", "unit": "tokens/s",
                              "ratio": ours / peer, "repeats": options.repeats,
                              "exposed_share": waits,
                              "bubble_share": round(statistics.median(row["bubble_share"] for row in cut[layout]), 3),
                              "work_ms": work(cut[layout]), "peer_work_ms": work(whole)}),
                  flush=True)
        if TIMED in layouts:
            print(json.dumps(timers(scratch, options)), flush=True)


def work(runs: list[dict]) -> dict:
    """Milliseconds of a step by kind of work: the medians over the runs."""
    return {kind: round(1e3 * statistics.median(run["work"][kind] for run in runs), 1) for kind in runs[0]["work"]}


def timers(scratch: pathlib.Path, options: argparse.Namespace) -> dict:
    """Tokens/s with timers over tokens/s without, in turns on, off, on. Either of trace and records keeps them on."""
    ranks, settings, _ = LAYOUTS[TIMED]
    rates = {"on": [], "off": [], "on again": []}
    for turn in range(options.repeats):
        for when, spans in (("on", 50), ("off", 0), ("on again", 50)):
            rates[when].append(run(scratch, f"timers-{when.replace(' ', '-')}-{turn}", ranks,
                                   [*settings, f"log.trace_steps={spans}"], 4 * options.steps,
                                   {"WEFT_RECORDS_ENABLED": str(spans > 0).lower()})["tokens_per_second"])
            print(f"splits turn {turn + 1}, timers {when}: {rates[when][-1]:.0f} tokens/s",
                  file=sys.stderr, flush=True)
    medians = {when: statistics.median(values) for when, values in rates.items()}
    ours, peer = (medians["on"] + medians["on again"]) / 2, medians["off"]
    return {"name": "splits", "case": f"timers on, off, on: {TIMED}", "ours": ours, "peer": peer,
            "peer_name": "without timers", "unit": "tokens/s", "ratio": ours / peer,
            "repeats": options.repeats,
            "tokens_per_second": {when: round(value) for when, value in medians.items()}}


def run(scratch: pathlib.Path, name: str, ranks: int, settings: list[str], steps: int,
        more: dict | None = None) -> dict:
    """Medians over the steps that count: tokens/s, the share of a step that rank 0 waited, by axis, and its seconds by
    kind of work.

    `more`: environment.
    """
    folder = scratch / name
    command = [BIN / "weft-train", "--run-dir", folder, "--set", f"data.prefix={scratch / 'data'}"]
    for setting in ["model.layers=6", "model.hidden=384", "model.heads=6", "model.sequence=256",
                    "train.global_batch=16", "train.precision=fp32", f"train.steps={steps}",
                    "validation.batches=1", "sample.tokens=0", *settings]:
        command += ["--set", setting]
    if ranks > 1:
        command = [BIN / "weft-run", "-n", str(ranks), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, **(more or {})})
    if done.returncode != 0:
        sys.exit(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["step"] > WARM_UP]
    kinds = [key for key in rows[0] if key.startswith("work_")] + ["bubble_seconds"]
    return {"tokens_per_second": statistics.median(row["tokens_per_second"] for row in rows),
            "exposed": {axis: statistics.median(row[f"exposed_{axis}_seconds"] / row["step_seconds"] for row in rows)
                        for axis in AXES},
            "bubble_share": statistics.median(row.get("bubble_share") or 0 for row in rows),
            "work": {key.removeprefix("work_").removesuffix("_seconds"): statistics.median(row[key] for row in rows)
                     for key in kinds}}


if __name__ == "__main__":
    main()

"""MegaScale's ablation (Table 3 of arXiv 2402.15627), its steps switched on one after the other with weft-train.

Two ranks, each on a host of its own over shaped links (network namespaces), in three layouts, tensor, pipeline (interleaved) and data
parallel, because overlap needs a core for each rank. `ours` is tokens/s over all three (the same tokens in each), with
this step and all before it; `peer` is the step before; `ratio` is the gain, and the case has MegaScale's gain in MFU
on 256 GPUs beside it. Computation is real, one thread a rank. "efficient operators": products and attention by
whichever of LibTorch and our own loops a trial at the start found faster (train.gemm, train.attention = auto), and
before that by LibTorch (aten). Our norms, losses and optimizers are always on. Needs root.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from _shaped import Hosts, netns
from train import make_data

WARM_UP = 2
VOCABULARY = 512
BATCH, SEQUENCE = 4, 512
MODEL = ["model.layers=4", "model.hidden=512", "model.heads=8", f"model.sequence={SEQUENCE}", "train.precision=fp32",
         "train.micro_batch=1", "train.threads=1", "train.peak_tflops=1", "validation.every=0", "validation.batches=1",
         "sample.tokens=0", "checkpoint.every=0", "log.trace_steps=0"]
LAYOUTS = {  # Mbit/s, settings
    "tensor": (500, ["parallel.tensor=2"]),
    "pipeline": (200, ["parallel.pipeline=2", "parallel.schedule=interleaved"]),
    "data": (500, ["parallel.bucket_bytes=1MiB"]),
}
# What a step changes, and MFU in the paper after it. A later setting of the same key counts.
STEPS = [
    ("baseline", ["parallel.overlap=none", "parallel.receives_ahead=0", "data.prefetch=0", "train.gemm=aten", "train.attention=aten",
                  f"train.global_batch={BATCH}"], 47.7),
    ("parallel block", ["model.block=parallel"], 52.3),
    ("sliding window", [f"model.window={SEQUENCE // 4}"], 53.3),
    ("tensor overlap", ["parallel.overlap=tensor", "parallel.tensor_chunks=8"], 55.5),
    ("pipeline overlap", ["parallel.receives_ahead=2"], 58.0),
    ("data overlap", ["parallel.overlap=all"], 59.5),
    ("efficient operators", ["train.gemm=auto", "train.attention=auto"], 61.2),
    ("batches read ahead", ["data.prefetch=2"], 62.3),
    ("LAMB, batch x 3", ["optimizer.name=lamb", f"train.global_batch={3 * BATCH}"], 65.3),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help=f"of each run; the first {WARM_UP} do not count")
    parser.add_argument("--quick", action="store_true", help="one turn of 6 steps each")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.steps = 1, 6
    netns.enter()
    netns.require_tbf()
    rates = {name: {layout: [] for layout in LAYOUTS} for name, _, _ in STEPS}
    with tempfile.TemporaryDirectory() as folder, Hosts(2) as hosts:
        scratch = pathlib.Path(folder)
        make_data(scratch, VOCABULARY)
        for turn in range(options.repeats):
            for layout in LAYOUTS:
                for number in range(len(STEPS)):
                    rate = measure(hosts, scratch, layout, number, turn, options.steps)
                    rates[STEPS[number][0]][layout].append(rate)
                    print(f"ablation turn {turn + 1}, {layout}, {STEPS[number][0]}: {rate:.0f} tokens/s",
                          file=sys.stderr, flush=True)
    print_rows(rates, options.repeats)


def measure(hosts: Hosts, scratch: pathlib.Path, layout: str, number: int, turn: int, steps: int) -> float:
    mbit, settings = LAYOUTS[layout]
    hosts.shape(mbit)
    changes = [setting for _, more, _ in STEPS[:number + 1] for setting in more]
    run = hosts.train(scratch / f"{layout}-{number}-{turn}",
                      [f"data.prefix={scratch / 'data'}", f"train.steps={steps}", *MODEL, *settings, *changes], WARM_UP)
    return run.median("tokens_per_second")


def print_rows(rates: dict, repeats: int) -> None:
    before, mfu_before = None, None
    for name, _, mfu in STEPS:
        by_layout = {layout: statistics.median(values) for layout, values in rates[name].items()}
        ours = len(by_layout) / sum(1 / rate for rate in by_layout.values())
        theirs = f"MegaScale x {mfu / mfu_before:.2f}" if mfu_before else "MegaScale's begins at"
        print(json.dumps({"name": "ablation", "case": f"+ {name} ({theirs}, {mfu} % MFU)" if before else name,
                          "ours": ours, "peer": before or ours, "peer_name": "step before", "unit": "tokens/s",
                          "ratio": ours / (before or ours), "repeats": repeats, "tokens_per_second": by_layout}),
              flush=True)
        before, mfu_before = ours, mfu


if __name__ == "__main__":
    main()

"""Losses of every layout beside those of one rank: a matrix of tensor, context, pipeline, data and expert ranks.

    tools/dev bench layouts                      # 100 steps of each of 165 layouts: half an hour
    tools/dev bench layouts -- --quick           # every 12th, 30 steps: two minutes
    tools/dev bench layouts -- --only 'cp2.*zb'  # those with such a name
    tools/dev bench layouts -- --list

`ours` is the largest distance of a layout's losses from one rank's, in any step; `peer` is how far they may be, in the
step where they come nearest to it, `ratio` the two. In fp32 that is 1e-5. Lion's step has the sign of a sum, which
depends, near 0, on the sum's order. For Lion, and in bf16, which rounds every sum, the losses of one rank are measured
in several orders of reduction (ORDERS): gradients over a batch, or added up over micro-batches of 4, 2 and 1 sample; in
bf16 also over 2, 4 and 8 data-parallel ranks, and attention by LibTorch; in step 1, where all have the same parameters,
also in fp32. A layout may be _layouts.SPREADS times as far off in a step as any two of them were until then. The rows
"control" train one rank at a learning rate that differs: `peer` is the bound, and they must miss it, or the bound would
see nothing. The status is not 0 where a layout misses.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import _layouts
from _bench import BIN, say
from _layouts import Layout, Trained

PATIENCE = 600  # seconds, for a run that hangs
VOCABULARY = 320
COMMON = ["train.threads=1", "train.gemm=weft", "train.attention=weft",
          "train.peak_tflops=1", "optimizer.learning_rate=3e-3", "optimizer.warmup_steps=10",
          "parallel.bucket_bytes=64KiB", "validation.every=0", "validation.batches=1", "checkpoint.every=0",
          "sample.tokens=0", "log.trace_steps=0"]
MICRO = [(1, [f"train.micro_batch={samples}"]) for samples in (0, 4, 2, 1)]  # 0: the whole batch
# Ranks and settings of the orders of reduction; the first is the reference.
ORDERS = {"fp32": MICRO,
          "bf16": [*MICRO, (1, ["train.gemm=aten", "train.attention=aten"]), *((ranks, []) for ranks in (2, 4, 8))]}
# By how much the learning rate of the control differs.
CONTROL = {"fp32": 1.01, "bf16": 1.01}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th layout")
    parser.add_argument("--only", metavar="REGEX", help="layouts with such a name")
    parser.add_argument("--quick", action="store_true", help="every 12th layout, 30 steps")
    parser.add_argument("--sample", action="store_true",
                        help="three layouts, 8 steps; all of them where WEFT_LAYOUTS=full")
    parser.add_argument("--list", action="store_true", help="names only")
    options = parser.parse_args()
    if options.quick:
        options.every, options.steps = 12, 30
    chosen = _layouts.matrix()[::max(1, options.every)]
    if options.only:
        chosen = [layout for layout in chosen if re.search(options.only, layout.name)]
    if options.sample and os.environ.pop("WEFT_LAYOUTS", "") != "full":
        options.steps = 8
        chosen = _layouts.sample()
    if not chosen:
        sys.exit(f"no layout's name has {options.only!r}; --list shows all")
    if options.list:
        print("\n".join(f"{layout.ranks} {layout.name}" for layout in chosen), file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="weft-layouts-") as folder:
        sys.exit(Bench(pathlib.Path(folder), options.steps, chosen).run())


class Bench:
    def __init__(self, scratch: pathlib.Path, steps: int, chosen: list[Layout]):
        self.scratch, self.steps, self.chosen = scratch, steps, chosen
        self.bounds: dict[Trained, tuple[dict, dict]] = {}  # the reference's losses, and how far others may be
        self.summary = collections.defaultdict(list)
        self.missed: list[str] = []

    def run(self) -> int:
        make_data(self.scratch)
        began = time.monotonic()
        for number, layout in enumerate(self.chosen):
            losses, bound = self.bound(layout.trained)
            got = self.train(layout.ranks, layout.settings())
            within = self.report(layout.name, losses, got, bound)
            for kind in kinds(layout):
                self.summary[layout.trained.precision, kind].append(within)
            left = (time.monotonic() - began) / (number + 1) * (len(self.chosen) - number - 1)
            say(f"layouts {number + 1} of {len(self.chosen)}, {left / 60:.0f} min left: {layout.name}: "
                f"{within[0]:.2g}, {within[1]:.2f} of the bound")
        self.print_summary()
        for name in self.missed:
            say(f"layouts: MISSED: {name}")
        return 1 if self.missed else 0

    def bound(self, trained: Trained) -> tuple[dict, dict]:
        if trained in self.bounds:
            return self.bounds[trained]
        orders = ORDERS[trained.precision]
        by_spread = trained.precision != "fp32" or trained.decides
        runs = [self.train(ranks, [*trained.settings(), *more]) for ranks, more in orders[:None if by_spread else 1]]
        if not all(runs):
            sys.exit(f"{trained.name}: there is nothing to compare layouts with")
        if by_spread:
            # Before any update, the loss without rounding.
            exact = self.train(1, [*trained.settings(), "train.precision=fp32", "train.steps=1"])
            found = {step: max(_layouts.SPREADS * most, _layouts.FP32_MOST)
                     for step, most in _layouts.spread(runs, exact).items()}
            say(f"layouts: {trained.name}: spread of {len(runs)} orders of reduction "
                f"{found[self.steps] / _layouts.SPREADS:.2g}")
        else:
            found = {step: _layouts.FP32_MOST for step in runs[0]}
        self.bounds[trained] = runs[0], found
        if trained == Trained(trained.precision):
            rate = 3e-3 * CONTROL[trained.precision]
            other = self.train(1, [*trained.settings(), f"optimizer.learning_rate={rate:g}"])
            self.report(f"control: learning rate x {CONTROL[trained.precision]} ({trained.name})", runs[0], other,
                        found, control=True)
        return self.bounds[trained]

    def report(self, name: str, losses: dict, got: dict, bound: dict, control: bool = False) -> tuple[float, float]:
        """Prints the row; returns the largest distance, and the largest part of its bound."""
        away = _layouts.distances(losses, got)
        parts = {step: distance / bound[step] for step, distance in away.items()}
        worst = max(parts, key=parts.get)
        good = (parts[worst] > 1) if control else (parts[worst] <= 1)
        if not good or len(got) != self.steps:
            self.missed.append(f"{name}: {away[worst]:.3g} in step {worst}, bound {bound[worst]:.3g}, "
                               f"{len(got)} of {self.steps} steps")
        ratio = parts[worst] if control else 1 / max(parts[worst], 1e-9)
        print(json.dumps({"name": "layouts", "case": name, "ours": max(away.values()), "peer": bound[worst],
                          "peer_name": "bound", "unit": "loss", "ratio": ratio, "repeats": self.steps,
                          "step": worst, "missed": not good}), flush=True)
        return max(away.values()), parts[worst]

    def print_summary(self) -> None:
        say("| precision | layouts with | number | largest difference | part of its bound |\n|---|---|---|---|---|")
        for (precision, kind), found in sorted(self.summary.items()):
            say(f"| {precision} | {kind} | {len(found)} | {max(away for away, _ in found):.2g} | "
                f"{max(part for _, part in found):.2f} |")

    def train(self, ranks: int, settings: list[str]) -> dict:
        """Losses by step."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            command = [BIN / "weft-train", "--run-dir", f"{folder}/run"]
            if ranks > 1:
                command = [BIN / "weft-run", "-n", str(ranks), "--", *command]
            for setting in [*COMMON, f"data.prefix={self.scratch / 'data'}", f"train.steps={self.steps}", *settings]:
                command += ["--set", setting]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            if done.returncode != 0:
                say(f"{' '.join(settings)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
                return {}
            rows = map(json.loads, pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines())
            return {row["step"]: row["loss"] for row in rows if "loss" in row}


def kinds(layout: Layout) -> list[str]:
    """The rows of the summary that a layout counts in."""
    trained = layout.trained
    found = [axis for axis in ("tensor", "pipeline", "data") if getattr(layout, axis) > 1]
    found += [f"context, {layout.method}"] if layout.context > 1 else []
    found += ["expert"] if layout.expert > 1 else []
    found += [f"pipeline, {layout.schedule}"] if layout.pipeline > 1 else []
    found += [f"zero {layout.zero}"] if layout.data * layout.context > 1 else []
    found += ["8 ranks"] if layout.ranks == 8 else []
    return found + ["all", f"all, {trained.optimizer}" + (", mixture" if trained.mixture else "")]


def make_data(scratch: pathlib.Path) -> None:
    """Sentences with some grammar, so that there is something to learn."""
    draw = random.Random(5)
    things = ("horse", "river", "lamp", "field", "ship", "song")
    verbs = ("carries", "sees", "follows", "keeps", "makes")
    with open(scratch / "text.txt", "w") as file:
        for _ in range(400):
            for _ in range(4):
                file.write(f"the {draw.choice(things)} {draw.choice(verbs)} the {draw.choice(things)} of "
                           f"{draw.randrange(100)}.\n")
            file.write("\n")
    subprocess.run([BIN / "weft-data", "prepare", "--input", scratch / "text.txt", "--output-prefix",
                    scratch / "data", "--vocab-size", str(VOCABULARY), "--validation-fraction", "0.1"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE)


if __name__ == "__main__":
    main()

"""Losses of every layout beside those of one rank: a matrix of tensor, context, pipeline, data and expert ranks.

    tools/dev bench layouts                      # 100 steps of each of 165 layouts: half an hour
    tools/dev bench layouts -- --quick           # every 12th, 30 steps: two minutes
    tools/dev bench layouts -- --only 'cp2.*zb'  # those with such a name
    tools/dev bench layouts -- --list
    tools/dev bench layouts -- --random 50       # drawn from all settings, 14 steps: three minutes; --seed, --verbose

`ours` is the largest distance of a layout's losses from one rank's, in any step; `peer` is how far they may be, in the
step where they come nearest to it, `ratio` the two. In fp32 that is 1e-5. Lion's step has the sign of a sum, which
depends, near 0, on the sum's order. For Lion, and in bf16, which rounds every sum, the losses of one rank are measured
in several orders of reduction (ORDERS): gradients over a batch, or added up over micro-batches of 4, 2 and 1 sample; in
bf16 also over 2, 4 and 8 data-parallel ranks, and attention by LibTorch; in step 1, where all have the same parameters,
also in fp32. A layout may be _layouts.SPREADS times as far off in a step as any two of them were until then. The rows
"control" train one rank at a learning rate that differs: `peer` is the bound, and they must miss it, or the bound would
see nothing. The status is not 0 where a layout misses.

--random trains a layout for each seed from --seed on, with sizes, settings and resumed runs on other meshes that the
matrix does not have (_random_layouts.py), by the same bounds. Nobody has chosen its train.seed such that what rounding
changes does not grow and no expert's choice is near a tie: where a layout is further than 1e-5 from one rank's, its
bound is measured as Lion's is. A layout that the engine refuses before it trains, with the arithmetic, counts as
refused. What crashes, hangs, is refused later or misses its bound fails: its seed and command lines are printed, and
the folder with its data and its run is kept. --random 1 --seed N trains it again.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import _layouts
import _random_layouts
from _bench import BIN, say
from _layouts import Layout, Trained, values_of

PATIENCE = 600  # seconds, for a run that hangs
MATRIX_STEPS = 100
DRAWN_STEPS, DRAWN_PATIENCE = 14, 90  # of --random
REFUSED = 2  # weft-train's status where the config is wrong
ARITHMETIC = re.compile(r"\b(model|train|parallel)\.\w+ = ")  # of a refusal
VOCABULARY = 320
COMMON = ["train.threads=1", "train.gemm=weft", "train.attention=weft",
          "train.peak_tflops=1", "optimizer.learning_rate=3e-3", "optimizer.warmup_steps=10",
          "parallel.bucket_bytes=64KiB", "validation.batches=1", "checkpoint.every=0",
          "sample.tokens=0", "log.trace_steps=0"]
MICRO = [(1, [f"train.micro_batch={samples}"]) for samples in (0, 4, 2, 1)]  # 0: the whole batch
# Ranks and settings of the orders of reduction; the first is the reference.
ORDERS = {"fp32": MICRO,
          "bf16": [*MICRO, (1, ["train.gemm=aten", "train.attention=aten"]), *((ranks, []) for ranks in (2, 4, 8))]}
# By how much the learning rate of the control differs.
CONTROL = {"fp32": 1.01, "bf16": 1.01}


def orders_of(trained: Trained) -> list:
    """As ORDERS; drawn layouts have batches that other micro-batches divide, and by LibTorch and with a loss in small
    parts there are more orders."""
    if not trained.drawn:
        return ORDERS[trained.precision]
    batch = int(values_of(trained.settings())["train.global_batch"])
    parts = [samples for samples in range(batch - 1, 0, -1) if batch % samples == 0][:3]
    aten = ["train.gemm=aten", "train.attention=aten"]
    more = [(1, ["train.attention=aten"]), (1, aten), (1, ["train.device=cpu-aten", *aten]), (1, ["train.loss_rows=5"])]
    ranks = (2, 4, 8) if trained.precision == "bf16" else ()
    return [MICRO[0], *((1, [f"train.micro_batch={samples}"]) for samples in parts), *more,
            *((count, []) for count in ranks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help=f"of each layout (default: {MATRIX_STEPS}, drawn ones {DRAWN_STEPS})")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th layout")
    parser.add_argument("--only", metavar="REGEX", help="layouts with such a name")
    parser.add_argument("--quick", action="store_true", help="every 12th layout, 30 steps")
    parser.add_argument("--sample", action="store_true",
                        help="three layouts, 8 steps; all of them where WEFT_LAYOUTS=full")
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("--random", type=int, metavar="N", help="N drawn layouts in place of the matrix")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the first drawn layout (default: 1)")
    parser.add_argument("--verbose", action="store_true", help="all settings of each layout, too")
    options = parser.parse_args()
    if options.quick:
        options.every, options.steps = 12, 30
    if options.random:
        chosen = [_random_layouts.draw(options.seed + i) for i in range(options.random)]
        options.steps = options.steps or DRAWN_STEPS
    else:
        chosen = _layouts.matrix()[::max(1, options.every)]
    if options.only:
        chosen = [layout for layout in chosen if re.search(options.only, layout.name)]
    if options.sample and os.environ.pop("WEFT_LAYOUTS", "") != "full":
        options.steps = 8
        chosen = _layouts.sample()
    if not chosen:
        sys.exit(f"no layout's name has {options.only!r}; --list shows all")
    if options.list:
        for layout in chosen:
            say(f"{layout.ranks} {layout.name}")
            if options.verbose:
                say(all_settings(layout))
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-layouts-"))
    bench = Bench(folder, options.steps or MATRIX_STEPS, chosen, options.verbose)
    status = 1
    try:
        status = bench.run()
    finally:
        if options.random and status != 0:
            say(f"layouts: data and runs of what failed: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


@dataclasses.dataclass
class Run:
    """What came of weft-train, started once or, for a resumed run, twice."""
    folder: pathlib.Path
    losses: dict = dataclasses.field(default_factory=dict)  # by step; of validation, by "STEP, validation"
    commands: list[str] = dataclasses.field(default_factory=list)
    status: int = 0  # of the last start; None: it hung
    said: str = ""
    steps_before: int = 0  # the last start

    @property
    def refused(self) -> bool:
        """Before it trained, and with the arithmetic."""
        return self.status == REFUSED and steps_of(self.losses) == self.steps_before and \
            ARITHMETIC.search(self.said) is not None

    @property
    def error(self) -> str:
        """The lines that a person reads first."""
        lines = [line for line in self.said.splitlines() if "weft-train: " in line or "error" in line.lower()]
        return "\n".join(lines[:4]) or self.said[-2000:]


def all_settings(layout: Layout) -> str:
    """A line for each start of weft-train."""
    return "\n".join("    " + " ".join(f"{name}={value}" for name, value in values_of(settings).items())
                     for _, _, settings in layout.parts(MATRIX_STEPS))


def steps_of(losses: dict) -> int:
    return sum(isinstance(step, int) for step in losses)


class Bench:
    def __init__(self, scratch: pathlib.Path, steps: int, chosen: list[Layout], verbose: bool = False):
        self.scratch, self.steps, self.chosen, self.verbose = scratch, steps, chosen, verbose
        # The reference's losses, and how far others may be; by spread or not.
        self.bounds: dict[tuple[Trained, bool], tuple[dict, dict]] = {}
        self.summary = collections.defaultdict(list)
        self.missed: list[str] = []
        self.refused = 0

    def run(self) -> int:
        make_data(self.scratch)
        began = time.monotonic()
        for number, layout in enumerate(self.chosen):
            outcome = self.compare(layout)
            left = (time.monotonic() - began) / (number + 1) * (len(self.chosen) - number - 1)
            say(f"layouts {number + 1} of {len(self.chosen)}, {left / 60:.0f} min left: {layout.name}: {outcome}")
        self.print_summary()
        say(f"layouts: {len(self.chosen) - self.refused - len(self.missed)} as they should be, {self.refused} refused, "
            f"{len(self.missed)} missed")
        for name in self.missed:
            say(f"layouts: MISSED: {name}")
        return 1 if self.missed else 0

    def compare(self, layout: Layout) -> str:
        """What came of it, in words."""
        if self.verbose:
            say(all_settings(layout))
        got = self.train(layout.parts(self.steps), DRAWN_PATIENCE if layout.is_drawn else PATIENCE)
        if layout.is_drawn and got.refused:
            self.refused += 1
            return f"refused: {got.error.splitlines()[0]}"
        missed = len(self.missed)
        losses, bound = self.bound(layout.trained)
        if layout.is_drawn and max(_layouts.distances(losses, got.losses).values()) > _layouts.FP32_MOST:
            losses, bound = self.bound(layout.trained, by_spread=True)
        within = self.report(layout.name, losses, got, bound)
        for kind in kinds(layout):
            self.summary[layout.trained.precision, kind].append(within)
        if len(self.missed) > missed:
            ended = f"; weft-train's status is {got.status}:\n{got.error}" if got.status != 0 else ""
            say("\n".join((f"layouts: {layout.name} MISSED{ended}", *got.commands)))
        elif got.folder.exists():
            shutil.rmtree(got.folder)
        return f"{within[0]:.2g}, {within[1]:.2f} of the bound"

    def bound(self, trained: Trained, by_spread: bool = False) -> tuple[dict, dict]:
        by_spread = by_spread or trained.precision != "fp32" or trained.decides
        if (trained, by_spread) in self.bounds:
            return self.bounds[trained, by_spread]
        orders = orders_of(trained)
        runs = [self.losses_of(ranks, [*trained.settings(), *more])
                for ranks, more in orders[:None if by_spread else 1]]
        if by_spread:
            # Before any update, the loss without rounding.
            exact = self.losses_of(1, [*trained.settings(), "train.precision=fp32"], steps=1)
            spreads = _layouts.spread(runs, exact)
            if trained.drawn and trained.precision == "bf16":
                # In the first of so few steps the orders have most roundings in common.
                spreads = dict.fromkeys(spreads, max(spreads.values()))
            found = {step: max(_layouts.SPREADS * most, _layouts.FP32_MOST) for step, most in spreads.items()}
            say(f"layouts: {trained.name}: spread of {len(runs)} orders of reduction "
                f"{found[self.steps] / _layouts.SPREADS:.2g}")
        else:
            found = {step: _layouts.FP32_MOST for step in runs[0]}
        self.bounds[trained, by_spread] = runs[0], found
        is_first_drawn = bool(trained.drawn) and len(self.bounds) == 1
        if trained == Trained(trained.precision) or is_first_drawn:
            rate = float(values_of([*COMMON, *trained.settings()])["optimizer.learning_rate"])
            rate *= CONTROL[trained.precision]
            other = self.train([(self.steps, 1, [*trained.settings(), f"optimizer.learning_rate={rate:g}"])])
            self.report(f"control: learning rate x {CONTROL[trained.precision]} ({trained.name})", runs[0], other,
                        found, control=True)
        return self.bounds[trained, by_spread]

    def losses_of(self, ranks: int, settings: list[str], steps: int | None = None) -> dict:
        """Of a run that others are compared with."""
        run = self.train([(steps or self.steps, ranks, settings)])
        if run.status != 0 or not run.losses:
            sys.exit(f"layouts: there is nothing to compare with: {run.commands[-1]}\n{run.error}")
        shutil.rmtree(run.folder)
        return run.losses

    def report(self, name: str, losses: dict, got: Run, bound: dict, control: bool = False) -> tuple[float, float]:
        """Prints the row; returns the largest distance, and the largest part of its bound."""
        away = _layouts.distances(losses, got.losses)
        parts = {step: distance / bound[step] for step, distance in away.items()}
        worst = max(parts, key=parts.get)
        good = (parts[worst] > 1) if control else (parts[worst] <= 1)
        if not good or got.status != 0 or steps_of(got.losses) != self.steps:
            self.missed.append(f"{name}: {away[worst]:.3g} in step {worst}, bound {bound[worst]:.3g}, "
                               f"{steps_of(got.losses)} of {self.steps} steps")
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

    def train(self, parts: list[tuple[int, int, list[str]]], patience: float = PATIENCE) -> Run:
        """`parts`: the last step, the ranks and the settings of each start; all but the first resume."""
        run = Run(pathlib.Path(tempfile.mkdtemp(dir=self.scratch)))
        for number, (last, ranks, settings) in enumerate(parts):
            run.steps_before = steps_of(run.losses)
            command = [str(BIN / "weft-train"), "--run-dir", str(run.folder / "run")]
            if ranks > 1:
                command = [str(BIN / "weft-run"), "-n", str(ranks), "--", *command]
            if number > 0:
                command.append("--resume")
            values = values_of([*COMMON, f"data.prefix={self.scratch / 'data'}", f"optimizer.decay_steps={self.steps}",
                                f"validation.every={self.steps // 2}", *settings, f"train.steps={last}"])
            for name, value in values.items():
                command += ["--set", f"{name}={value}"]
            run.commands.append(shlex.join(command))
            run.status, run.said = finish(command, patience)
            run.losses = read_losses(run.folder / "run/metrics.jsonl")
            if run.status != 0:
                break
        return run


def finish(command: list[str], patience: float) -> tuple[int | None, str]:
    """The status and what was said; None where it was ended because it took longer."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as process:
        try:
            said, _ = process.communicate(timeout=patience)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, f"error: no end after {patience} s\n{process.communicate()[0]}"


def read_losses(metrics: pathlib.Path) -> dict:
    found = {}
    if not metrics.exists():
        return found
    for row in map(json.loads, metrics.read_text().splitlines()):
        if "loss" in row:
            found[row["step"]] = row["loss"]
        if row.get("val_loss") is not None:
            found[f"{row['step']}, validation"] = row["val_loss"]
    return found


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

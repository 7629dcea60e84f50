"""Training speed: tokens/s of weft-train against PyTorch DDP, compiled DDP and FSDP2 (Gloo), and where a step goes.

The same architecture, global batch and AdamW (PyTorch's fused one) on both sides, in fp32 and in bf16 (PyTorch:
autocast, under FSDP2 a policy; ours: bf16 parameters with fp32 masters), on two ranks of one thread and on one
rank of two. Programs run in turns; of each run the first steps are left out, and its fastest step counts where
the machine is shared; a row is the best of the turns, or with --median medians of both. Rows beside tokens/s:
memory of a rank; model FLOP/s beside the best rate of any library at the step's products; milliseconds of that step
by class of work, ours as weft-train's metrics have them, PyTorch's by its profiler. docs/benchmarks/train.md.
"""
# needs: torch

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from ports import free_port  # noqa: E402
from _bench import BIN  # noqa: E402

PYTHON = os.environ.get("WEFT_BENCH_PYTHON", "")  # tools/dev bench sets it; other benches need none
WARM_UP = 2
VOCABULARY = 4096  # of the tokenizer; larger models have rows that no token of the data names
MODELS = {
    "gpt-12m": {"style": "gpt2", "layers": 6, "hidden": 384, "heads": 6, "sequence": 256, "vocab": 4096,
                "ffn": 1536, "batch": 8, "micro": {1: 8, 2: 4}},
    "gpt2-124m": {"style": "gpt2", "layers": 12, "hidden": 768, "heads": 12, "sequence": 1024,
                  "vocab": 50257, "ffn": 3072, "batch": 2, "micro": {1: 1, 2: 1}},
    "llama-160m": {"style": "llama", "layers": 12, "hidden": 768, "heads": 12, "sequence": 1024,
                   "vocab": 32000, "ffn": 3072, "batch": 2, "micro": {1: 1, 2: 1}},
}
# Seconds for the trials of libraries at the products of a step, whole.
MEASURE = {"gpt-12m": 4, "gpt2-124m": 30, "llama-160m": 30}
SIZES = ("layers", "hidden", "heads", "sequence", "ffn")
PROGRAMS = {"ddp": "PyTorch DDP", "compile": "PyTorch DDP compiled", "fsdp2": "PyTorch FSDP2"}
SPLITS = {"2x1": (2, 1), "1x2": (1, 2)}  # ranks, threads of each
# Ours and PyTorch's names of a class; what either counts apart the other has in the rest.
CLASSES = ("gemm", "attention", "elementwise", "loss", "embedding", "optimizer", "communication")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, help=f"of each run, of which {WARM_UP} do not count")
    parser.add_argument("--model", choices=list(MODELS), action="append")
    parser.add_argument("--split", choices=list(SPLITS), action="append")
    parser.add_argument("--peer", choices=list(PROGRAMS), action="append")
    parser.add_argument("--case", choices=["fp32", "bf16"], action="append")
    parser.add_argument("--median", action="store_true", help="for an idle machine")
    parser.add_argument("--quick", action="store_true",
                        help="below 3 minutes: the 12M model, 2 x 1, one turn, DDP and FSDP2")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least 1")
    if options.steps is not None and options.steps <= WARM_UP:
        parser.error(f"--steps {options.steps}: at least {WARM_UP + 1}, of which {WARM_UP} do not count")
    if options.quick:
        options.repeats, options.steps = 1, options.steps or 6
        options.model = options.model or ["gpt-12m"]
        options.split = options.split or ["2x1"]
        options.peer = options.peer or ["ddp", "fsdp2"]
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        make_data(scratch)
        for model in options.model or MODELS:
            for split in options.split or SPLITS:
                for precision in options.case or ["fp32", "bf16"]:
                    Case(scratch, model, split, precision, options).run()
    print_machine()


def print_machine() -> None:
    names = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo")
             if line.startswith(("model name", "cpu family", "model\t"))][:3]
    print(f"train: {os.cpu_count()} cores of family {names[0]}, model {names[1]}, {names[2]}; "
          f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)


def make_data(scratch: pathlib.Path, vocabulary: int = VOCABULARY) -> None:
    """Words of random syllables: the cost of a step does not depend on what the text says."""
    draw = random.Random(1)
    syllables = [a + b for a in "bcdfghjklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(20000)]
    with open(scratch / "text.txt", "w") as file:
        for _ in range(4000):
            file.write(" ".join(draw.choices(words, k=60)) + ".\n\n")
    subprocess.run([BIN / "weft-data", "prepare", "--input", scratch / "text.txt", "--output-prefix",
                    scratch / "data", "--vocab-size", str(vocabulary)],
                   check=True, stdout=sys.stderr)


def with_vocabulary(scratch: pathlib.Path, vocabulary: int) -> pathlib.Path:
    """The same data for a model whose vocabulary is larger than the tokenizer's."""
    prefix = scratch / f"data{vocabulary}"
    if not prefix.with_suffix(".json").exists():
        info = json.loads((scratch / "data.json").read_text())
        prefix.with_suffix(".json").write_text(json.dumps(dict(info, vocab_size=vocabulary)))
        for part in scratch.glob("data_*"):
            (scratch / part.name.replace("data_", f"{prefix.name}_", 1)).symlink_to(part)
    return prefix


class Case:
    """One model, split over ranks and precision: our runs and the peers', in turns, and its rows."""

    def __init__(self, scratch: pathlib.Path, model: str, split: str, precision: str, options):
        self.scratch, self.precision, self.options = scratch, precision, options
        self.name = f"{model} {precision} {split}"
        self.measure = MEASURE.get(model)
        self.model = MODELS[model]
        self.ranks, self.threads = SPLITS[split]
        self.steps = options.steps or (14 if model == "gpt-12m" else 5)
        self.prefix = with_vocabulary(scratch, self.model["vocab"])
        self.tokens = self.model["batch"] * self.model["sequence"]
        self.settings: list[str] = []        # of our runs, beside the model's
        self.peer_arguments: list[str] = []  # of the peers' programs

    def run(self) -> None:
        ours, peers = [], {program: [] for program in self.options.peer or PROGRAMS}
        for turn in range(self.options.repeats):
            ours.append(self.run_weft(turn))
            for program, runs in peers.items():
                runs.append(self.run_peer(program, profile=turn == 0))
            print(f"train {self.name} turn {turn + 1}: weft-train {self.speed([ours[-1]]):.0f}, "
                  + ", ".join(f"{PROGRAMS[program]} {self.speed([runs[-1]]):.0f}"
                              for program, runs in peers.items())
                  + f" tokens/s; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        for program, runs in peers.items():
            self.row("", self.speed(ours), self.speed(runs), PROGRAMS[program], "tokens/s")
        best = max(peers, key=lambda program: self.speed(peers[program]))
        self.memory_rows(ours, peers[best], PROGRAMS[best])
        self.rate_rows(ours)
        eager = "ddp" if "ddp" in peers else best
        self.class_rows(ours, peers[eager], PROGRAMS[eager])

    def row(self, what: str, ours: float, peer: float, peer_name: str, unit: str,
            less_is_better: bool = False) -> None:
        over = (peer, ours) if less_is_better else (ours, peer)
        print(json.dumps({"name": "train", "case": f"{self.name}{what}", "ours": ours, "peer": peer,
                          "peer_name": peer_name, "unit": unit,
                          "ratio": over[0] / over[1] if over[1] else 0.0,
                          "repeats": self.options.repeats}), flush=True)

    def step_seconds(self, runs: list[dict]) -> float:
        counted = [run["seconds"][WARM_UP:] for run in runs]
        if self.options.median:
            return statistics.median(map(statistics.median, counted))
        return min(map(min, counted))

    def speed(self, runs: list[dict]) -> float:
        return self.tokens / self.step_seconds(runs)

    def memory_rows(self, ours: list[dict], peer: list[dict], name: str) -> None:
        def least(runs, value):
            return min(value(run) for run in runs)

        self.row(", peak memory of rank 0", least(ours, lambda run: run["resident_peak_bytes"]) / 2**20,
                 least(peer, lambda run: run["resident_peak_bytes"]) / 2**20, name, "MiB",
                 less_is_better=True)
        self.row(", page faults of a step", least(ours, lambda run: min(run["faults"][WARM_UP:])),
                 least(peer, lambda run: min(run["faults"][WARM_UP:])), name, "faults",
                 less_is_better=True)

    def rate_rows(self, ours: list[dict]) -> None:
        """All ranks together, in GFLOP/s."""
        cores = self.ranks * self.threads
        model = self.flops() / self.step_seconds(ours) / 1e9
        best, registers = ours[0]["gemm_rates"]
        best, registers = (rate * self.ranks / 1e9 for rate in (best, registers))
        self.row(", model GFLOP/s of products alone", model, best, "fastest library at each shape",
                 "GFLOP/s")
        self.row(", model GFLOP/s of registers", model, registers, f"registers of {cores} cores",
                 "GFLOP/s")

    def flops(self) -> float:
        """Of a step: twice the weights that a token meets and causal attention, forward and twice backward."""
        model = self.model
        inner = 2 if model["style"] == "gpt2" else 3
        block = 4 * model["hidden"] ** 2 + inner * model["hidden"] * model["ffn"]
        weights = model["layers"] * block + model["hidden"] * model["vocab"]
        attention = model["layers"] * model["hidden"] * model["sequence"] // 2
        return self.tokens * (6 * weights + 12 * attention)

    def class_rows(self, ours: list[dict], peer: list[dict], name: str) -> None:
        """Of the step whose time tokens/s is of, or the nearest to it: the fastest, or the median; on both sides."""
        counted = self.step_seconds(ours)
        steps = [step for run in ours for step in zip(run["seconds"][WARM_UP:], run["work"][WARM_UP:])]
        _, mine = min(steps, key=lambda step: abs(step[0] - counted))
        shares, seconds = peer[0]["shares"], self.step_seconds(peer)
        rest = 1 - sum(shares.get(kind, 0) for kind in CLASSES)
        for kind in CLASSES:
            self.row(f", {kind}", 1e3 * mine[kind], 1e3 * seconds * shares[kind], name, "ms a step",
                     less_is_better=True)
        self.row(", rest", 1e3 * (sum(mine.values()) - sum(mine[kind] for kind in CLASSES)),
                 1e3 * seconds * rest, name, "ms a step", less_is_better=True)
        whole = sum(mine.values())
        print(f"train {self.name}: of a step of {1e3 * whole:.1f} ms, "
              + ", ".join(f"{kind} {100 * value / whole:.1f} %" for kind, value in mine.items())
              + f"; {name}: " + ", ".join(f"{kind} {100 * share:.1f} %"
                                          for kind, share in shares.items()),
              file=sys.stderr, flush=True)

    def run_weft(self, turn: int) -> dict:
        run_dir = self.scratch / f"{self.name.replace(' ', '-')}-{turn}"
        model = self.model
        settings = [f"model.{key}={model[key]}" for key in SIZES]
        settings += [f"model.style={model['style']}", f"train.precision={self.precision}",
                     f"train.steps={self.steps}", f"train.global_batch={model['batch']}",
                     f"train.micro_batch={model['micro'][self.ranks]}", f"data.prefix={self.prefix}",
                     "validation.batches=1", "sample.tokens=0", "log.trace_steps=0",
                     "checkpoint.every=0", *self.settings]
        command = [BIN / "weft-run", "-n", str(self.ranks), "--", BIN / "weft-train",
                   "--run-dir", run_dir]
        if self.measure:
            command += ["--measure-kernels", str(self.measure)]
        for setting in settings:
            command += ["--set", setting]
        # A trial of its own, made under the load of this turn.
        cache = run_dir.with_suffix(".cache")
        environment = dict(os.environ, XDG_CACHE_HOME=str(cache), OMP_NUM_THREADS=str(self.threads))
        finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        if finished.returncode != 0:
            sys.exit(f"weft-train failed:\n{finished.stdout}")
        rows = [json.loads(line) for line in open(run_dir / "metrics.jsonl")]
        return self.measured(run_dir, rows, finished.stdout)

    def measured(self, run_dir: pathlib.Path, rows: list[dict], output: str) -> dict:
        """Of a run, by its metrics and what it printed."""
        del output
        work = [{key[len("work_"):-len("_seconds")]: value for key, value in row.items()
                 if key.startswith("work_")} for row in rows]
        return {"seconds": [row["step_seconds"] for row in rows], "work": work,
                "faults": [row["page_faults"] for row in rows],
                "resident_peak_bytes": rows[-1]["resident_peak_bytes"],
                "gemm_rates": self.gemm_rates(run_dir.with_suffix(".cache"))}

    def gemm_rates(self, cache: pathlib.Path) -> tuple[float, float]:
        """FLOP/s of a rank: of all products of a step, each by its fastest library, and of registers."""
        trial = next(path for path in cache.glob("weft/gemm/**/*") if path.is_file())
        flops = seconds = registers = 0.0
        cut = []
        for line in trial.read_text().splitlines():
            name, *words = line.split()
            if name == "registers":
                registers = float(words[0])
            if "." not in name:
                continue
            values = dict(zip(words[::2], map(float, words[1::2])))
            if values["part"] < 1:
                cut.append(f"{name} {100 * values['part']:.0f} %")
            inputs, outputs = map(int, name.partition(".")[2].split("x"))
            times = 1 if self.model["vocab"] in (inputs, outputs) else self.model["layers"]
            flops += times * inputs * outputs
            seconds += times * inputs * outputs / max(values.get(library, 0)
                                                      for library in ("aten", "weft", "onednn"))
        if cut:
            print(f"train {self.name}: rates of products that were cut: {', '.join(cut)}", file=sys.stderr)
        return flops / seconds, registers

    def run_peer(self, program: str, profile: bool) -> dict:
        port = free_port()
        model = {key: self.model[key] for key in (*SIZES, "style", "vocab")}
        command = [PYTHON, HERE / "train/peer.py", "--data", f"{self.prefix}_train.bin",
                   "--program", program, "--precision", self.precision, "--steps", str(self.steps),
                   "--batch", str(self.model["batch"]),
                   "--micro", str(self.model["micro"][self.ranks]), "--model", json.dumps(model)]
        command += self.peer_arguments
        if profile:
            command.append("--profile")
        ranks = []
        for rank in range(self.ranks):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(self.ranks),
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                               OMP_NUM_THREADS=str(self.threads), GLOO_SOCKET_IFNAME="lo")
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                                          stderr=(self.scratch / f"peer-{rank}.err").open("w"),
                                          text=True))
        outputs = [rank.communicate()[0] for rank in ranks]
        for rank, process in enumerate(ranks):
            if process.returncode != 0:
                said = (self.scratch / f"peer-{rank}.err").read_text()[-4000:]
                sys.exit(f"rank {rank} of the PyTorch program ({program}) failed:\n{said}")
        return json.loads(outputs[0].splitlines()[-1])


if __name__ == "__main__":
    main()

"""Training on one GPU: model FLOP/s of weft-train beside PyTorch, eager and compiled, on the same card in turns.

A GPT-2 shape of 1.3 billion parameters in bf16: PyTorch with its flash attention, fused AdamW and autocast, as it
is and under torch.compile; ours with bf16 parameters and fp32 masters. `ours` and `peer` are model FLOP/s over the
card's peak in % (MFU): FLOPs as tests/bench/train.py counts them, causal attention; the peak is that of the table
below by the card's name, or what a product of two 8192 x 8192 matrices reaches. Further rows: tokens/s, and the most
memory that tensors took. Without a GPU it says so and ends; --device cpu-aten runs the same on the CPU with a small
model, to see that it works: its rows say nothing.
"""
# needs: torch

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import train

# Dense bf16 TFLOP/s by the makers' data sheets, by a word of the name that CUDA gives.
PEAKS = {"H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "H20": 148, "A100": 312, "A800": 312,
         "B200": 2250, "L40S": 362, "RTX 4090": 165}
train.MODELS["gpt-1.3b"] = {"style": "gpt2", "layers": 24, "hidden": 2048, "heads": 16, "sequence": 2048,
                            "vocab": 50304, "ffn": 8192, "batch": 16, "micro": {1: 4}}
train.MODELS["gpt-small"] = {"style": "gpt2", "layers": 2, "hidden": 128, "heads": 2, "sequence": 64,
                             "vocab": 4096, "ffn": 512, "batch": 4, "micro": {1: 2}}
PROGRAMS = {"alone": "PyTorch", "alone-compile": "PyTorch compiled"}
ASK = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help=f"of each run, of which {train.WARM_UP} do not count")
    parser.add_argument("--device", choices=["cuda", "cpu-aten"], default="cuda")
    parser.add_argument("--model", choices=list(train.MODELS))
    parser.add_argument("--peer", choices=list(PROGRAMS), action="append")
    options = parser.parse_args()
    options.median = True
    card = subprocess.run([train.PYTHON, "-c", ASK], capture_output=True, text=True, check=False).stdout.strip()
    if options.device == "cuda" and not card:
        sys.exit("bench train_gpu: this machine has no GPU that PyTorch may use (nvidia-smi lists those with a "
                 "driver); --device cpu-aten takes the same way on the CPU")
    model = options.model or ("gpt-1.3b" if options.device == "cuda" else "gpt-small")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        train.make_data(scratch)
        GpuCase(scratch, model, card, options).run()


class GpuCase(train.Case):
    """One process with one GPU: our runs and the peers', in turns."""

    def __init__(self, scratch: pathlib.Path, model: str, card: str, options):
        super().__init__(scratch, model, "1x2", "bf16", options)
        self.name = f"{model} bf16, {card or 'CPU'}"
        self.threads = os.cpu_count()  # for what the host does before the first step
        self.peak = next((peak for word, peak in PEAKS.items() if word in card), 0)
        self.settings = [f"train.device={options.device}", "train.gemm=aten", "train.attention=aten",
                         f"train.peak_tflops={self.peak}", "parallel.bucket_bytes=256MiB"]
        self.peer_arguments = ["--device", options.device.partition("-")[0]]

    def run(self) -> None:
        ours, peers = [], {program: [] for program in self.options.peer or PROGRAMS}
        for turn in range(self.options.repeats):
            ours.append(self.run_weft(turn))
            for program, runs in peers.items():
                runs.append(self.run_peer(program, profile=False))
            print(f"train_gpu {self.name} turn {turn + 1}: weft-train {self.speed([ours[-1]]):.0f}, "
                  + ", ".join(f"{PROGRAMS[program]} {self.speed([runs[-1]]):.0f}"
                              for program, runs in peers.items()) + " tokens/s", file=sys.stderr, flush=True)
        peak = 1e12 * self.peak if self.peak else ours[0]["peak_flops"]
        for program, runs in peers.items():
            self.row(", MFU", self.mfu(ours, peak), self.mfu(runs, peak), PROGRAMS[program], "%")
            self.row("", self.speed(ours), self.speed(runs), PROGRAMS[program], "tokens/s")
            self.row(", memory of tensors", ours[0]["tensor_peak_bytes"] / 2**20,
                     runs[0]["tensor_peak_bytes"] / 2**20, PROGRAMS[program], "MiB", less_is_better=True)

    def mfu(self, runs: list[dict], peak: float) -> float:
        return 100 * self.flops() / self.step_seconds(runs) / peak

    def measured(self, run_dir: pathlib.Path, rows: list[dict], output: str) -> dict:
        peak = re.search(r"peak ([0-9.]+) ([GT])FLOP/s", output)
        memory = re.search(r"tensors ([0-9.]+) MiB at most", output)
        return {"seconds": [row["step_seconds"] for row in rows],
                "peak_flops": float(peak[1]) * {"G": 1e9, "T": 1e12}[peak[2]],
                "tensor_peak_bytes": float(memory[1]) * 2**20}


if __name__ == "__main__":
    main()

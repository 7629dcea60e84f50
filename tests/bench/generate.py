"""Generating text: tokens/s of weft-generate against PyTorch eager with the same model, and against reading memory.

A model in GPT-2's form (by default 12 layers, 768 wide, vocabulary 4096: 88M parameters) is trained for one step and
exported; both programs write the same number of tokens behind a short prompt, greedily, with a cache of keys and values
and as many threads as cores. The peer is a plain loop of torch operations (tests/bench/generate/eager.py) without
sampling or text. Runs alternate; a row is the median. The rows "of reading" set the bytes that a step of ours has to
read, in GB/s, beside the rate at which weft-generate found the same process to read as many: batch 1 is bound by it.
The rows "prefill" are prompts of about 200 tokens, as many as the batch, read in one pass, and one token behind each.
"""
# needs: torch

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

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = os.environ.get("WEFT_BENCH_PYTHON", "")
SEQUENCE = 512
SHORT, LONG = "banana cando", "banana cando " * 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--batch", type=int, action="append", help="1, 4 and 16, if none is given")
    parser.add_argument("--case", choices=["fp32", "bf16"], action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        make_data(scratch)
        train(scratch, options)
        for precision in options.case or ["fp32", "bf16"]:
            for batch in options.batch or [1, 4, 16]:
                compare(scratch, precision, batch, options)
                compare_prefill(scratch, precision, batch, options)


def compare(scratch: pathlib.Path, precision: str, batch: int, options) -> None:
    ours, peer, shares = [], [], []
    for turn in range(options.repeats):
        speed = run_weft(scratch, precision, [SHORT] * batch, options.tokens)
        if speed["decode_tokens"] < batch * (options.tokens - 1):
            sys.exit(f"the model ended its document after {speed['decode_tokens']} tokens; try another number of layers")
        ours.append(speed["decode_tokens_per_second"])
        shares.append((speed["read_share"], speed["read_bytes_per_second"] / 1e9,
                       speed["measured_read_bytes_per_second"] / 1e9))
        peer.append(run_eager(scratch, precision, batch, options.tokens)["decode"])
        print(f"generate {precision} batch {batch} turn {turn + 1}: weft-generate {ours[-1]:.1f}, PyTorch "
              f"{peer[-1]:.1f} tokens/s; {shares[-1][0]:.2f} of reading", file=sys.stderr, flush=True)
    case = case_of(precision, batch, options)
    row(case, statistics.median(ours), statistics.median(peer), "PyTorch eager", "tokens/s", options)
    share, used, measured = sorted(shares)[len(shares) // 2]
    row(case + ", of reading", used, measured, "reading as many bytes", "GB/s", options)


def compare_prefill(scratch: pathlib.Path, precision: str, batch: int, options) -> None:
    ours, peer = [], []
    for turn in range(options.repeats):
        speed = run_weft(scratch, precision, [LONG] * batch, 1)
        ours.append(speed["prefill_tokens_per_second"])
        length = speed["prefill_tokens"] // batch
        peer.append(run_eager(scratch, precision, batch, 1, length)["prefill"])
        print(f"generate {precision} batch {batch} turn {turn + 1}: prompts of {length} tokens, weft-generate "
              f"{ours[-1]:.0f}, PyTorch {peer[-1]:.0f} tokens/s", file=sys.stderr, flush=True)
    row(case_of(precision, batch, options) + ", prefill", statistics.median(ours), statistics.median(peer),
        "PyTorch eager", "tokens/s", options)


def case_of(precision: str, batch: int, options) -> str:
    return f"gpt {options.layers} x {options.hidden} {precision}, batch {batch}"


def row(case: str, ours: float, peer: float, peer_name: str, unit: str, options) -> None:
    print(json.dumps({"name": "generate", "case": case, "ours": ours, "peer": peer, "peer_name": peer_name,
                      "unit": unit, "ratio": ours / peer, "repeats": options.repeats}), flush=True)


def train(scratch: pathlib.Path, options) -> None:
    """One step: what the weights are does not matter, that there is a checkpoint and an export does."""
    settings = [f"model.layers={options.layers}", f"model.hidden={options.hidden}",
                f"model.heads={options.hidden // 64}", f"model.sequence={SEQUENCE}",
                "train.steps=1", "train.global_batch=1", "train.precision=fp32",
                "optimizer.name=sgd", f"data.prefix={scratch / 'data'}", "validation.batches=1",
                "sample.tokens=0", "log.trace_steps=0"]
    command = [BIN / "weft-train", "--run-dir", scratch / "run"]
    for setting in settings:
        command += ["--set", setting]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if finished.returncode != 0:
        sys.exit(f"weft-train failed:\n{finished.stdout}")


def run_weft(scratch: pathlib.Path, precision: str, prompts: list[str], tokens: int) -> dict:
    # Prompts are alike, and so are the texts: none ends before the others, unless all do.
    (scratch / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in prompts))
    finished = subprocess.run(
        [BIN / "weft-generate", scratch / "run", "--prompts", scratch / "prompts.txt", "--batch", str(len(prompts)),
         "--tokens", str(tokens), "--temperature", "0", "--precision", precision, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if finished.returncode != 0:
        sys.exit(f"weft-generate failed:\n{finished.stderr}")
    return json.loads(finished.stdout.splitlines()[-1])


def run_eager(scratch: pathlib.Path, precision: str, batch: int, tokens: int, prompt: int = 8) -> dict:
    finished = subprocess.run(
        [PYTHON, HERE / "generate/eager.py", "--model", scratch / "run/model", "--precision", precision,
         "--batch", str(batch), "--tokens", str(tokens), "--prompt", str(prompt)], stdout=subprocess.PIPE, text=True)
    if finished.returncode != 0:
        sys.exit("the PyTorch program failed")
    return json.loads(finished.stdout)


if __name__ == "__main__":
    main()

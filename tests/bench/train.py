"""Training speed: tokens/s of weft-train with 2 ranks against PyTorch DDP (Gloo) with the same model.

Same architecture (GPT-2 form: 6 layers, 384 wide, 6 heads, 256 tokens, vocabulary 4096, tied),
same global batch, AdamW on both sides (PyTorch's fused one), once in fp32 and once in bf16 (PyTorch: autocast;
ours: bf16 parameters with fp32 masters). Runs alternate; of each the first steps are left out, the
median step counts, and the row is the median over the runs. docs/benchmarks/train.md says more.
"""
# needs: torch

import argparse
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ["WEFT_BIN"])
PYTHON = os.environ.get("WEFT_BENCH_PYTHON", "")  # tools/dev bench sets it; layouts.py needs none
MODEL = {"layers": 6, "hidden": 384, "heads": 6, "sequence": 256, "vocab": 4096}
WARM_UP = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14, help="of each run; the first 4 do not count")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="samples a step, over all ranks")
    parser.add_argument("--case", choices=["fp32", "bf16"], action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        make_data(scratch)
        for precision in options.case or ["fp32", "bf16"]:
            ours, peer = [], []
            for turn in range(options.repeats):
                ours.append(run_weft(scratch, f"{precision}-{turn}", precision, options))
                peer.append(run_ddp(scratch, precision, options))
                print(f"train {precision} turn {turn + 1}: weft-train {ours[-1]:.0f}, "
                      f"PyTorch DDP {peer[-1]:.0f} tokens/s", file=sys.stderr, flush=True)
            ours, peer = statistics.median(ours), statistics.median(peer)
            print(json.dumps({
                "name": "train", "case": f"gpt 12M {precision}, {options.ranks} ranks",
                "ours": ours, "peer": peer, "peer_name": "PyTorch DDP Gloo", "unit": "tokens/s",
                "ratio": ours / peer, "repeats": options.repeats}), flush=True)


def make_data(scratch: pathlib.Path, vocabulary: int = MODEL["vocab"]) -> None:
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


def tokens_per_second(step_seconds: list[float], options) -> float:
    return options.batch * MODEL["sequence"] / statistics.median(step_seconds[WARM_UP:])


def run_weft(scratch: pathlib.Path, name: str, precision: str, options) -> float:
    run_dir = scratch / name
    settings = [f"model.{key}={MODEL[key]}" for key in ("layers", "hidden", "heads", "sequence")]
    settings += [f"train.precision={precision}", f"train.steps={options.steps}",
                 f"train.global_batch={options.batch}", f"data.prefix={scratch / 'data'}",
                 "validation.batches=1", "sample.tokens=0", "log.trace_steps=0",
                 "checkpoint.every=0"]
    command = [BIN / "weft-run", "-n", str(options.ranks), "--", BIN / "weft-train",
               "--run-dir", run_dir]
    for setting in settings:
        command += ["--set", setting]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if finished.returncode != 0:
        sys.exit(f"weft-train failed:\n{finished.stdout}")
    rows = [json.loads(line) for line in open(run_dir / "metrics.jsonl")]
    return tokens_per_second([row["step_seconds"] for row in rows], options)


def run_ddp(scratch: pathlib.Path, precision: str, options) -> float:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    threads = max(1, len(os.sched_getaffinity(0)) // options.ranks)
    ranks = []
    for rank in range(options.ranks):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(options.ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                           OMP_NUM_THREADS=str(threads), GLOO_SOCKET_IFNAME="lo")
        ranks.append(subprocess.Popen(
            [PYTHON, HERE / "train/ddp.py", "--data", scratch / "data_train.bin",
             "--precision", precision, "--steps", str(options.steps), "--batch", str(options.batch),
             "--model", json.dumps(MODEL)],
            env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        sys.exit("the PyTorch program failed")
    return tokens_per_second(json.loads(outputs[0]), options)


if __name__ == "__main__":
    main()

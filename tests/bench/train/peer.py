"""The peers of tests/bench/train.py: GPT-2's form or Llama's under PyTorch's data parallelism over Gloo.

Plain PyTorch as its documentation has it: nn modules, scaled_dot_product_attention, fused AdamW, gradient
clipping; DistributedDataParallel, the same compiled by torch.compile, or fully_shard (FSDP2). bf16 is autocast
under DistributedDataParallel and a MixedPrecisionPolicy under FSDP2. Rank 0 prints one JSON object: the seconds
of each step and of its operators by class (--profile), and the most memory that was resident.
"""

import argparse
import json
import os
import resource
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, sequence: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=bias)
        if not bias:  # rotary positions
            width = hidden // heads
            angles = torch.outer(torch.arange(sequence).float(),
                                 10000.0 ** (-torch.arange(0, width, 2).float() / width))
            self.register_buffer("cosine", torch.cat([angles, angles], 1).cos(), persistent=False)
            self.register_buffer("sine", torch.cat([angles, angles], 1).sin(), persistent=False)

    def rotate(self, x):
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return (x * self.cosine[: x.shape[2]] + turned * self.sine[: x.shape[2]]).to(x.dtype)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, -1))
        if hasattr(self, "cosine"):
            q, k = self.rotate(q), self.rotate(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Block(nn.Module):
    def __init__(self, style: str, hidden: int, heads: int, sequence: int, ffn: int):
        super().__init__()
        self.is_gpt = style == "gpt2"
        norm = nn.LayerNorm if self.is_gpt else nn.RMSNorm
        self.norm1, self.norm2 = norm(hidden), norm(hidden)
        self.attention = Attention(hidden, heads, sequence, bias=self.is_gpt)
        self.ffn_in = nn.Linear(hidden, ffn if self.is_gpt else 2 * ffn, bias=self.is_gpt)
        self.ffn_out = nn.Linear(ffn, hidden, bias=self.is_gpt)

    def activate(self, x):
        if self.is_gpt:
            return F.gelu(x, approximate="tanh")
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.ffn_out(self.activate(self.ffn_in(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, style: str, layers: int, hidden: int, heads: int, sequence: int, vocab: int,
                 ffn: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(sequence, hidden) if style == "gpt2" else None
        self.blocks = nn.ModuleList(Block(style, hidden, heads, sequence, ffn)
                                    for _ in range(layers))
        self.norm = nn.LayerNorm(hidden) if style == "gpt2" else nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if style == "gpt2":
            self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def wrap(model, program: str, precision: str):
    if program == "alone":
        return model
    if program == "alone-compile":
        return torch.compile(model)
    if program != "fsdp2":
        model = nn.parallel.DistributedDataParallel(model)
        return torch.compile(model) if program == "compile" else model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if precision == "bf16" \
        else MixedPrecisionPolicy()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


# The first class with a word that an operator's name has.
CLASSES = (
    ("communication", ("gloo", "c10d", "allreduce", "all_reduce", "allgather", "reduce_scatter")),
    ("attention", ("attention",)),
    ("loss", ("log_softmax", "nll_loss", "cross_entropy")),
    ("gemm", ("mm", "linear", "mkldnn")),
    ("optimizer", ("adam", "foreach", "norm_except")),
    ("embedding", ("embedding",)),
    ("elementwise", ("norm", "gelu", "silu", "aten::add", "aten::mul", "graph_", "cpp_fused")),
)


def class_of(name: str) -> str:
    return next((kind for kind, words in CLASSES if any(word in name for word in words)), "rest")


def profile(step) -> dict[str, float]:
    """Seconds of one step by class, of this thread's operators without those that they call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        start = time.perf_counter()
        step()
        whole = time.perf_counter() - start
    seconds = dict.fromkeys([kind for kind, _ in CLASSES] + ["rest"], 0.0)
    for event in recorded.key_averages():
        seconds[class_of(event.key.lower())] += event.self_cpu_time_total * 1e-6
    # Waits that no operator has are the rest's.
    seconds["rest"] += max(0.0, whole - sum(seconds.values()))
    return {kind: value / sum(seconds.values()) for kind, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--program", default="ddp",
                        choices=["ddp", "compile", "fsdp2", "alone", "alone-compile"])
    parser.add_argument("--device", default="cpu", help="of one rank: cuda with alone, alone-compile")
    parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--micro", type=int, required=True, help="samples of a micro-batch")
    parser.add_argument("--model", type=json.loads, required=True)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = wrap(Gpt(**options.model).to(options.device), options.program, options.precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    data = numpy.memmap(options.data, dtype=numpy.uint16, mode="r")
    rows, length = options.batch // ranks, options.model["sequence"]
    autocast = options.precision == "bf16" and options.program != "fsdp2"

    def run(step: int) -> None:
        for micro in range(0, rows, options.micro):
            first = (step * options.batch + rank * rows + micro) * length \
                % (len(data) - options.micro * length - 1)
            piece = torch.from_numpy(
                data[first:first + options.micro * length + 1].astype(numpy.int64))
            tokens, targets = (part.view(options.micro, length).to(options.device)
                               for part in (piece[:-1], piece[1:]))
            is_last = micro + options.micro >= rows
            if options.program == "fsdp2":
                model.set_requires_gradient_sync(is_last)
            elif ranks > 1:
                model.require_backward_grad_sync = is_last
            with torch.autocast(options.device, torch.bfloat16, enabled=autocast):
                loss = model(tokens, targets) / (rows // options.micro)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    seconds, faults = [], []
    for step in range(options.steps):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        run(step)
        seconds.append(time.perf_counter() - start)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tensors = torch.cuda.max_memory_allocated() if options.device == "cuda" else 0
    shares = profile(lambda: run(options.steps)) if options.profile else {}
    if rank == 0:
        print(json.dumps({"seconds": seconds, "faults": faults, "resident_peak_bytes": peak,
                          "tensor_peak_bytes": tensors, "shares": shares}), flush=True)
    dist.barrier()
    # FSDP2 over Gloo has been seen to abort in its destructors.
    os._exit(0)


if __name__ == "__main__":
    main()

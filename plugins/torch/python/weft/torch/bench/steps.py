"""Training steps of a small GPT under DDP, FSDP2 and tensor parallelism: ours, Gloo's, and with the
communication removed, which is what any backend could gain at most.

Exposed communication is the time by which a step is longer than one without: calls that end at once,
with local copies at most, and wrong numbers (PyTorch's backend "fake"; under DDP a hook that reduces
nothing).
"""

import dataclasses
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from weft.torch.bench.ranks import run, slowest, timed
from weft.torch.bench.rows import Row

RANKS = 2
PRECISIONS = ("fp32", "bf16")
_EXPOSED_MIN = 0.02  # of a step: less of it is noise, of which no share can be recovered
_WARM_UP = 2  # steps, in which PyTorch makes its buffers
_DRAWS = 400  # of rounds, for the bounds of what is recovered
_BOUND = 0.05  # share of the draws below the lower bound, and above the upper one


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int = 6
    width: int = 384
    heads: int = 6  # a multiple of RANKS
    tokens: int = 256
    vocabulary: int = 4096
    batch: int = 4  # rows a rank


QUICK = Shape(layers=2, width=128, heads=4, tokens=64, vocabulary=512, batch=2)


def measure(shape: Shape, rounds: int) -> Iterator[Row]:
    """A row for each kind of parallelism and precision. The backends take steps in turns, in the
    same processes."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        for case, times in run(RANKS, _measure, f"{folder}/store", shape, rounds):
            medians = _medians(times)
            ours, gloos, removed = (medians[name] * 1e6 for name in ("weft", "gloo", "removed"))
            more = {"removed_us": removed, "exposed_weft_us": ours - removed,
                    "exposed_gloo_us": gloos - removed}
            share = _recovered(medians)
            low, high = (None, None) if share is None else recovered_bounds(times)
            for name, value in (("recovered", share), ("recovered at least", low),
                                ("recovered at most", high),
                                ("recovered by minima", _recovered(
                                    {name: min(of) for name, of in times.items()}))):
                if value is not None:
                    more[name] = value
            yield Row("steps", case, RANKS, 0, ours, gloos, rounds, more)


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(of) for name, of in times.items()}


def recovered_bounds(times: dict[str, list[float]]) -> tuple[float | None, float | None]:
    """Between what the recovered share is for 9 of 10 draws, with replacement, of as many rounds as there
    are (the bootstrap's percentile interval). The steps of a round are drawn together: what slowed
    them down was there for all. None where most draws have no exposed communication to recover."""
    rounds = range(len(times["gloo"]))
    draw = random.Random(1)  # noqa: S311 -- the same bounds for the same times
    shares = []
    for _ in range(_DRAWS):
        chosen = draw.choices(rounds, k=len(rounds))
        share = _recovered(_medians({name: [of[i] for i in chosen] for name, of in times.items()}))
        if share is not None:
            shares.append(share)
    if 2 * len(shares) < _DRAWS:
        return None, None
    shares.sort()
    cut = int(_BOUND * len(shares))
    return shares[cut], shares[-1 - cut]


def _recovered(times: dict[str, float]) -> float | None:
    """What share of Gloo's exposed communication is gone; None where that is noise."""
    exposed = times["gloo"] - times["removed"]
    if exposed <= _EXPOSED_MIN * times["removed"]:
        return None
    return (times["gloo"] - times["weft"]) / exposed


class _Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        width = shape.width
        self.head_width = width // shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):  # [batch, tokens, width]
        normal = self.norm1(x)
        # [batch, heads of this rank, tokens, head width]
        query, key, value = (
            layer(normal).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class _Gpt(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.tokens, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary)

    def forward(self, words):  # [batch, tokens]
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # [batch, tokens, vocabulary]


def _reduces_nothing(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _ddp(model: _Gpt, group, removed: bool, _) -> nn.Module:
    module = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    if removed:
        module.register_comm_hook(None, _reduces_nothing)
    return module


def _fsdp2(model: _Gpt, group, _, half: bool) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    policy = MixedPrecisionPolicy(torch.bfloat16 if half else None)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def _fsdp2_with_groups_memory(model: _Gpt, group, _, half: bool) -> nn.Module:
    """With buffers from the group's backend, where that has any: ours are read where they lie."""
    module = _fsdp2(model, group, _, half)
    for unit in (*model.blocks, module):
        unit.set_allocate_memory_from_process_group_for_comm(True)
    return module


def _tensor_parallel(model: _Gpt, group, _, half: bool) -> nn.Module:
    plan = {**{name: ColwiseParallel() for name in ("query", "key", "value", "widen")},
            **{name: RowwiseParallel() for name in ("out", "narrow")}}
    if half:
        model.bfloat16()
    for block in model.blocks:
        parallelize_module(block, DeviceMesh.from_group(group, "cpu"), plan)
    return model


# With the dtype of bf16 by autocast, or by the parallelism itself.
_KINDS = {"DDP": (_ddp, True), "FSDP2": (_fsdp2, False),
          "FSDP2 with group's memory": (_fsdp2_with_groups_memory, False),
          "tensor parallel": (_tensor_parallel, False)}


def _step(module: nn.Module, words: torch.Tensor, autocasts: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            logits = module(words)
        F.cross_entropy(logits.float().flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _measure(rank, ranks, report, store, shape: Shape, rounds) -> None:
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 -- registers "fake"

    # The ranks share the cores that this process may use, as those of a job on one host do.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    torch.set_flush_denormal(True)  # where nothing is communicated any numbers may come
    dist.init_process_group("weft", init_method=f"file://{store}", rank=rank, world_size=ranks)
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo"),
              "removed": dist.new_group(backend="fake")}
    for kind, (wrap, by_autocast) in _KINDS.items():
        same_words = kind == "tensor parallel"
        words = torch.randint(shape.vocabulary, (shape.batch, shape.tokens),
                              generator=torch.Generator().manual_seed(0 if same_words else rank))
        for precision in PRECISIONS:
            half = precision == "bf16"
            steps: dict[str, Callable[[], None]] = {}
            times: dict[str, list[float]] = {name: [] for name in groups}
            for name, group in groups.items():
                torch.manual_seed(1)
                module = wrap(_Gpt(shape), group, name == "removed", half)
                steps[name] = _step(module, words, half and by_autocast)
                for _ in range(_WARM_UP):
                    steps[name]()
            for turn in range(rounds + 1):  # the first is not counted
                first = turn % len(steps)  # each is the first of a round in turn
                for name in [*steps, *steps][first:first + len(steps)]:
                    dist.barrier()
                    time = slowest([timed(steps[name])])
                    times[name] += time if turn > 0 else []
            report((f"{kind} step, {precision}", times))
    dist.barrier()
    dist.destroy_process_group()

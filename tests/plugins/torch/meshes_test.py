"""Tensors, sequences and layers that are split over the ranks of a mesh: DTensor, tensor, sequence and
context parallelism, pipelines; each beside Gloo."""

import installed  # noqa: F401 -- which starts this program in PyTorch's Python

import unittest

import torch
import torch.distributed as dist
import weft.torch.context_parallel
from models import (
    STEPS,
    WIDTH,
    BesideGloo,
    add_tests,
    batch,
    model,
    model_without_unused,
    sgd,
    train,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import (
    context_parallel_unshard,
    set_rotate_method,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def tensor_parallel(rank: int) -> list[float]:
    module = model_without_unused()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(module, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return train(module, sgd(module), 0)


def sequence_parallel(rank: int) -> list[float]:
    """Activations between the layers are split by rows, as the first dimension of a sequence."""
    module = model_without_unused()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(module, mesh, {
        "first": ColwiseParallel(input_layouts=Shard(0)),
        "second": RowwiseParallel(output_layouts=Shard(0), use_local_output=False)})
    optimizer, losses = sgd(module), []
    for step in range(STEPS):
        own = batch(0, step).chunk(dist.get_world_size())[rank]
        right = distribute_tensor(batch(0, step + 50), mesh, [Shard(0)])
        loss = (module(own) - right).square().mean().full_tensor()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def loss_of_split_vocabulary(rank: int) -> list[float]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(7)
    layer = nn.Linear(WIDTH, 4 * WIDTH)
    parallelize_module(layer, mesh, ColwiseParallel(output_layouts=Shard(-1),
                                                    use_local_output=False))
    targets = torch.arange(8) % (4 * WIDTH)
    with loss_parallel():
        loss = nn.functional.cross_entropy(layer(batch(0, 0)), targets)
        loss.backward()
    gradient = layer.weight.grad.full_tensor()
    return [loss.full_tensor().item(), gradient.abs().sum().item()]


class Tutorial(nn.Module):
    """What the tutorial of tensor parallelism splits: embedding, norms, a feed-forward layer,
    logits."""

    WORDS = 4 * WIDTH

    def __init__(self):
        super().__init__()
        self.feed_forward = model_without_unused()  # and a seed for all that follows
        self.words = nn.Embedding(self.WORDS, WIDTH)
        self.norm, self.last_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, self.WORDS, bias=False)

    def forward(self, words):  # [batch, sequence]
        x = self.words(words)
        x = x + self.feed_forward(self.norm(x))
        return self.out(self.last_norm(x))  # [batch, sequence, WORDS]


def plan_of_the_tutorial(rank: int) -> list[float]:
    """Tensor and sequence parallelism in one plan: activations are split by their sequence between
    the layers, the logits by the vocabulary."""
    module = Tutorial()
    parallelize_module(module, init_device_mesh("cpu", (dist.get_world_size(),)), {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),),
                                           desired_input_layouts=(Replicate(),)),
        "feed_forward.first": ColwiseParallel(),
        "feed_forward.second": RowwiseParallel(output_layouts=Shard(1)),
        "last_norm": SequenceParallel(),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1),
                               use_local_output=False)})
    words = torch.arange(24).view(3, 8) * 5 % Tutorial.WORDS
    with loss_parallel():
        logits = module(words)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words.roll(-1, 1).flatten())
        loss.backward()
    gradients = [parameter.grad.full_tensor() for parameter in module.parameters()]
    return [loss.full_tensor().item(), *(value.abs().sum().item() for value in gradients)]


def dtensor(rank: int) -> list[float]:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(float(4 * size * 3)).view(4 * size, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    partial = DTensor.from_local(whole, mesh, [Partial()])
    assert torch.equal(partial.redistribute(mesh, [Replicate()]).to_local(), whole * size)
    assert torch.equal(partial.redistribute(mesh, [Shard(0)]).full_tensor(), whole * size)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    mean = DTensor.from_local(whole, mesh, [Partial("avg")])
    assert torch.equal(mean.redistribute(mesh, [Replicate()]).to_local(), whole)
    product = sharded @ distribute_tensor(whole.t(), mesh, [Replicate()])
    return [product.full_tensor().sum().item()]


def _train_pipeline(schedule, parts, first: bool, last: bool) -> list[float]:
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=1e-2)
    losses = []
    for step in range(STEPS):
        found = []
        schedule.step(*([batch(0, step)] if first else []),
                      **({"target": batch(0, step + 50), "losses": found} if last else {}))
        if last:
            losses.append(sum(loss.item() for loss in found) / len(found))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _distance(y: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (y - right).square().mean()


def pipeline_gpipe(rank: int) -> list[float]:
    return _pipeline(rank, ScheduleGPipe)


def pipeline_one_forward_one_backward(rank: int) -> list[float]:
    return _pipeline(rank, Schedule1F1B)


def _pipeline(rank: int, kind) -> list[float]:
    whole = model()
    part = whole.first if rank == 0 else nn.Sequential(nn.ReLU(), whole.second)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = kind(stage, n_microbatches=4, loss_fn=_distance)
    return _train_pipeline(schedule, [part], first=rank == 0, last=rank == 1)


def pipeline_interleaved(rank: int) -> list[float]:
    """Four stages, of which each of two ranks has two."""
    torch.manual_seed(7)
    parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)]
    own = [rank, rank + 2]
    stages = [PipelineStage(parts[i], i, 4, torch.device("cpu")) for i in own]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=_distance)
    return _train_pipeline(schedule, [parts[i] for i in own], first=rank == 0, last=rank == 1)


class Attention(nn.Module):
    HEADS = 2

    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(WIDTH, 3 * WIDTH)
        self.outward = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):  # [batch, sequence, WIDTH]
        batch, sequence, _ = x.shape
        query, key, value = (part.view(batch, sequence, self.HEADS, -1).transpose(1, 2)
                             for part in self.inward(x).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outward(mixed.transpose(1, 2).reshape(batch, sequence, WIDTH))


def attend(rank: int, rotation: str | None) -> list[float]:
    """Losses of an attention whose sequence is split over the ranks; None: it is whole on each."""
    torch.manual_seed(11)
    module, size = Attention(), dist.get_world_size()
    optimizer, losses = sgd(module), []
    mesh = init_device_mesh("cpu", (size,))
    for step in range(STEPS):
        x, y = (torch.randn(3, 8 * size, WIDTH, generator=torch.Generator().manual_seed(seed))
                for seed in (step, step + 50))
        if rotation is None:
            outputs = module(x)
            loss = (outputs - y).square().mean()
            loss.backward()
        else:
            set_rotate_method(rotation)
            with context_parallel(mesh, buffers=[x, y], buffer_seq_dims=[1, 1]):
                assert x.shape[1] == 8, x.shape
                outputs = module(x)
                loss = (outputs - y).square().mean()
                loss.backward()
            for parameter in module.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
            outputs, = context_parallel_unshard(mesh, [outputs], [1])
            assert outputs.shape == x.shape, outputs.shape
        losses += [loss.item(), outputs.abs().sum().item(), outputs[0, -1, 0].item()]
        optimizer.step()
        optimizer.zero_grad()
    return losses


def context_parallelism(rank: int, rotation: str) -> list[float]:
    weft.torch.context_parallel.enable()
    split, whole = attend(rank, rotation), attend(rank, None)
    torch.testing.assert_close(torch.tensor(split), torch.tensor(whole), rtol=1e-4, atol=1e-5)
    return split


def two_dimensions(rank: int) -> list[float]:
    """FSDP2 over tensor parallelism, on a mesh of 2 by 2."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    module = model_without_unused()
    parallelize_module(module, mesh["model"],
                       {"first": ColwiseParallel(), "second": RowwiseParallel()})
    for layer in (module.first, module.second, module):
        fully_shard(layer, mesh=mesh["data"])
    return train(module, sgd(module), mesh["data"].get_local_rank())


class Meshes(BesideGloo):
    def test_context_parallel_by_all_gather_and_by_all_to_all(self):
        for size in (2, 4):
            for rotation in ("allgather", "alltoall"):
                with self.subTest(size=size, rotation=rotation):
                    self.compare(size, context_parallelism, rotation)

    def test_two_dimensions_on_4_ranks(self):
        self.compare(4, two_dimensions)


add_tests(Meshes, (tensor_parallel, sequence_parallel, loss_of_split_vocabulary,
                   plan_of_the_tutorial, dtensor),
          sizes=(2, 4))
add_tests(Meshes, (pipeline_gpipe, pipeline_one_forward_one_backward, pipeline_interleaved),
          sizes=(2,))

if __name__ == "__main__":
    unittest.main()

"""PyTorch's own features over the backend, each beside Gloo: the same program, the same losses.

With two ranks a sum has one order, so that losses are equal to the bit; with four they are close.
"""

import installed

import os
import shutil
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
import torch.distributed.nn.functional as differentiable
from models import STEPS, BesideGloo, add_tests, batch, model, model_without_unused, sgd, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def ddp(rank: int) -> list[float]:
    module = DistributedDataParallel(model(), find_unused_parameters=True)
    return train(module, sgd(module), rank)


def ddp_views_of_buckets_no_sync(rank: int) -> list[float]:
    inner = model_without_unused()
    module = DistributedDataParallel(inner, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
    with module.no_sync():
        module(batch(rank, 99)).sum().backward()
    return train(module, sgd(module), rank)


def ddp_communication_hook(rank: int) -> list[float]:
    inner = model_without_unused()
    module = DistributedDataParallel(inner)
    module.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return train(module, sgd(module), rank)


def ddp_low_rank_hook(rank: int) -> list[float]:
    module = DistributedDataParallel(model_without_unused())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2,
                                        start_powerSGD_iter=2, min_compression_rate=1)
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(module, sgd(module), rank)


def ddp_uneven_inputs(rank: int) -> list[float]:
    """Rank 0 has a batch less than the others: join() calls in its place what it calls no more."""
    module = DistributedDataParallel(model_without_unused())
    optimizer = sgd(module)
    losses = []
    with module.join():
        for step in range(STEPS - (rank == 0)):
            loss = module(batch(rank, step)).square().mean()
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses[:STEPS - 1] + [sum(p.sum().item() for p in module.parameters())]


def ddp_zero_redundancy_optimizer(rank: int) -> list[float]:
    inner = model_without_unused()
    module = DistributedDataParallel(inner)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-2)
    losses = train(module, optimizer, rank)
    optimizer.consolidate_state_dict()
    return losses


def fsdp1(rank: int) -> list[float]:
    return _fsdp1(rank)


def fsdp1_with_whole_parameters_kept(rank: int) -> list[float]:
    return _fsdp1(rank, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)


def _fsdp1(rank: int, **options) -> list[float]:
    module = FullyShardedDataParallel(model_without_unused(), device_id=torch.device("cpu"),
                                      **options)
    return train(module, sgd(module), rank)


def _fsdp2(rank: int, mesh=None, **options) -> tuple[nn.Module, list[float]]:
    module = _sharded(model_without_unused(), mesh, **options)
    return module, train(module, sgd(module), rank)


def _sharded(module: nn.Module, mesh=None, **options) -> nn.Module:
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (module.first, module.second, module):
        fully_shard(layer, mesh=mesh, **options)
    return module


def fsdp2(rank: int) -> list[float]:
    return _fsdp2(rank)[1]


def fsdp2_in_bfloat16(rank: int) -> list[float]:
    return _fsdp2(rank, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))[1]


def fsdp2_with_memory_of_the_group(rank: int) -> list[float]:
    module = _sharded(model_without_unused())
    for layer in (module.first, module.second, module):
        layer.set_allocate_memory_from_process_group_for_comm(True)
    return train(module, sgd(module), rank)


def sharded_in_replicas(rank: int) -> list[float]:
    """FSDP1 and FSDP2 on a mesh of 2 by 2: sharded within a row, replicated over the rows."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    first = _fsdp1(rank, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    return first + _fsdp2(rank, mesh)[1]


def _whole(module: nn.Module) -> dict[str, list]:
    """Parameters by name, as what a pipe to another process takes."""
    return {name: value.full_tensor().tolist() for name, value in module.state_dict().items()}


def save_checkpoint(rank: int, folder: str, by_thread: bool) -> dict[str, list]:
    module, _ = _fsdp2(rank)
    state = {"model": module.state_dict()}
    if by_thread:
        # It counts on groups for CPUs: its thread has collectives of its own.
        checkpoint.async_save(state, checkpoint_id=folder).result(installed.LIMIT)
    else:
        checkpoint.save(state, checkpoint_id=folder)
    return _whole(module)


def load_checkpoint(rank: int, folder: str) -> dict[str, list]:
    module, _ = _fsdp2(rank)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    state = {"model": module.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    return _whole(module)


def functional_collectives(rank: int) -> list[float]:
    size = dist.get_world_size()
    group = list(range(size))
    own = torch.full((size, 2), float(rank + 1))
    total = float(sum(range(1, size + 1)))
    assert functional.all_reduce(own, "sum", group).eq(total).all()
    gathered = functional.all_gather_tensor(own, 0, group)
    assert gathered.view(size, -1)[:, 0].tolist() == [float(r + 1) for r in range(size)]
    assert functional.reduce_scatter_tensor(own, "avg", 0, group).eq(total / size).all()
    exchanged = functional.all_to_all_single(own, [1] * size, [1] * size, group)
    assert exchanged[:, 0].tolist() == [float(r + 1) for r in range(size)]
    assert functional.broadcast(own, 0, group).eq(1).all()
    # Of one dimension: PyTorch takes the number of elements for that of rows.
    moved = functional.permute_tensor(own.view(-1), [(r + 1) % size for r in range(size)], group)
    assert moved.eq((rank - 1) % size + 1).all()
    return []


def differentiable_collectives(rank: int) -> list[float]:
    """Both families of them: what they bring, and the gradients that go back through them."""
    size = dist.get_world_size()
    group = list(range(size))
    own = torch.arange(2.0 * size).view(size, 2).add(rank + 1).requires_grad_()
    brought = [
        differentiable.all_reduce(own * own),
        torch.stack(differentiable.all_gather(own[0])),
        differentiable.reduce_scatter(torch.empty(2), list(own.unbind())),
        differentiable.broadcast(own[1].clone(), 0),
        differentiable.all_to_all_single(torch.empty_like(own), own),
        functional.all_gather_tensor_autograd(own, 0, group),
        functional.reduce_scatter_tensor_autograd(own, "sum", 0, group),
        functional.all_to_all_single_autograd(own, [1] * size, [1] * size, group)]
    # Squares, whose gradients are dense: PyTorch refuses expanded ones on their way back.
    loss = sum(((i + 1.0) * tensor * tensor).sum() for i, tensor in enumerate(brought))
    loss.backward()
    assert own.grad.count_nonzero() == own.numel(), own.grad
    return own.grad.view(-1).tolist() + [tensor.sum().item() for tensor in brought]


def compiled(rank: int) -> list[float]:
    """A function of collectives in one graph, and training by DDP and by FSDP2."""
    size = dist.get_world_size()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x):
        dist.all_reduce(x)
        return functional.all_gather_tensor(x * 2, 0, list(range(size))).sum()

    right = float(4 * size * 2 * sum(range(1, size + 1)))
    value = step(torch.full((4,), float(rank + 1))).item()
    assert value == right, (value, right)
    module = torch.compile(DistributedDataParallel(model_without_unused()), backend="aot_eager")
    losses = train(module, sgd(module), rank)
    module = torch.compile(_sharded(model_without_unused()), backend="aot_eager")
    return losses + train(module, sgd(module), rank)


def compiled_by_inductor(rank: int) -> list[float]:
    """As compiled(), to machine code: a function of collectives, and training by DDP."""
    size = dist.get_world_size()

    @torch.compile(fullgraph=True)
    def step(x):
        return functional.all_reduce(x * 2, "sum", list(range(size))) + 1

    value = step(torch.full((4,), float(rank + 1)))
    assert value.eq(size * (size + 1) + 1).all(), value
    module = torch.compile(DistributedDataParallel(model_without_unused()))
    return train(module, sgd(module), rank)


class Features(BesideGloo):
    @installed.takes_long
    def test_compiled_by_inductor_on_2_ranks(self):
        if shutil.which("g++") is None:
            self.skipTest("there is no g++")
        with tempfile.TemporaryDirectory(prefix="weft-inductor-") as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            self.compare(2, compiled_by_inductor)

    def test_sharded_in_replicas_on_4_ranks(self):
        self.compare(4, sharded_in_replicas)

    def test_a_checkpoint_is_loaded_by_as_many_ranks_and_by_more(self):
        for by_thread, size in ((False, 4), (True, 2)):
            with self.subTest(by_thread=by_thread), tempfile.TemporaryDirectory() as folder:
                saved = installed.fork_ranks(2, save_checkpoint, folder, by_thread)
                loaded = installed.fork_ranks(size, load_checkpoint, folder)
                self.assertEqual(loaded, [saved[0]] * size)


add_tests(Features, (ddp, ddp_views_of_buckets_no_sync, ddp_communication_hook, ddp_low_rank_hook,
                     ddp_zero_redundancy_optimizer, fsdp1, fsdp1_with_whole_parameters_kept, fsdp2,
                     fsdp2_in_bfloat16, fsdp2_with_memory_of_the_group, functional_collectives),
          sizes=(2, 4))
add_tests(Features, (compiled, ddp_uneven_inputs, differentiable_collectives), sizes=(2,))

if __name__ == "__main__":
    unittest.main(verbosity=2)

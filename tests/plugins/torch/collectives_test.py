"""Every collective and point-to-point call of torch.distributed on 1, 2 and 4 ranks, beside Gloo's
result where Gloo has it, else beside the definition."""

import installed

import json
import pathlib
import tempfile
import threading
import unittest
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import weft.torch

SIZES = (1, 2, 4)
REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGER = (torch.uint8, torch.int8, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
# That only travel.
MOVED = (torch.int16, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
         torch.float8_e5m2)
BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
ARITHMETIC = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
# One float16 addition more or less, in another order.
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5}


def made(rank: int, dtype: torch.dtype, shape=(3, 5)) -> torch.Tensor:
    """Numbers of this rank, small enough that no sum or product leaves the type."""
    generator = torch.Generator().manual_seed(1000 + rank)
    numbers = torch.randint(1, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(numbers.double(), numbers.double() - 2).to(dtype)
    if dtype.is_floating_point:
        return (numbers.double() / 4).to(torch.float32).to(dtype)
    return numbers.to(dtype)


def same(ours: torch.Tensor, right: torch.Tensor, what: str) -> None:
    assert ours.shape == right.shape and ours.dtype == right.dtype, (what, ours, right)
    tolerance = TOLERANCE.get(ours.dtype, 0)
    if tolerance:
        torch.testing.assert_close(ours, right, rtol=tolerance, atol=tolerance, msg=lambda text:
                                   f"{what}: {text}")
    else:
        assert torch.equal(ours, right), f"{what}: {ours} where {right} is right"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def reduced_types(rank: int) -> None:
    gloo = dist.new_group(backend="gloo")
    cases = [(dtype, op) for dtype in REAL for op in (*ARITHMETIC, dist.ReduceOp.AVG)]
    cases += [(dtype, op) for dtype in INTEGER for op in (*ARITHMETIC, *BITWISE)]
    cases += [(torch.bool, op) for op in (*ARITHMETIC, *BITWISE)]
    cases += [(dtype, op) for dtype in COMPLEX for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)]
    for dtype, op in cases:
        what = f"{dtype} {op}"
        ours, right = made(rank, dtype), made(rank, dtype)
        dist.all_reduce(ours, op)
        dist.all_reduce(right, op, group=gloo)
        same(ours, right, f"all_reduce {what}")
        size = dist.get_world_size()
        whole = made(rank, dtype, (size, 7))
        ours, right = torch.empty(7, dtype=dtype), torch.empty(7, dtype=dtype)
        dist.reduce_scatter_tensor(ours, whole.view(-1), op)
        dist.reduce_scatter_tensor(right, whole.view(-1).clone(), op, group=gloo)
        same(ours, right, f"reduce_scatter_tensor {what}")
        for root in range(size):
            ours, right = made(rank, dtype), made(rank, dtype)
            before = ours.clone()
            dist.reduce(ours, root, op)
            dist.reduce(right, root, op, group=gloo)
            # Gloo leaves parts of the sum with the others.
            same(ours, right if rank == root else before, f"reduce to {root} {what}")


def premultiplied_sum(rank: int) -> None:
    size = dist.get_world_size()
    for factor in (0.5, torch.tensor([0.25])):
        op = dist._make_nccl_premul_sum(factor)
        tensor = torch.full((6,), float(rank + 1))
        total = sum(range(1, size + 1)) * float(factor)
        dist.all_reduce(tensor, op)
        same(tensor, torch.full((6,), total), "all_reduce")
        part = torch.empty(2)
        dist.reduce_scatter_tensor(part, torch.full((2 * size,), float(rank + 1)), op)
        same(part, torch.full((2,), total), "reduce_scatter_tensor")
        whole = torch.arange(2.0 * size) * (rank + 1)
        for what, parts in (("views", list(whole.split(2))),
                            ("copies", [block.clone() for block in whole.split(2)])):
            dist.reduce_scatter(part, parts, op)
            same(part, torch.arange(2.0 * size).split(2)[rank] * total, f"reduce_scatter of {what}")
        # The factor has another type than these.
        for dtype in (torch.int64, torch.bfloat16):
            tensor = torch.full((6,), 4 * (rank + 1), dtype=dtype)
            right = torch.full((6,), int(4 * total) if rank == 0 else 4 * (rank + 1), dtype=dtype)
            dist.reduce(tensor, 0, op)
            same(tensor, right, f"reduce of {dtype}")
            part = torch.empty(2, dtype=dtype)
            whole = torch.full((2 * size,), 4 * (rank + 1), dtype=dtype)
            dist.reduce_scatter_tensor(part, whole, op)
            same(part, torch.full((2,), int(4 * total), dtype=dtype), f"reduce_scatter of {dtype}")
    scalar = torch.tensor(float(rank + 1))
    dist.all_reduce(scalar, dist._make_nccl_premul_sum(torch.tensor([0.25])))
    same(scalar, torch.tensor(sum(range(1, size + 1)) / 4), "all_reduce of a scalar")
    large = torch.tensor([100_000_001])
    dist.all_reduce(large, dist._make_nccl_premul_sum(2.0))
    same(large, torch.tensor([200_000_002 * size]), "all_reduce of a large number")


def beyond_gloo(rank: int) -> None:
    """What Gloo refuses to reduce."""
    size = dist.get_world_size()
    tensor = torch.full((5,), 100 * rank, dtype=torch.int16)
    dist.all_reduce(tensor)
    same(tensor, torch.full((5,), 100 * sum(range(size)), dtype=torch.int16), "int16")
    tensor = torch.tensor([rank, 7])
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    same(tensor, torch.tensor([sum(range(size)) // size, 7]), "AVG of int64")


def moved_types(rank: int) -> None:
    size = dist.get_world_size()
    for dtype in (*REAL, *INTEGER, *COMPLEX, *MOVED):
        of = [made(r, dtype) for r in range(size)]
        for root in range(size):
            tensor = of[rank].clone()
            dist.broadcast(tensor, root)
            assert torch.equal(bits(tensor), bits(of[root])), f"broadcast {dtype}"
            outputs = [torch.empty_like(of[0]) for _ in range(size)] if rank == root else None
            dist.gather(of[rank], outputs, root)
            for r, output in enumerate(outputs or []):
                assert torch.equal(bits(output), bits(of[r])), f"gather {dtype}"
            tensor = torch.empty_like(of[0])
            dist.scatter(tensor, of if rank == root else None, root)
            assert torch.equal(bits(tensor), bits(of[rank])), f"scatter {dtype}"
        outputs = [torch.empty_like(of[0]) for _ in range(size)]
        dist.all_gather(outputs, of[rank])
        for r, output in enumerate(outputs):
            assert torch.equal(bits(output), bits(of[r])), f"all_gather {dtype}"
        whole = torch.empty((size * 3, 5), dtype=dtype)
        dist.all_gather_into_tensor(whole, of[rank])
        for r, output in enumerate(whole.chunk(size)):
            assert torch.equal(bits(output), bits(of[r])), f"all_gather_into_tensor {dtype}"
        parts = [torch.empty_like(of[0]) for _ in range(size)]
        dist.all_to_all(parts, [of[rank]] * size)
        for r, output in enumerate(parts):
            assert torch.equal(bits(output), bits(of[r])), f"all_to_all {dtype}"


def shapes(rank: int) -> None:
    size = dist.get_world_size()
    for shape in ((), (0,), (1,), (4096,), (3, 0, 2)):
        tensor = torch.full(shape, float(rank + 1))
        dist.all_reduce(tensor)
        same(tensor, torch.full(shape, float(sum(range(1, size + 1)))), f"all_reduce of {shape}")
        outputs = [torch.empty(shape) for _ in range(size)]
        dist.all_gather(outputs, torch.full(shape, float(rank)))
        for r, output in enumerate(outputs):
            same(output, torch.full(shape, float(r)), f"all_gather of {shape}")


def large(rank: int) -> None:
    size = dist.get_world_size()
    tensor = torch.arange(1 << 21, dtype=torch.float32) + rank
    dist.all_reduce(tensor)
    same(tensor, torch.arange(1 << 21, dtype=torch.float32) * size + sum(range(size)), "all_reduce")


def non_contiguous(rank: int) -> None:
    size = dist.get_world_size()

    def strided(value: float) -> torch.Tensor:
        return torch.full((4, 3), float(value)).t()[:, ::2]

    total = float(sum(range(1, size + 1)))
    tensor = strided(rank + 1)
    dist.all_reduce(tensor)
    same(tensor, strided(total), "all_reduce")
    whole = torch.full((6, 8), float(rank + 1))
    view = whole[::2, 1::3]
    work = dist.all_reduce(view, async_op=True)
    work.wait()
    assert whole[1].eq(rank + 1).all(), "all_reduce wrote beside the view"
    same(view, torch.full((3, 3), total), "all_reduce of a view")
    tensor = strided(rank)
    dist.broadcast(tensor, 0)
    same(tensor, strided(0), "broadcast")
    tensor = torch.ones(1).expand(8) if rank == 0 else torch.zeros(8)
    dist.broadcast(tensor, 0)
    same(tensor, torch.ones(8), "broadcast of one number")
    tensor = strided(rank + 1)
    dist.reduce(tensor, 0)
    same(tensor, strided(total if rank == 0 else rank + 1), "reduce")
    outputs = [strided(-1) for _ in range(size)]
    dist.all_gather(outputs, strided(rank))
    for r, output in enumerate(outputs):
        same(output, strided(r), "all_gather")
    tensor = strided(-1)
    dist.scatter(tensor, [strided(r) for r in range(size)] if rank == 0 else None, 0)
    same(tensor, strided(rank), "scatter")
    if size > 1:
        tensor = strided(-1)
        work = dist.isend(strided(rank), (rank + 1) % size)
        dist.recv(tensor, (rank - 1) % size)
        work.wait()
        same(tensor, strided((rank - 1) % size), "recv")


def uneven_lists(rank: int) -> None:
    size = dist.get_world_size()
    outputs = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    for r, output in enumerate(outputs):
        same(output, torch.full((r + 1,), float(r)), "all_gather")
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [torch.full((r + 1,), float(rank + r)) for r in range(size)])
    same(output, torch.full((rank + 1,), float(sum(range(size)) + rank * size)), "reduce_scatter")
    received = torch.empty(sum((rank + r) % 3 for r in range(size)))
    dist.all_to_all_single(
        received, torch.full((sum((rank + r) % 3 for r in range(size)),), float(rank)),
        [(rank + r) % 3 for r in range(size)], [(rank + r) % 3 for r in range(size)])
    right = torch.cat([torch.full(((rank + r) % 3,), float(r)) for r in range(size)])
    same(received, right, "all_to_all_single")
    parts = [torch.empty(rank + 2 * r) for r in range(size)]
    dist.all_to_all(parts, [torch.full((r + 2 * rank,), float(10 * rank + r)) for r in range(size)])
    for r, part in enumerate(parts):
        same(part, torch.full((rank + 2 * r,), float(10 * r + rank)), "all_to_all")


def coalesced(rank: int) -> None:
    size = dist.get_world_size()
    total = float(sum(range(1, size + 1)))
    tensors = [torch.full((n,), float(rank + 1)) for n in (1, 5, 64)]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, total), "all_reduce_coalesced")
    lists = [[torch.empty(n) for n in (2, 3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((n,), float(rank)) for n in (2, 3)])
    for r, outputs in enumerate(lists):
        for output in outputs:
            same(output, torch.full_like(output, float(r)), "all_gather_coalesced")
    device = torch.device("cpu")
    tensors = [torch.full((n,), float(rank + 1)) for n in (1, 5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, total), "_coalescing_manager, all_reduce")
    outputs = [torch.empty(size * n) for n in (2, 3)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // size,), float(rank)))
    for output in outputs:
        right = torch.arange(size, dtype=torch.float32).repeat_interleave(output.numel() // size)
        same(output, right, "_coalescing_manager, all_gather_into_tensor")
    outputs = [torch.empty(n) for n in (2, 3)]
    with dist._coalescing_manager():
        for output in outputs:
            whole = torch.full((output.numel() * size,), float(rank + 1))
            dist.reduce_scatter_tensor(output, whole)
    for output in outputs:
        same(output, torch.full_like(output, total), "_coalescing_manager, reduce_scatter_tensor")
    with dist._coalescing_manager(device=device):
        tensor = torch.full((4,), float(rank))
        dist.broadcast(tensor, 0)
    same(tensor, torch.zeros(4), "_coalescing_manager, broadcast")


def sparse(rank: int) -> None:
    size = dist.get_world_size()
    indices = torch.tensor([[0, rank + 1, rank + 1], [1, 0, 0]])
    own = torch.sparse_coo_tensor(indices, torch.ones(3, 2) * (rank + 1), (size + 2, 3, 2))
    right = sum(torch.sparse_coo_tensor(
        torch.tensor([[0, r + 1, r + 1], [1, 0, 0]]), torch.ones(3, 2) * (r + 1),
        (size + 2, 3, 2)).to_dense() for r in range(size))
    others = torch.ones(3)
    first = dist.all_reduce(own, async_op=True)
    second = dist.all_reduce(others, async_op=True)  # goes by between its rounds
    second.wait()
    first.wait()
    same(own.to_dense(), right, "all_reduce of a sparse tensor")
    same(others, torch.full((3,), float(size)), "all_reduce beside it")


def messages(rank: int) -> None:
    size = dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    operations, received = [], []
    for tag in (7, 3):
        received.append(torch.empty(5))
        operations.append(dist.P2POp(dist.isend, torch.full((5,), float(10 * rank + tag)), right,
                                     tag=tag))
    for tag, tensor in zip((3, 7), received):
        operations.append(dist.P2POp(dist.irecv, tensor, left, tag=tag))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for tag, tensor in zip((3, 7), received):
        same(tensor, torch.full((5,), float(10 * left + tag)), f"tag {tag}")
    if rank == 0:
        sources = []
        for _ in range(2 * (size - 1)):
            tensor = torch.empty(3)
            sources.append(dist.recv(tensor, tag=9))
            same(tensor, torch.full((3,), float(sources[-1])), "recv from any rank")
        assert sorted(sources) == [r for r in range(1, size) for _ in range(2)], sources
    else:
        for _ in range(2):
            dist.send(torch.full((3,), float(rank)), 0, tag=9)
    objects = [None]
    if rank == 0:
        dist.send_object_list([{"from": 0}], 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
        assert objects == [{"from": 0}], objects


def objects(rank: int) -> None:
    size = dist.get_world_size()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(size)], gathered
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered)
    assert gathered is None or gathered == list(range(size)), gathered
    shared = [rank, "a"]
    dist.broadcast_object_list(shared, 0)
    assert shared == [0, "a"], shared
    mine = [None]
    dist.scatter_object_list(mine, list(range(size)) if rank == 0 else None, 0)
    assert mine == [rank], mine


def works_and_futures(rank: int) -> None:
    size = dist.get_world_size()
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), torch.full((8,), 2.0 * size), "a future's callback")
    assert work.is_completed() and work.is_success()
    assert work.wait(timedelta(seconds=5))
    assert future.value()[0].data_ptr() == tensor.data_ptr()
    assert dist.barrier(async_op=True).get_future().wait() == []
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(20)]
    for work in reversed(works):
        work.wait()
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    assert backend.name() == "weft" and backend.size() == size and backend.rank() == rank


def completion_hooks(rank: int) -> None:
    """What hears of each call's end, as PyTorch's backend for NCCL has it."""
    heard = []
    group = dist.new_group()

    def hear(info) -> None:
        heard.append((str(info.op_type).rpartition(".")[2], info.seq,
                      info.active_duration.total_seconds() >= 0))

    group._register_on_completion_hook(hear)
    assert group._has_hooks()
    dist.all_reduce(torch.ones(4), group=group)
    dist.broadcast(torch.ones(4), 0, group=group, async_op=True)  # nobody keeps its work
    group._wait_for_pending_works()
    assert heard == [("ALLREDUCE", 1, True), ("BROADCAST", 2, True)], heard
    dist.barrier(group=group)
    dist.destroy_process_group(group)
    assert [name for name, *_ in heard] == ["ALLREDUCE", "BROADCAST", "BARRIER"], heard


def gradients_through_calls(rank: int) -> None:
    """PyTorch warns of them, though calls without gradients do not go through the fallback that
    does."""
    for name in ("allreduce_", "broadcast_", "_allgather_base_", "_reduce_scatter_base_"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "AutogradCPU"), name
    tensor = torch.ones(3, requires_grad=True) * 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.all_reduce(tensor)
        tensor.sum().backward()
    texts = [str(warning.message) for warning in caught]
    assert any("an autograd kernel was not registered" in text for text in texts), texts


def groups(rank: int) -> None:
    size = dist.get_world_size()
    evens = dist.new_group(list(range(0, size, 2)))
    pairs = [dist.new_group([r, r + 1]) for r in range(0, size - 1, 2)]
    if rank % 2 == 0:
        tensor = torch.full((2,), float(rank))
        dist.all_reduce(tensor, group=evens)
        same(tensor, torch.full((2,), float(sum(range(0, size, 2)))), "a group of even ranks")
    if size > 1:
        pair = pairs[rank // 2]
        tensor = torch.full((2,), float(rank))
        dist.broadcast(tensor, rank // 2 * 2 + 1, group=pair)
        same(tensor, torch.full((2,), float(rank // 2 * 2 + 1)), "a pair")
    world = dist.distributed_c10d._get_default_group()
    ranks = list(range(size - 1)) or [0]
    part = world.split_group(ranks, timedelta(seconds=30), None, "part", "of a test")
    assert (part is None) == (rank not in ranks), part
    if part is not None:
        tensor = torch.ones(3)
        part.allreduce([tensor]).wait()
        same(tensor, torch.full((3,), float(len(ranks))), "split_group")
    local = dist.new_group([rank], use_local_synchronization=True)
    dist.all_reduce(tensor := torch.ones(2), group=local)
    same(tensor, torch.ones(2), "a group of one")


def allocates(rank: int) -> None:
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    tensor = backend.allocate_tensor(100, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert tensor.shape == (100,) and tensor.dtype == torch.bfloat16
    tensor.fill_(1)
    dist.all_reduce(tensor)
    same(tensor, torch.full((100,), dist.get_world_size(), dtype=torch.bfloat16), "all_reduce")
    # From 64 KiB on the ranks of a host reduce it where it lies; it may go before the others know.
    for count in (1 << 15, 1 << 20, 3_000_001):
        tensor = backend.allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu"))
        tensor.copy_(torch.arange(count) % 1000 + rank)
        dist.all_reduce(tensor)
        ranks = dist.get_world_size()
        same(tensor, (torch.arange(count) % 1000) * ranks + ranks * (ranks - 1) / 2, "all_reduce")
        address = tensor.data_ptr()
        del tensor
        # What came back is used again, by one tensor at a time.
        again = [backend.allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu"))
                 for _ in range(2)]
        kept = [tensor for tensor in again if tensor.data_ptr() == address]
        assert len(kept) == 1 and kept[0].any(), "memory made anew, which is of zeroes"


def wrong_arguments(rank: int) -> None:
    def thrown(call) -> str:
        try:
            call()
        except RuntimeError as error:
            return str(error)
        raise AssertionError("nothing was thrown")

    assert "whose types differ" in thrown(
        lambda: dist.all_gather_into_tensor(torch.empty(4 * dist.get_world_size()),
                                            torch.ones(4, dtype=torch.int32)))
    text = thrown(lambda: dist.all_reduce(torch.ones(2, dtype=torch.uint16)))
    assert "sum is not defined for" in text and "UInt16" in text, text
    ones = torch.ones(2, dtype=torch.uint16)
    text = thrown(lambda: dist.all_reduce(
        torch.sparse_coo_tensor(torch.tensor([[0, 1]]), ones, (4,))))
    assert "sum is not defined for" in text and "UInt16" in text, text
    text = thrown(lambda: dist.all_to_all([torch.ones(1)] * dist.get_world_size(), []))
    assert "got 0 tensors" in text, text
    text = thrown(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND))
    assert "band is not defined for Float [2]" in text, text
    if dist.get_world_size() > 1:
        text = thrown(lambda: dist.recv(torch.ones(2), (rank + 1) % 2, tag=-3))
        assert "tag -3 is negative" in text, text


def gathers_rows(rank: int) -> None:
    size = dist.get_world_size()
    rows = [(7 * r) % 5 for r in range(size)]  # of rank 0: none
    tensors = [torch.full((rows[r], 3), float(r)) for r in range(size)]
    for known in (rows, None):
        gathered = weft.torch.all_gather_v(tensors[rank], known)
        for r in range(size):
            same(gathered[r], tensors[r], f"rows of rank {r}")
    with torch.device("meta"):  # as where a program makes its tensors on a GPU unless it says else
        gathered = weft.torch.all_gather_v(tensors[rank])
    for r in range(size):
        same(gathered[r], tensors[r], f"rows of rank {r}, with another default device")
    backwards = torch.arange(6.0).reshape(2, 3).t()  # not contiguous
    for part in weft.torch.all_gather_v(backwards):
        same(part, backwards, "rows that are not contiguous")
    for wrong, said in (([rows[rank]] * (size + 1), "entries for a group of"),
                        ([rows[rank] + 1] * size, "this rank's tensor has")):
        try:
            weft.torch.all_gather_v(tensors[rank], wrong)
        except ValueError as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"{wrong} was taken")


def exchanges(rank: int) -> None:
    size = dist.get_world_size()
    others = [r for r in range(size) if r != rank]
    sends = {r: torch.full((2,), float(10 * rank + r)) for r in others}
    receives = {r: torch.empty(2) for r in others}
    weft.torch.exchange(sends, receives)
    for r in others:
        same(receives[r], torch.full((2,), float(10 * r + rank)), f"from rank {r}")
    try:
        weft.torch.exchange({rank: torch.ones(1)}, {})
    except ValueError as error:
        assert "is no other rank" in str(error), error
    else:
        raise AssertionError("a message to oneself was taken")


def prioritises(rank: int) -> None:
    size = dist.get_world_size()
    group = dist.new_group()
    assert weft.torch.set_priority("high", group) == "normal"
    works = []
    with weft.torch.priority("low"):
        works.append(dist.all_reduce(slow := torch.ones(1 << 20), async_op=True))
        assert weft.torch.set_priority("low") == "low"
    assert weft.torch.set_priority("normal") == "normal"  # as it was before
    works.append(dist.all_reduce(fast := torch.ones(1000), group=group, async_op=True))
    for work in works:
        work.wait()
    same(slow, torch.full((1 << 20,), float(size)), "of low priority")
    same(fast, torch.full((1000,), float(size)), "of high priority")
    for call, said in ((lambda: weft.torch.set_priority("urgent"), "right are low, normal and high"),
                       (lambda: weft.torch.set_priority("high", dist.GroupMember.NON_GROUP_MEMBER),
                        "no member of the group")):
        try:
            call()
        except (RuntimeError, ValueError) as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"nothing was raised that says {said!r}")
    dist.destroy_process_group(group)


def threads_wait_for_one_work(rank: int) -> None:
    """And its future is completed meanwhile: what a data race would be seen in."""
    size, waits = dist.get_world_size(), []
    for _ in range(30):
        # Not contiguous: it is copied back once, by whoever sees the end first.
        tensor = torch.ones(100, 10).t()
        work = dist.all_reduce(tensor, async_op=True)
        future = work.get_future()
        threads = [threading.Thread(target=lambda: waits.append(work.wait())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        future.wait()
        same(tensor, torch.full((10, 100), float(size)), "waited for by threads")
    assert waits == [True] * 90, waits


def inputs_go_while_futures_are_asked_for(rank: int) -> None:
    """Whoever lets go of an input that only a call has takes the interpreter's lock, which this
    thread has while it asks for futures and whether works are completed."""
    size = dist.get_world_size()
    for _ in range(100):
        outputs = [torch.empty(4 * size) for _ in range(16)]
        works = [dist.all_gather_into_tensor(output, torch.ones(4), async_op=True)
                 for output in outputs]
        futures = [work.get_future() for work in works]
        while not all(work.is_completed() for work in works):
            pass
        for future, output in zip(futures, outputs, strict=True):
            future.wait()
            same(output, torch.ones(4 * size), "all_gather_into_tensor")


def profiled(rank: int) -> None:
    """Each kind's event record_param_comms has its numbers, as PyTorch's backend for NCCL counts."""
    size, after = dist.get_world_size(), (rank + 1) % dist.get_world_size()
    before, root = (rank - 1) % size, size - 1
    whole, part = torch.ones(6 * size), torch.ones(6)
    parts = list(whole.split(6))
    uneven = [r + 1 for r in range(size)]  # rows to rank r; from each the own number
    calls = {  # elements in, elements out, what else its event has
        "all_reduce": (lambda: dist.all_reduce(part), 6, 6, {}),
        "broadcast": (lambda: dist.broadcast(part, root), 6, 6, {}),
        "reduce": (lambda: dist.reduce(part, root), 6, 6, {}),
        "all_gather": (lambda: dist.all_gather_into_tensor(whole, part), 6, 6 * size, {}),
        "all_gather of a list": (lambda: dist.all_gather(parts, part), 6, 6 * size, {}),
        "reduce_scatter": (lambda: dist.reduce_scatter_tensor(part, whole), 6 * size, 6, {}),
        "reduce_scatter of a list": (lambda: dist.reduce_scatter(part, parts), 6 * size, 6, {}),
        "gather": (lambda: dist.gather(part, parts if rank == root else None, root), 6, 6 * size, {}),
        "scatter": (lambda: dist.scatter(part, parts if rank == root else None, root), 6 * size, 6, {}),
        "all_to_all": (
            lambda: dist.all_to_all_single(torch.empty(size * (rank + 1)), torch.ones(sum(uneven)),
                                           [rank + 1] * size, uneven),
            sum(uneven), size * (rank + 1),
            {"In split size": str(uneven), "Out split size": str([rank + 1] * size)}),
        "barrier": (dist.barrier, 0, 0, {"dtype": "Byte"}),
    }
    if size > 1:
        messages = []
        calls["send"] = (lambda: messages.append(dist.isend(part, after)), 6, 6, {"Dst Rank": after})
        calls["recv"] = (lambda: messages.append(dist.irecv(torch.empty(6), before)), 6, 6,
                         {"Src Rank": before})
        calls["barrier "] = (lambda: [work.wait() for work in messages] and dist.barrier(), 0, 0,
                             {"dtype": "Byte"})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for call, *_ in calls.values():
            call()
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        profile.export_chrome_trace(trace.name)
        written = json.loads(pathlib.Path(trace.name).read_text())
    events = [event["args"] for event in written["traceEvents"]
              if event["name"] == "record_param_comms"]
    assert len(events) == len(calls), events
    for (name, (_, inside, outside, more)), event in zip(calls.items(), events, strict=True):
        wanted = {"Collective name": name.split()[0], "In msg nelems": inside,
                  "Out msg nelems": outside, "Group size": size, "dtype": "Float", **more}
        got = {key: event.get(key) for key in wanted}
        assert got == wanted, f"{name}: {got}, where {wanted} is right"


EVERYTHING = (reduced_types, premultiplied_sum, beyond_gloo, moved_types, shapes, large, non_contiguous,
              uneven_lists, gathers_rows, exchanges, prioritises, coalesced, sparse, objects, works_and_futures,
              completion_hooks, gradients_through_calls, threads_wait_for_one_work,
              inputs_go_while_futures_are_asked_for, profiled, groups, allocates, wrong_arguments)


class Collectives(unittest.TestCase):
    pass


def _add(check, size: int) -> None:
    def test(self):
        installed.fork_ranks(size, check)

    setattr(Collectives, f"test_{check.__name__}_on_{size}_ranks", test)


for _check in EVERYTHING:
    for _size in SIZES:
        _add(_check, _size)
for _size in SIZES[1:]:
    _add(messages, _size)

if __name__ == "__main__":
    unittest.main()

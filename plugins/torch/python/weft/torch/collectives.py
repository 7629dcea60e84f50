"""Collectives that torch.distributed has no one call for."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
import torch.distributed as dist

from weft.torch import _library

__all__ = ["Priority", "all_gather_v", "exchange", "priority", "set_priority"]

Priority = Literal["low", "normal", "high"]


def set_priority(priority: Priority, group: dist.ProcessGroup | None = None) -> Priority:
    """Says how urgent the calls of `group` (None: the default one) are from now on.

    Calls under way at once, of all groups, share the links: more urgent ones go first, and others
    yield the links to them piece by piece. A call's meaning does not change. All ranks of the group
    should say the same, or the least urgent of them sets the pace.

    Returns the priority so far, "normal" at first. Raises RuntimeError for a word that is no
    priority, and for a group of another backend or one that was destroyed; ValueError where there
    is no default group, or this process is no member.
    """
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("there is no default group yet, or this process is no member of the group")
    return _library.operators().set_priority(group.boxed(), priority)


@contextlib.contextmanager
def priority(priority: Priority, group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """set_priority() for the calls that are made within a `with`."""
    before = set_priority(priority, group)
    try:
        yield
    finally:
        set_priority(before, group)


def all_gather_v(tensor: torch.Tensor, rows: Sequence[int] | None = None,
                 group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    """Gathers tensors whose first dimensions differ between ranks.

    tensor: of this rank, [rows of this rank, ...]; the other dimensions and the type are the same
        on all ranks. May have no rows.
    rows: of every rank of the group, where the caller knows them; else one small collective more.
    Returns the tensors of all ranks, by group rank: [rows[i], ...], views of one buffer.

    Raises ValueError where `rows` does not fit the group or this rank's tensor, and what the
    backend raises, which names the rank that differs.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError("this process is no member of the group")
    if tensor.dim() == 0:
        raise ValueError("a tensor of no dimension has no rows: give [1]")
    if rows is None:
        counts = torch.empty(size, dtype=torch.int64, device=tensor.device)
        own = torch.tensor([tensor.shape[0]], device=tensor.device)
        dist.all_gather_into_tensor(counts, own, group=group)
        rows = counts.tolist()
    if len(rows) != size:
        raise ValueError(f"rows has {len(rows)} entries for a group of {size} ranks")
    if min(rows) < 0 or rows[rank] != tensor.shape[0]:
        raise ValueError(f"rows[{rank}] is {rows[rank]}, and this rank's tensor has "
                         f"{tensor.shape[0]} rows")
    whole = tensor.new_empty((sum(rows), *tensor.shape[1:]))
    parts = list(whole.split(list(rows)))
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return parts


def exchange(sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor],
             group: dist.ProcessGroup | None = None, tag: int = 0) -> None:
    """Sends to some ranks and receives from some, all at once; returns when all are done.

    sends: by group rank of the receiver; tensors in host memory, of any shape and type.
    receives: by group rank of the sender; filled in place. Of the same number of bytes as the tensor
        that the sender has for this rank: shapes and types are not sent along, so that [2, 3]
        fills [6], row by row.
    tag: messages of one pair of ranks match by it, and among equal tags in their order.

    All messages are posted before any is waited for, so that no order of ranks can deadlock. Every
    send needs its receive on the other side. Other calls of the group may be under way.

    Raises ValueError for a rank that is not of the group, or this rank itself; and
    torch.distributed.DistBackendError, which names the rank, where a peer is gone, sends another
    number of bytes, or does not take part within the group's timeout.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    for peer in (*sends, *receives):
        if not 0 <= peer < size or peer == rank:
            raise ValueError(f"{peer} is no other rank of a group of {size}; this is rank {rank}")
    operations = [dist.P2POp(dist.irecv, tensor, group=group, tag=tag, group_peer=peer)
                  for peer, tensor in receives.items()]
    operations += [dist.P2POp(dist.isend, tensor, group=group, tag=tag, group_peer=peer)
                   for peer, tensor in sends.items()]
    if not operations:
        return
    for work in dist.batch_isend_irecv(operations):
        work.wait()

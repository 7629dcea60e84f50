"""Context parallel for tensors in host memory.

torch.distributed.tensor.experimental.context_parallel splits a sequence over the ranks of a mesh and
passes keys and values around a ring. PyTorch 2.11 knows it for the attention kernels of GPUs only;
after enable() scaled_dot_product_attention() on the CPU takes part in it too, with any backend:

    import weft.torch.context_parallel

    weft.torch.context_parallel.enable()
    with context_parallel(mesh, buffers=[x, y], buffer_seq_dims=[1, 1]):
        loss = model(x, y)

As on GPUs, attention in it is causal, has no mask, and queries are as many as keys.
"""

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental._context_parallel import _attention as _ring

__all__ = ["enable"]

_aten = torch.ops.aten
_FORWARD = _aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_SEQUENCE = 2  # the dimension: queries, keys and values are [batch, heads, sequence, width]


def enable() -> None:
    """Makes context_parallel() take the CPU's attention kernel; again: does nothing. Call it before
    context_parallel()."""
    table: dict[object, object] = _ring.custom_ops  # type: ignore[assignment]  # as of one function
    table[_FORWARD] = _forward
    table[_BACKWARD] = _backward


def _forward(_call, arguments, named) -> tuple[DTensor, ...]:
    query, key, value, dropout, causal, scale = _bound(arguments, named, tensors=3)
    outputs = _ring._templated_ring_attention(
        _group_of(query), _SEQUENCE, _FORWARD, _local(query), _local(key), _local(value),
        is_causal=causal, dropout_p=dropout, scale=scale)
    return tuple(_distributed(output, query) for output in outputs)


def _backward(_call, arguments, named) -> tuple[DTensor, ...]:
    *tensors, dropout, causal, scale = _bound(arguments, named, tensors=6)
    gradient, query, key, value, output, logsumexp = map(_local, tensors)
    like = tensors[1]
    gradients = _ring._templated_ring_attention_backward(
        _group_of(like), _SEQUENCE, _BACKWARD, gradient, "grad_out", query, key, value, output,
        logsumexp, is_causal=causal, dropout_p=dropout, scale=scale)
    return tuple(_distributed(gradient, like) for gradient in gradients)


def _bound(arguments: tuple, named: dict, tensors: int) -> tuple:
    """The tensors, then probability of dropout, whether causal, and scale."""
    given = arguments[tensors:]
    dropout = given[0] if given else 0.0
    causal = given[1] if len(given) > 1 else False
    if named.get("attn_mask") is not None:
        raise NotImplementedError("context parallel takes no attn_mask: only is_causal=True")
    return (*arguments[:tensors], dropout, causal, named.get("scale"))


def _group_of(tensor: DTensor):
    return tensor.device_mesh.get_group()


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _distributed(tensor: torch.Tensor, like: DTensor) -> DTensor:
    return DTensor.from_local(tensor, like.device_mesh, like.placements, run_check=False)

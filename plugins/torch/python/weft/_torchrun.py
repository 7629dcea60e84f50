"""torchrun's rendezvous handlers, by the entry points torchrun.handlers.

PyTorch loads these while it imports its own torch.distributed.elastic.rendezvous, which many of its
modules do: nothing of PyTorch can be imported here yet. What stands behind a handler is imported
when torchrun makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def store() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Of --rdzv-backend=weft."""
    return _over_store


def driver() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Of --rdzv-backend=weft-driver."""
    return _under_driver


def _over_store(params: RendezvousParameters) -> RendezvousHandler:
    from weft.torch.elastic import create

    return create(params)


def _under_driver(params: RendezvousParameters) -> RendezvousHandler:
    from weft.torch.driver import create

    return create(params)

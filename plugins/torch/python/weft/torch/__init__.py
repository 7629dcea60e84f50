"""PyTorch's backend "weft" for tensors in host memory.

    import torch.distributed as dist
    import weft.torch                        # may be left out where the wheel is installed

    dist.init_process_group("weft")          # or "cpu:weft,cuda:nccl"

Importing this module registers the backend, and the stores of init_method="weft://..." and
"redis://...". docs/torch.md says what it does, and where it differs from Gloo.
"""

import json
from typing import TypedDict

from weft import __version__
from weft._registration import register
from weft.torch import _library
from weft.torch._backend import Options
from weft.torch.collectives import all_gather_v, exchange, priority, set_priority

_library.check_torch()
register()

from weft.torch import rendezvous as _rendezvous  # noqa: E402

__all__ = ["CallStatistics", "GroupStatistics", "LinkStatistics", "Options", "__version__",
           "all_gather_v", "exchange", "priority", "set_priority", "statistics"]


class CallStatistics(TypedDict):
    """Of one kind of call."""

    calls: int  # that have ended: once wait(), is_completed() or the future has seen it
    failures: int  # among them
    bytes: int  # of this rank's tensors
    seconds: float  # from call to completion, added up


class LinkStatistics(TypedDict):
    """Of one connection, which carries messages one way; groups of one default group share them."""

    peer: int  # rank in the default group that was made first
    sends: bool  # to the peer; else from it
    transport: str  # "shm", "tcp", "multipath", "verbs", "ucx"
    messages: int  # that have ended
    bytes: int  # of messages that ended well
    outstanding: int  # messages that are posted and have not ended
    waiting_for_peer: int  # among them those whose other end is not posted
    repeats: int  # packets or pieces that were sent again, sockets that were replaced
    rtt_us: float | None  # smoothed; None where the transport does not measure it
    text: str  # all of it, for people


class GroupStatistics(TypedDict):
    group: str  # its name
    rank: int  # of this process in it
    ranks: list[int]  # of its members, in the default group that was made first
    links: list[LinkStatistics]
    calls: dict[str, CallStatistics]  # by kind: "all_reduce"


def statistics() -> list[GroupStatistics]:
    """What this process's groups have done so far; one object a group that is alive. [] where none
    is. Raises ImportError where the library does not load."""
    return json.loads(_library.operators().statistics())

"""PyTorch's backend "weft" for tensors in host memory.

    import torch.distributed as dist
    import weft.torch                        # may be left out where the wheel is installed

    dist.init_process_group("weft")          # or "cpu:weft,cuda:nccl"

Importing this module registers the backend, and the stores of init_method="weft://..." and
"redis://...". docs/torch.md says what it does, and where it differs from Gloo.
"""

import json

from weft import __version__
from weft._registration import register
from weft.torch import _library
from weft.torch._backend import Options
from weft.torch.collectives import all_gather_v, exchange, priority, set_priority

_library.check_torch()
register()

from weft.torch import rendezvous as _rendezvous  # noqa: E402

__all__ = ["Options", "__version__", "all_gather_v", "exchange", "priority", "set_priority",
           "statistics"]


def statistics() -> list[dict]:
    """What this process's groups have done so far; one object a group that is alive.

    group: its name. rank: of this process in it. ranks: of its members in the default group
    that was made first, which shrink_group() may have replaced.
    links: a line for each connection, for people. calls: by kind of call ("all_reduce") calls that
    have ended, failures among them, bytes of this rank's tensors, and seconds from call to
    completion, added up. A call counts once somebody has seen its end: wait(), is_completed() or
    its future.
    """
    return json.loads(_library.operators().statistics())

"""Makes the backend of a group, as torch.distributed asks for it."""

import atexit
import dataclasses
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from weft.torch import _library

_at_exit_registered = False


@dataclasses.dataclass
class Options:
    """pg_options of init_process_group() and new_group() for the backend "weft".

    settings: settings of Weft by name, as docs/settings.md lists them; they override the
        environment's. Of a default group they hold for all groups that share its connections:
        Options(settings={"transport": "tcp", "tcp.sockets": 4}). Of those groups each may have its
        own collective.algorithm, collective.algorithm_by_kind, collective.timeout,
        verify.schedules and verify.buffers; others are refused, unless the default group has them.
    """

    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def pairs(self) -> list[str]:
        return [f"{name}={_text(value)}" for name, value in self.settings.items()]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.6f}s"
    return str(value)


def create(options, backend_options):
    """The c10d.Backend of one group; `options` are a _DistributedBackendOptions.

    `backend_options`: Options or None. Those of PyTorch's backends count as none: PyTorch gives all
    backends of a group the same ones, and of "cuda:nccl,cpu:weft" the second one NCCL's, even where
    the program gives none.

    Raises TypeError for anything else, torch.distributed.DistBackendError where the processes do
    not meet or a setting is wrong, ImportError where the library does not load.
    """
    if isinstance(backend_options, torch._C._distributed_c10d.Backend.Options):
        backend_options = None
    if backend_options is not None and not isinstance(backend_options, Options):
        raise TypeError(f"the backend weft takes pg_options of type weft.torch.Options, not "
                        f"{type(backend_options).__module__}.{type(backend_options).__qualname__}")
    operators = _library.operators()
    _shut_down_at_exit()
    carrier = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    # None while the default group itself is made. shrink_group() replaces it.
    default_group = dist.group.WORLD if options.global_ranks_in_group else None
    operators.create_group(
        carrier.boxed(), None if default_group is None else default_group.boxed(),
        str(options.group_id), list(options.global_ranks_in_group),
        max(1, int(options.timeout.total_seconds() * 1000)),
        [] if backend_options is None else backend_options.pairs())
    return carrier._get_backend(torch.device("cpu"))


def _shut_down_at_exit() -> None:
    """Before the interpreter goes: works end, threads are joined, and tensors are let go."""
    global _at_exit_registered
    if not _at_exit_registered:
        _at_exit_registered = True
        atexit.register(_library.operators().shut_down_all)

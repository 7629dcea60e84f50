"""Names in PyTorch's tables: the backend weft, the stores weft:// and redis://. What stands behind
them is imported, and the library opened, when somebody asks for it."""

import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

NAME = "weft"


def register() -> None:
    """Registers all of them; again: does nothing."""
    if NAME.upper() in dist.Backend._plugins:
        return
    # A list: of a text each letter would become a device.
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    register_rendezvous_handler("weft", _weft_store)
    register_rendezvous_handler("redis", _redis_store)


def _create(options, backend_options):
    from weft.torch._backend import create

    return create(options, backend_options)


def _weft_store(url, **named):
    from weft.torch import rendezvous

    return rendezvous.weft(url, **named)


def _redis_store(url, **named):
    from weft.torch import rendezvous

    return rendezvous.redis(url, **named)

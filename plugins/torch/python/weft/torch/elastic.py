"""torchrun's rendezvous over Weft's store:

    torchrun --nnodes=2 --rdzv-backend=weft --rdzv-endpoint=host:29500 --rdzv-id=run-17 train.py

The agent whose host the endpoint names serves the store there, the others are its clients; where a
store is being served already (weft-store), all are. The secret comes from WEFT_JOB_SECRET; on other
addresses than loopback a store needs one. --rdzv-conf is_host=true|false overrules the guess.
Installing the wheel registers it (weft/_torchrun.py).
"""

import os
from datetime import timedelta

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.utils import (
    _matches_machine_hostname,
    parse_rendezvous_endpoint,
)

from weft.store import Client, StoreError
from weft.torch.rendezvous import Store, serve

_DEFAULT_PORT = 29500
_DEFAULT_TIMEOUT_S = 60


class _Backend(C10dRendezvousBackend):
    """The state of a rendezvous, under one key of the store."""

    @property
    def name(self) -> str:
        return "weft"


def create(params: RendezvousParameters) -> RendezvousHandler:
    """Meets at the store at params.endpoint, which this agent serves where the endpoint is its own.
    Raises RendezvousConnectionError where no store answers within read_timeout."""
    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=_DEFAULT_PORT)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    secret = os.environ.get("WEFT_JOB_SECRET", "")
    is_host = params.get_as_bool("is_host")
    timeout = params.get_as_int("read_timeout", _DEFAULT_TIMEOUT_S) or _DEFAULT_TIMEOUT_S
    try:
        if is_host or (is_host is None and _matches_machine_hostname(host)):
            _serve_unless_served(address, secret, required=bool(is_host))
        client = Client(address, secret=secret, job=params.run_id[:96], connect_timeout=timeout)
    except StoreError as error:
        raise RendezvousConnectionError(str(error)) from error
    store = Store(client, timedelta(seconds=timeout))
    return create_handler(store, _Backend(store, params.run_id), params)


def _serve_unless_served(address: str, secret: str, required: bool) -> None:
    try:
        serve(address, secret)
    except StoreError as error:
        if required or error.code != "ALREADY_EXISTS":
            raise

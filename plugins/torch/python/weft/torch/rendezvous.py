"""PyTorch's rendezvous over Weft's store, or over Redis, as `import weft.torch` registers both:

    torch.distributed.init_process_group("gloo", init_method="weft://host:29500")
    torch.distributed.init_process_group("gloo", init_method="weft://")         # under weft-run
    torch.distributed.init_process_group("gloo", init_method="redis://host:6379?job=run-17")

weft://host:port    rank 0 serves a store there, as with tcp://; with ?serve=0 a store that runs
                    already (weft-store) is used. On other addresses than loopback it needs a secret.
weft://             the store that weft-run serves: WEFT_STORE.
redis://[:password@]host:port
                    keys are kept apart by ?job=, which every run needs anew: a Redis remembers.

rank and world_size come from the call, the query or the environment (RANK, WORLD_SIZE); the secret
from WEFT_JOB_SECRET, or ?secret=; the job from ?job=, WEFT_JOB_ID or TORCHELASTIC_RUN_ID;
?patience=30s is how long a store that is gone may take to come back (2s).
"""

import atexit
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import ParamSpec, TypeVar
from urllib.parse import ParseResult, unquote, urlparse

import torch.distributed as dist

from weft.store.client import Client, Server, StoreError, parse_duration

_DEFAULT_TIMEOUT = timedelta(seconds=300)  # c10d::Store::kDefaultTimeout
_DRAIN_S = 5.0

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")

# c10d holds the C++ half of a store, whose calls then need the Python half: it stays.
_stores: list["Store"] = []
_servers: list[Server] = []


def _translated(call: Callable[_Arguments, _Value]) -> Callable[_Arguments, _Value]:
    """Errors as c10d's own stores raise them."""

    @functools.wraps(call)
    def translate(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Value:
        try:
            return call(*arguments, **named)
        except StoreError as error:
            kind = dist.DistNetworkError if error.code == "UNAVAILABLE" else dist.DistStoreError
            raise kind(str(error)) from error

    return translate


class Store(dist.Store):
    """A torch.distributed.Store over a weft.store.Client, for Python and for C++ backends.

    Keys are text, values text or bytes, and what is read are bytes; waits are bounded by the store's
    timeout, where none is given. Raises torch.distributed.DistNetworkError where the server is lost,
    and DistStoreError for all else: a wait whose time has run out, a value that is no number.
    """

    timeout: timedelta  # PyTorch's, whose stubs lack it

    def __init__(self, client: Client, timeout: timedelta = _DEFAULT_TIMEOUT):
        super().__init__()
        self._client = client
        self.set_timeout(timeout)
        _stores.append(self)

    def _patience(self, timeout: timedelta | None = None) -> float | None:
        seconds = (self.timeout if timeout is None else timeout).total_seconds()
        return None if seconds <= 0 else seconds

    @_translated
    def set(self, key: str, value: str | bytes) -> None:
        self._client.set(key, value)

    @_translated
    def get(self, key: str) -> bytes:
        """Waits until the key is there."""
        return self._client.get(key, self._patience())

    @_translated
    def add(self, key: str, amount: int) -> int:
        """The number afterwards; a key that is not there counts as 0."""
        return self._client.add(key, amount)

    @_translated
    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Sets `desired` where the key holds `expected`, empty: is not there; what it then holds."""
        return self._client.compare_set(key, expected, desired)

    @_translated
    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        return self._client.check(keys)

    @_translated
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Until all are there."""
        self._client.wait(keys, self._patience(timeout))

    @_translated
    def append(self, key: str, value: str | bytes) -> None:
        self._client.append(key, value)

    @_translated
    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Waits until all are there; their values, in the order of the keys."""
        return self._client.multi_get(keys, self._patience())

    @_translated
    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        self._client.multi_set(keys, values)

    @_translated
    def delete_key(self, key: str) -> bool:
        """Whether it was there."""
        return self._client.delete(key)

    @_translated
    def num_keys(self) -> int:
        return self._client.key_count()

    # C++ looks for these two under the names that they have there.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "Store":
        """Over the same connection, with a timeout of its own."""
        return Store(self._client, self.timeout)

    # ---- Beyond c10d's

    @_translated
    def all_gather(self, key: str, rank: int, size: int, value: str | bytes,
                   timeout: timedelta | None = None) -> list[bytes]:
        """Everybody's values, in rank order, in one round trip; a key serves once."""
        return self._client.all_gather(key, rank, size, value, self._patience(timeout))

    @_translated
    def barrier(self, key: str, rank: int, size: int, timeout: timedelta | None = None) -> None:
        """Until `size` ranks have called it; a key serves once."""
        self._client.barrier(key, rank, size, self._patience(timeout))


def _query(url: ParseResult) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in url.query.split("&") if pair)
    return {name: unquote(value) for name, _, value in pairs}


def _number(query: dict[str, str], name: str, variable: str) -> int:
    text = query.get(name, os.environ.get(variable, ""))
    if not text.lstrip("-").isdigit() or int(text) < 0:
        raise ValueError(f"weft rendezvous: {name} is {text!r}; pass {name}=, or set {variable}")
    return int(text)


def _job(query: dict[str, str]) -> str:
    return (query.get("job") or os.environ.get("WEFT_JOB_ID")
            or os.environ.get("TORCHELASTIC_RUN_ID") or "")


def _known(scheme: str, query: dict[str, str], names: set[str]) -> None:
    # use_libuv is of TCPStore, and harmless.
    for name in query.keys() - names - {"rank", "world_size", "job", "use_libuv"}:
        raise ValueError(f"{scheme}:// knows no {name}=; right are "
                         f"{', '.join(sorted(names | {'rank', 'world_size', 'job'}))}")


def weft(url: str, timeout: timedelta = _DEFAULT_TIMEOUT,
         **_: object) -> Iterator[tuple[Store, int, int]]:
    """What init_method="weft://..." makes: store, rank, size, once."""
    parts = urlparse(url)
    query = _query(parts)
    _known("weft", query, {"serve", "secret", "patience"})
    rank = _number(query, "rank", "RANK")
    size = _number(query, "world_size", "WORLD_SIZE")
    secret = query.get("secret", os.environ.get("WEFT_JOB_SECRET", ""))
    address = parts.netloc
    if not address:
        address = os.environ.get("WEFT_STORE", "")
        if not address:
            raise ValueError("weft:// without an address is for ranks of weft-run: WEFT_STORE is "
                             "not set; else weft://host:port")
    elif parts.port is None:
        raise ValueError(f"weft://{address}: a port is missing; right is weft://host:29500")
    elif rank == 0 and query.get("serve", "1") != "0":
        try:
            serve(address, secret)
        except StoreError as error:
            hint = "; with ?serve=0 a store that runs there is used"
            raise dist.DistNetworkError(
                f"{error}{hint if error.code == 'ALREADY_EXISTS' else ''}") from error
    patience = parse_duration(query.get("patience", os.environ.get("WEFT_STORE_PATIENCE", "2s")))
    store = _connected(address, timeout, secret=secret, job=_job(query)[:96], rank=rank,
                       generation=int(os.environ.get("WEFT_GENERATION", "0")),
                       reconnect=patience)
    yield store, rank, size
    raise RuntimeError("a weft:// rendezvous is made once")


def redis(url: str, timeout: timedelta = _DEFAULT_TIMEOUT,
          **_: object) -> Iterator[tuple[Store, int, int]]:
    """What init_method="redis://..." makes: store, rank, size, once."""
    parts = urlparse(url)
    query = _query(parts)
    _known("redis", query, set())
    rank = _number(query, "rank", "RANK")
    size = _number(query, "world_size", "WORLD_SIZE")
    job = _job(query)
    if not job:
        raise ValueError("redis:// needs ?job=NAME, another for every run: a Redis remembers what "
                         "earlier ones left")
    host = parts.hostname or "127.0.0.1"
    address = f"[{host}]" if ":" in host else host
    store = _connected(f"{address}:{parts.port or 6379}", timeout,
                       secret=unquote(parts.password or ""), job=job, rank=rank, redis=True)
    yield store, rank, size
    raise RuntimeError("a redis:// rendezvous is made once")


def serve(address: str, secret: str) -> None:
    """A store's server in this process, until it ends."""
    _servers.append(Server(address, secret=secret))


def _connected(address: str, timeout: timedelta, **options) -> Store:
    try:
        client = Client(address, connect_timeout=timeout.total_seconds(), **options)
    except StoreError as error:
        raise dist.DistNetworkError(str(error)) from error
    return Store(client, timeout)


@atexit.register
def _leave() -> None:
    """Ours first, then whom we serve: they may still wait for what is here."""
    for store in _stores:
        store._client.close()
    for server in _servers:
        server.stop(_DRAIN_S)

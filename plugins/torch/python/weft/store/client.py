"""The store's clients and server, over libweft_store.so (store_library.h).

Keys are str or bytes, values bytes or str (UTF-8). Every call lets other Python threads run. A call
fails with StoreError, whose `code` is the name of the absl::StatusCode, or with StoreTimeout.
"""

import ctypes
import enum
import os
import pathlib
import re
import socket
import struct
import threading

CODES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
         "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
         "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
         "UNAUTHENTICATED")


class StoreError(RuntimeError):
    def __init__(self, code: str, message: str):
        super().__init__(f"weft store: {message} ({code})")
        self.code = code


class StoreTimeout(StoreError, TimeoutError):
    """The time given to a call ran out."""


class Op(enum.IntEnum):
    """StoreOp, in store_protocol.h."""

    SET = 1
    GET = 2
    ADD = 3
    COMPARE_SET = 4
    DELETE = 5
    KEY_COUNT = 6
    CHECK = 7
    WAIT = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    BARRIER = 12
    ALL_GATHER = 13
    WATCH = 17
    GATHER = 18


class _Options(ctypes.Structure):
    _fields_ = [("address", ctypes.c_char_p), ("secret", ctypes.c_char_p),
                ("job", ctypes.c_char_p), ("name", ctypes.c_char_p), ("host", ctypes.c_char_p),
                ("redis", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("generation", ctypes.c_int32), ("connect_timeout", ctypes.c_double),
                ("reconnect", ctypes.c_double), ("silence", ctypes.c_double)]


class _Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


_library = None
_library_lock = threading.Lock()


def _load() -> ctypes.CDLL:
    global _library
    with _library_lock:
        if _library is None:
            folder = pathlib.Path(__file__).resolve().parent.parent / "lib"
            path = os.environ.get("WEFT_STORE_LIBRARY", str(folder / "libweft_store.so"))
            # CDLL, not PyDLL: calls are made without the interpreter's lock.
            library = ctypes.CDLL(path)
            pointer, text = ctypes.c_void_p, ctypes.POINTER(_Text)
            library.weft_store_open.argtypes = [ctypes.POINTER(_Options), ctypes.POINTER(pointer),
                                                text]
            library.weft_store_close.argtypes = [pointer]
            library.weft_store_close.restype = None
            library.weft_store_call.argtypes = [
                pointer, ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
                ctypes.c_size_t, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32, ctypes.c_double,
                ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_uint32), text]
            library.weft_store_serve.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32,
                                                 ctypes.c_char_p, ctypes.POINTER(pointer), text]
            library.weft_store_stop.argtypes = [pointer, ctypes.c_double]
            library.weft_store_stop.restype = None
            library.weft_store_free.argtypes = [pointer]
            library.weft_store_free.restype = None
            _library = library
    return _library


def _take(text: _Text) -> bytes:
    data = ctypes.string_at(text.data, text.size)
    _load().weft_store_free(text.data)
    return data


def _check(code: int, text: _Text) -> None:
    if code == 0:
        return
    message = _take(text).decode(errors="replace")
    name = CODES[code] if code < len(CODES) else str(code)
    raise (StoreTimeout if name == "DEADLINE_EXCEEDED" else StoreError)(name, message)


def _bytes(text) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _pack(texts) -> bytes:
    parts = []
    for text in texts:
        data = _bytes(text)
        parts += [struct.pack("<I", len(data)), data]
    return b"".join(parts)


def _unpack(data: bytes, count: int) -> list[bytes]:
    texts, at = [], 0
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4:at + 4 + size])
        at += 4 + size
    return texts


def parse_duration(text: str) -> float:
    """Seconds of "2s", "500ms", "1m30s"."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    parts = re.findall(r"([0-9.]+)(h|ms|us|ns|m|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration; right are 500ms, 2s, 1m30s")
    return sum(float(number) * units[unit] for number, unit in parts)


_WAITS = (Op.GET, Op.WAIT, Op.MULTI_GET, Op.BARRIER, Op.ALL_GATHER, Op.GATHER, Op.WATCH)


def _interruptible(call) -> int:
    """call(), such that a signal's handler runs at once, and its exception ends the wait.

    Handlers run in the main thread, which must not sleep in C for that: its calls are made by
    another one. What is interrupted goes on there until it ends by itself; an arrival at a barrier
    counts.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    codes: list[int] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run():
        try:
            codes.append(call())
        except BaseException as error:  # noqa: BLE001 -- the waiting thread raises it
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    done.wait()
    if errors:
        raise errors[0]
    return codes[0]


def _seconds(timeout) -> float:
    return -1.0 if timeout is None else max(float(timeout), 0.0)


class Client:
    """A connection to a store. Thread-safe; `timeout` is in seconds, None: for ever.

    `address` is "host:port" or "unix:NAME"; the store's host counts as gone when nothing has come
    from it for `silence` seconds. After os.fork() it is the parent's alone.
    """

    def __init__(self, address: str, *, secret: str = "", job: str = "", rank: int = -1,
                 generation: int = 0, connect_timeout: float | None = 30.0,
                 reconnect: float = 2.0, silence: float = 20.0, redis: bool = False):
        self._handle = None
        self._calls = 0
        self._lock = threading.Lock()
        name = f"rank {rank} pid {os.getpid()}" if rank >= 0 else f"pid {os.getpid()}"
        options = _Options(address.encode(), secret.encode(), job.encode(), name.encode(),
                           socket.gethostname().encode(), int(redis), rank, generation,
                           _seconds(connect_timeout), reconnect, silence)
        handle, error = ctypes.c_void_p(), _Text()
        library = _load()
        _check(_interruptible(lambda: library.weft_store_open(
            ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error))), error)
        self._handle = handle
        self._leave = _load().weft_store_close  # also when the interpreter ends

    @classmethod
    def from_environment(cls, connect_timeout: float | None = 300.0) -> "Client":
        """The store of a rank of weft-run (WEFT_STORE)."""
        get = os.environ.get
        address = get("WEFT_STORE")
        if not address:
            raise ValueError("WEFT_STORE is not set: this process is no rank of weft-run")
        return cls(address, secret=get("WEFT_JOB_SECRET", ""),
                   job=get("WEFT_JOB_ID", "")[:96], rank=int(get("RANK", "-1")),
                   generation=int(get("WEFT_GENERATION", "0")),
                   reconnect=parse_duration(get("WEFT_STORE_PATIENCE", "2s")),
                   connect_timeout=connect_timeout)

    def close(self) -> None:
        """Takes leave; not while calls are under way, which then keep it."""
        with self._lock:
            if self._handle is not None and self._calls == 0:
                self._leave(self._handle)
                self._handle = None

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self._leave(self._handle)

    def _call(self, op: Op, keys=(), values=(), number: int = 0, rank: int = 0, size: int = 0,
              timeout=0.0) -> tuple[int, list[bytes]]:
        for given, bits in ((number, 64), (rank, 32), (size, 32)):
            if not -(1 << bits - 1) <= given < 1 << bits - 1:  # ctypes would cut it off
                raise StoreError("INVALID_ARGUMENT", f"{op.name.lower()}: {given} does not fit into "
                                 f"{bits} bits")
        key_data, value_data = _pack(keys), _pack(values)
        number_out, count, out = ctypes.c_int64(), ctypes.c_uint32(), _Text()
        with self._lock:
            if self._handle is None:
                raise StoreError("FAILED_PRECONDITION", "this client is closed")
            self._calls += 1

        def call() -> int:
            try:
                return _load().weft_store_call(
                    self._handle, op, key_data, len(key_data), value_data, len(value_data), number,
                    rank, size, _seconds(timeout), ctypes.byref(number_out), ctypes.byref(count),
                    ctypes.byref(out))
            finally:
                with self._lock:
                    self._calls -= 1

        _check(_interruptible(call) if op in _WAITS else call(), out)
        return number_out.value, _unpack(_take(out), count.value)

    def set(self, key, value) -> None:
        self._call(Op.SET, [key], [value])

    def get(self, key, timeout=300.0) -> bytes:
        """Waits until the key is there."""
        return self._call(Op.GET, [key], timeout=timeout)[1][0]

    def add(self, key, amount: int) -> int:
        return self._call(Op.ADD, [key], number=amount)[0]

    def compare_set(self, key, expected, desired) -> bytes:
        """c10d's rule (store.h)."""
        return self._call(Op.COMPARE_SET, [key], [expected, desired])[1][0]

    def delete(self, key) -> bool:
        return self._call(Op.DELETE, [key])[0] != 0

    def key_count(self) -> int:
        return self._call(Op.KEY_COUNT)[0]

    def check(self, keys) -> bool:
        return self._call(Op.CHECK, keys)[0] != 0

    def wait(self, keys, timeout=300.0) -> None:
        self._call(Op.WAIT, keys, timeout=timeout)

    def append(self, key, value) -> None:
        self._call(Op.APPEND, [key], [value])

    def multi_get(self, keys, timeout=300.0) -> list[bytes]:
        return self._call(Op.MULTI_GET, keys, timeout=timeout)[1]

    def multi_set(self, keys, values) -> None:
        self._call(Op.MULTI_SET, keys, values)

    def barrier(self, key, rank: int, size: int, timeout=300.0) -> None:
        """Returns when `size` ranks have called it with this key; a key serves once."""
        self._call(Op.BARRIER, [key], rank=rank, size=size, timeout=timeout)

    def all_gather(self, key, rank: int, size: int, value, timeout=300.0) -> list[bytes]:
        """Everybody's values, in rank order; a key serves once."""
        return self._call(Op.ALL_GATHER, [key], [value], rank=rank, size=size,
                          timeout=timeout)[1]

    def gather(self, key, rank: int, size: int, root: int, value, timeout=300.0) -> list[bytes]:
        """As all_gather, for the root; the others get nothing, at once."""
        return self._call(Op.GATHER, [key], [value], number=root, rank=rank, size=size,
                          timeout=timeout)[1]

    def watch(self, key, known: int = 0, timeout=300.0) -> tuple[int, bytes | None]:
        """The key's version and value, once the version is not `known` (0: it is not there)."""
        version, values = self._call(Op.WATCH, [key], number=known, timeout=timeout)
        return version, values[0] if values else None


class Server:
    """A store's server, in a thread of this process, until stop()."""

    def __init__(self, listen: str = "127.0.0.1:0", *, secret: str = "",
                 open_to_unauthenticated: bool = False):
        self._handle = None
        self._owner = os.getpid()
        handle, text = ctypes.c_void_p(), _Text()
        description = f"{socket.gethostname()} pid {os.getpid()}"
        _check(_load().weft_store_serve(listen.encode(), secret.encode(), int(open_to_unauthenticated),
                                        description.encode(), ctypes.byref(handle),
                                        ctypes.byref(text)), text)
        self._handle = handle
        self.address = _take(text).decode()

    def stop(self, drain: float = 0.0) -> None:
        """Waits up to `drain` seconds for the clients to leave."""
        if self._handle is not None and self._owner == os.getpid():
            _load().weft_store_stop(self._handle, drain)
        self._handle = None

    def __del__(self):
        self.stop()

"""TCP transfers between hosts of a netns.Fabric, all driven by this one process.

A socket belongs to the namespace in which it was made, so nothing has to be started in the hosts, and
all transfers share one clock.
"""

import ctypes
import os
import selectors
import socket
import time

CLONE_NEWNET = 0x40000000
CHUNK = bytes(1 << 18)
_libc = ctypes.CDLL(None, use_errno=True)


class inside:
    """with inside("h3"): sockets are made in that namespace."""

    def __init__(self, name):
        self._name = name

    def __enter__(self):
        self._back = os.open("/proc/self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self._name}", os.O_RDONLY)
        self._set(there)
        os.close(there)

    def __exit__(self, *_):
        self._set(self._back)
        os.close(self._back)

    @staticmethod
    def _set(descriptor):
        if _libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


class Flow:
    """`after`: indices of flows that must have arrived first."""

    def __init__(self, source, target, size, sport, dport, after=()):
        self.source, self.target, self.size = source, target, size
        self.sport, self.dport, self.after = sport, dport, list(after)
        self.sent = self.received = 0
        self.ended = None  # seconds since the start, when the last byte arrived

    def row(self):
        """As the oracle wants it."""
        return [self.source, self.target, self.size, self.sport, self.dport, self.after]


def _listen(address, port, v6):
    listener = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(64)
    return listener


def connect(fabric, flows, v6=False) -> list:
    """Pairs of connected sockets (sender, receiver), in the order of the flows."""
    listeners, pairs = {}, []
    for flow in flows:
        key = flow.target, flow.dport
        address = fabric.address(flow.target, v6)
        if key not in listeners:
            with inside(f"h{flow.target}"):
                listeners[key] = _listen(address, flow.dport, v6)
        with inside(f"h{flow.source}"):
            sender = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sender.bind((fabric.address(flow.source, v6), flow.sport))
            sender.settimeout(20)
            sender.connect((address, flow.dport))
        listeners[key].settimeout(20)
        receiver, _ = listeners[key].accept()
        pairs.append((sender, receiver))
    for listener in listeners.values():
        listener.close()
    return pairs


def run(fabric, flows, patience=120, v6=False) -> float:
    """Carries the flows; fills in `ended`; returns when the last ended, in seconds."""
    pairs = connect(fabric, flows, v6)
    selector = selectors.DefaultSelector()
    for flow, (sender, receiver) in zip(flows, pairs):
        sender.setblocking(False)
        receiver.setblocking(False)
        selector.register(receiver, selectors.EVENT_READ, flow)
    start = time.monotonic()
    waiting = [(flow, sender) for flow, (sender, _) in zip(flows, pairs)]
    left = len(flows)
    into = bytearray(1 << 18)
    while left:
        ready = [pair for pair in waiting
                 if all(flows[other].ended is not None for other in pair[0].after)]
        for flow, sender in ready:
            selector.register(sender, selectors.EVENT_WRITE, flow)
        waiting = [pair for pair in waiting if pair not in ready]
        if time.monotonic() - start > patience:
            raise RuntimeError(f"{left} of {len(flows)} flows have not ended after {patience} s")
        for key, events in selector.select(1):
            if events & selectors.EVENT_WRITE:
                _send(selector, key.fileobj, key.data)
            elif _receive(key.fileobj, key.data, into):
                key.data.ended = time.monotonic() - start
                selector.unregister(key.fileobj)
                left -= 1
    for sender, receiver in pairs:
        sender.close()
        receiver.close()
    selector.close()
    return max(flow.ended for flow in flows)


def _send(selector, sender, flow):
    try:
        flow.sent += sender.send(memoryview(CHUNK)[:min(len(CHUNK), flow.size - flow.sent)])
    except BlockingIOError:
        return
    if flow.sent == flow.size:
        selector.unregister(sender)


def _receive(receiver, flow, into) -> bool:
    try:
        flow.received += receiver.recv_into(into)
    except BlockingIOError:
        return False
    return flow.received >= flow.size

"""TCP transfers between hosts of a netns.Fabric, all driven by this one process.

A socket belongs to the namespace in which it was made, so nothing has to be started in the hosts,
and all transfers share one clock.
"""

import ctypes
import os
import selectors
import socket
import struct
import time

CLONE_NEWNET = 0x40000000
CHUNK = bytes(1 << 18)
# What is under way fits into short queues: acknowledgements, which share links with the data of
# others, then do not wait long, and windows open at once.
SEND_BUFFER = 1 << 16
CONNECT_PATIENCE = 60  # seconds, a bound on hangs
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


class Connection:
    """Carries its flows one after the other, in their order."""

    def __init__(self, sender, receiver):
        self.sender, self.receiver = sender, receiver
        self.flows, self.sending, self.receiving = [], 0, 0
        self.writes = False  # the selector waits for it

    def flow_to_send(self):
        return self.flows[self.sending] if self.sending < len(self.flows) else None


def connect(fabric, flows, v6=False) -> list:
    """Flows between the same ports share a connection."""
    listeners, connections = {}, {}
    for flow in flows:
        key = flow.source, flow.target, flow.sport, flow.dport
        if key not in connections:
            there = flow.target, flow.dport
            address = fabric.address(flow.target, v6)
            if there not in listeners:
                with inside(f"h{flow.target}"):
                    listeners[there] = _listen(address, flow.dport, v6)
            with inside(f"h{flow.source}"):
                sender = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
                sender.bind((fabric.address(flow.source, v6), flow.sport))
                sender.settimeout(CONNECT_PATIENCE)
                sender.connect((address, flow.dport))
            listeners[there].settimeout(CONNECT_PATIENCE)
            receiver, _ = listeners[there].accept()
            sender.setblocking(False)
            receiver.setblocking(False)
            connections[key] = Connection(sender, receiver)
        connections[key].flows.append(flow)
    for listener in listeners.values():
        listener.close()
    return list(connections.values())


def run(fabric, flows, patience=120, v6=False) -> float:
    """Carries the flows; fills in `ended`; returns when the last ended, in seconds."""
    connections = connect(fabric, flows, v6)
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.receiver, selectors.EVENT_READ, connection)
    start = time.monotonic()
    into = bytearray(1 << 18)
    while any(flow.ended is None for flow in flows):
        for connection in connections:
            _arm(selector, connection, flows)
        if time.monotonic() - start > patience:
            left = sum(flow.ended is None for flow in flows)
            raise RuntimeError(f"{left} of {len(flows)} flows have not ended after {patience} s")
        for key, events in selector.select(1):
            if events & selectors.EVENT_WRITE:
                _send(key.data)
            else:
                _receive(key.data, into, start)
    for connection in connections:
        # All has arrived; a reset leaves no TIME_WAIT behind, so that the ports can be used again
        # at once.
        connection.sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sender.close()
        connection.receiver.close()
    selector.close()
    return max(flow.ended for flow in flows)


def _arm(selector, connection, flows):
    """Waits for room to send exactly while there is something that may be sent."""
    flow = connection.flow_to_send()
    ready = flow is not None and all(flows[other].ended is not None for other in flow.after)
    if ready and not connection.writes:
        selector.register(connection.sender, selectors.EVENT_WRITE, connection)
    elif connection.writes and not ready:
        selector.unregister(connection.sender)
    connection.writes = ready


def _send(connection):
    flow = connection.flow_to_send()
    try:
        size = min(len(CHUNK), flow.size - flow.sent)
        flow.sent += connection.sender.send(memoryview(CHUNK)[:size])
    except BlockingIOError:
        return
    if flow.sent == flow.size:
        connection.sending += 1


def _receive(connection, into, start):
    try:
        got = connection.receiver.recv_into(into)
    except BlockingIOError:
        return
    while got > 0:
        flow = connection.flows[connection.receiving]
        part = min(got, flow.size - flow.received)
        flow.received += part
        got -= part
        if flow.received == flow.size:
            flow.ended = time.monotonic() - start
            connection.receiving += 1

"""Ports for programs that must be told one before they listen."""

import random
import socket

# Below the ports that Linux gives to sockets which ask for none (ip_local_port_range, 32768 and up
# unless an administrator moves it): no connection of another test takes one in between.
PORTS = range(10_000, 20_000)
TRIES = 200


def free_port() -> int:
    """A TCP port on which nobody listens, at any address of this host."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    for port in random.sample(PORTS, TRIES):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of {TRIES} ports tried between {PORTS[0]} and {PORTS[-1]} is free")

"""A check of listening addresses, made before a library fails on them with a log line of its own."""

from __future__ import annotations

import errno
import socket


def joined(host: str, port: int) -> str:
    """`host:port`, with brackets around an address of IPv6."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{host}:{port}"


def is_in_use(host: str, port: int | str) -> bool:
    """Whether another socket listens on the port at an address of the host."""
    if not int(port):
        return False
    for family, kind, protocol, _, place in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False

"""Ports to listen on that no client's connection can have taken first.

The kernel gives outgoing connections a port of its ephemeral range (from 32768 on, on Linux); with hundreds
of clients on the machine one of them sooner or later holds the very port that a server was to have.
"""

from __future__ import annotations

import socket
from pathlib import Path

EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_FIRST_EPHEMERAL = 32768


def first_ephemeral(path: Path = EPHEMERAL_RANGE) -> int:
    """The lowest port that the kernel gives to clients by itself."""
    return int(path.read_text().split()[0]) if path.exists() else USUAL_FIRST_EPHEMERAL


def free_port(first: int, *, below: int | None = None) -> int:
    """The lowest port from `first` on, under the ephemeral range (`below`), on which nobody listens.

    Raises `RuntimeError` when there is none.
    """
    end = first_ephemeral() if below is None else below
    for port in range(first, end):
        if _can_listen(port):
            return port
    raise RuntimeError(f"a port from {first} to {end - 1} must be free, none is: set KIT_PORT lower")


def _can_listen(port: int) -> bool:
    with socket.socket() as probe:
        # as servers do: connections that have ended do not count
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

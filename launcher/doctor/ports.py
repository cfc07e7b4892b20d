"""Looks at ports: those of the metrics on this node, and the one at which ranks meet."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from launcher.doctor.check import Check

RENDEZVOUS = 29500  # torchrun's, unless it is told another


def metrics_ports(host: str, first: int, count: int = 8) -> Iterator[Check]:
    """The metrics ports of one node's ranks."""
    if not first:
        yield Check("metrics ports", True, "any that is free")
        return
    taken = [str(port) for port in range(first, first + count) if not free(host, port)]
    found = f"in use: {', '.join(taken)}" if taken else f"free, from {first} for {count}"
    way_out = "nothing: a rank takes the next free port; or metrics.port=0"
    yield Check("metrics ports", not taken, found, way_out, needed=False)


def rendezvous_port(port: int = RENDEZVOUS) -> Iterator[Check]:
    """Whether a torchrun that is told nothing could serve its store here."""
    ok = free("", port)
    found = f"{port} is free" if ok else f"{port} is in use: another torchrun, or a stale one"
    way_out = "torchrun --standalone on one node, --master-port on several"
    yield Check("rendezvous port", ok, found, way_out, needed=False)


def free(host: str, port: int) -> bool:
    """Whether a server could listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True

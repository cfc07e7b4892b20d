"""Where Prometheus finds the ranks of a run: its file_sd."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from fedcore.checkpoint import write_atomically


def write_targets(path: Path, addresses: Sequence[tuple[int, str, str]], run: str) -> None:
    """Write one target a rank, labelled run, rank and node; no ranks = an empty list of targets.

    addresses: (rank, node, "host:port"). An empty list at the end of a run takes its ranks out of
    Prometheus, so that they do not count as down. Raises `OSError`.
    """
    groups = [
        {
            "targets": [reachable(address, node)],
            "labels": {"run": run, "rank": str(rank), "node": node},
        }
        for rank, node, address in sorted(addresses)
    ]
    write_atomically(path, json.dumps(groups, indent=1) + "\n")


def reachable(address: str, node: str) -> str:
    """The address as seen from outside: of a server that listens everywhere, its node's name."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if _is_wildcard(host):
        host = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False

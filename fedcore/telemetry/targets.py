"""Where Prometheus finds the ranks of a run: its file_sd."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from fedcore.checkpoint import write_atomically

Address = tuple[int, str, str]
"""Rank, node and "host:port" of an endpoint, as it is seen from outside (`reachable`)."""


def place_of(run_dir: Path) -> str:
    """Eight hex digits that tell runs of one name in different places apart."""
    return hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:8]


class Listing:
    """The files in which Prometheus finds the ranks of one run, from now on.

    One lies in the run directory and is an empty list after the run; the other one in a folder
    with those of all runs, since file_sd takes no pattern for folders, and goes with the run.
    Raises `OSError` for the first one; the other one must not cost a run: `problem` says why not.
    """

    def __init__(
        self, run_dir_file: Path, folder: Path | None, addresses: Sequence[Address], run: str
    ) -> None:
        self._own, self.problem = run_dir_file, ""
        self._shared: Path | None = None
        place = place_of(run_dir_file.parent)
        write_targets(run_dir_file, addresses, run, place)
        if folder is None:
            return
        self._shared = folder / f"{run.replace('/', '-')}-{place}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_targets(self._shared, addresses, run, place)
        except OSError as error:
            self.problem = f"{folder}: {error.strerror or error}"

    def withdraw(self) -> None:
        """No ranks are to be expected any more."""
        if self._shared is not None:
            with contextlib.suppress(OSError):  # else they count as down
                self._shared.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk
            write_targets(self._own, [])


def write_targets(path: Path, addresses: Sequence[Address], run: str = "", place: str = "") -> None:
    """Write one target a rank, labelled run, rank and node; no ranks = an empty list of targets.

    An empty list at the end of a run takes its ranks out of Prometheus, so that they do not count
    as down. Prometheus asks for the page of that place, and gets none from another run that has
    the port by now: a lost rank stays lost. Raises `OSError`.
    """
    groups = [
        {
            "targets": [address],
            "labels": {"run": run, "rank": str(rank), "node": node, "__param_run": place},
        }
        for rank, node, address in sorted(addresses)
    ]
    write_atomically(path, json.dumps(groups, indent=1) + "\n")


def reachable(address: str, node: str) -> str:
    """The address as seen from outside: of a server that listens everywhere, its node's host name.

    Told by the rank itself, which knows its node best.
    """
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


def is_loopback(bind: str) -> bool:
    """Whether an address to listen on is of this machine alone."""
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:  # a name
        return bind == "localhost"

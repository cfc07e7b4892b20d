"""Whether an index.json is one to read a checkpoint by: shapes of JSON, and names of files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedcore.files import inside

HEX = frozenset("0123456789abcdef")


SEAL = "sha256"


def sealed(index: dict[str, Any]) -> dict[str, Any]:
    """The index with the SHA-256 of all else that it says."""
    return index | {SEAL: _seal(index)}


def _seal(index: dict[str, Any]) -> str:
    said = {key: value for key, value in index.items() if key != SEAL}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def check_index(folder: Path, index: dict[str, Any]) -> None:
    """`ValueError` or `ShardError` for what cannot be read as files, clients and facts.

    Every file named lies in the folder, with a SHA-256; a client is held once by each kind of file.
    """
    if SEAL in index and index[SEAL] != _seal(index):  # an earlier version wrote none
        raise ValueError("it does not match its sha256")
    if not isinstance(index["facts"], dict) or not isinstance(index["shared"], dict):
        raise ValueError("facts and shared files are objects")
    if not isinstance(index["clients"], list):
        raise ValueError("files of clients are a list")
    for kind, entry in _entries(index):
        file, sha = entry["file"], entry["sha256"]
        inside(folder, file)
        if not isinstance(sha, str) or len(sha) != 64 or not HEX.issuperset(sha):
            raise ValueError(f"{kind}: no sha256 of {file}")
    for kind in _lists(index):
        ids = [client for entry in index[kind] for client in entry["clients"]]
        if not all(type(client) is int for client in ids) or len(set(ids)) < len(ids):
            raise ValueError(f"{kind}: ids that are no numbers, or the same one twice")


def _lists(index: dict[str, Any]) -> list[str]:
    """Kinds of files that hold clients."""
    return [kind for kind, value in index.items() if isinstance(value, list)]


def _entries(index: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    kinds = {"shared": [*index["shared"].values()], **{k: index[k] for k in _lists(index)}}
    for kind, entries in kinds.items():
        for entry in entries:
            if not isinstance(entry, dict):
                raise ValueError(f"{kind}: a file that is no object")
            yield kind, entry

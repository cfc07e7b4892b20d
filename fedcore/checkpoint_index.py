"""Whether an index.json is one to read a checkpoint by: shapes of JSON, and names of files."""

from __future__ import annotations

import hashlib
import json
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
    if index[SEAL] != _seal(index):
        raise ValueError("it does not match its sha256")
    if not isinstance(index["facts"], dict) or not isinstance(index["files"], list):
        raise ValueError("facts are an object, files a list")
    held: dict[str, list[int]] = {}
    for entry in index["files"]:
        if not isinstance(entry, dict):
            raise ValueError("a file that is no object")
        kind, file, sha = entry["kind"], entry["file"], entry["sha256"]
        inside(folder, file)
        if not isinstance(sha, str) or len(sha) != 64 or not HEX.issuperset(sha):
            raise ValueError(f"no sha256 of {file}")
        held.setdefault(kind, []).extend(entry.get("clients", []))
    for kind, ids in held.items():
        if not all(type(client) is int for client in ids) or len(set(ids)) < len(ids):
            raise ValueError(f"{kind}: ids that are no numbers, or the same one twice")

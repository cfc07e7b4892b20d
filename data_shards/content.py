"""Files by what they hold: data that moved are the same, others under the same names are not."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from data_shards.tars import AT_ONCE
from fedcore.errors import ShardError
from fedcore.files import sha256_of

TOGETHER = 10_000  # files that wait to be hashed
SETTLED = 2.0  # seconds after which a file that is written again has another time


class Entry(NamedTuple):
    """A file below a root."""

    name: str  # below the root
    path: Path
    size: int
    time: int  # of its last change, in ns


def content_of(files: Sequence[tuple[str, Path]], tick: Callable[[], None] = lambda: None) -> str:
    """SHA-256 of the names and bytes of files, in their order; they are hashed in threads."""
    found = hashlib.sha256()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(files), TOGETHER):
            some = files[start : start + TOGETHER]
            hashes = pool.map(_hash, [path for _, path in some])
            for (name, _), digest in zip(some, hashes, strict=True):
                found.update(f"{name}\0".encode(errors="surrogateescape"))
                found.update(bytes.fromhex(digest))
                tick()
    return found.hexdigest()


def _hash(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise ShardError(str(path), problem, "making it readable, or moving it away") from None


def listed(root: Path) -> list[Entry]:
    """The file itself, or all regular files below a folder, sorted by name.

    Links are followed; hidden files and links to nothing are left out, as readers do. Raises
    `ShardError` if there is nothing at `root`.
    """
    if not root.exists():
        raise ShardError(str(root), "no such file or folder", "another data.root")
    paths = _below(root, set()) if root.is_dir() else iter([root])
    return sorted(entry for path in paths if (entry := _entry(root, path)) is not None)


def _below(folder: Path, seen: set[str]) -> Iterator[Path]:
    """Every path that is no folder; a folder that links lead to again is looked at once."""
    place = os.path.realpath(folder)
    if place in seen:
        return
    seen.add(place)
    for found in os.scandir(folder):
        if found.name.startswith("."):
            continue
        if found.is_dir():
            yield from _below(Path(found.path), seen)
        else:
            yield Path(found.path)


def _entry(root: Path, path: Path) -> Entry | None:
    try:
        found = path.stat()
    except OSError:  # a link to nothing, or in a circle
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    name = str(path.relative_to(root)) if path != root else path.suffix
    return Entry(name, path, found.st_size, found.st_mtime_ns)


def remembered(root: Path, files: Sequence[Entry], memory: Path, hashed: Callable[[], str]) -> str:
    """The content hash of those files; hashed again only if one of them has changed.

    memory: folder with a file for each state of a root (names, sizes and times): its content.
    """
    state = [(entry.name, entry.size, entry.time) for entry in files]
    key = hashlib.sha256(repr((str(root.resolve()), state)).encode(errors="replace")).hexdigest()
    place = memory.expanduser() / "content" / key
    with contextlib.suppress(OSError):
        known = place.read_text()
        if len(known) == 64:
            return known
    found = hashed()
    if time.time() - max((entry.time for entry in files), default=0) / 1e9 > SETTLED:
        with contextlib.suppress(OSError):  # it is a convenience
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_name(f".{key}.{os.getpid()}")
            part.write_text(found)
            part.replace(place)
    return found

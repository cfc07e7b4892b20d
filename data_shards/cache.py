"""Remote files on this machine, addressed by their content: `<cache>/<2 hex digits>/<sha256>`.

A file that changes on the server has another name here. Processes of one machine that want the
same file fetch it once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from data_shards.fetch import ANOTHER, Patience, download, storing
from fedcore.errors import ShardError


def fetched(
    url: str, cache: Path, sha256: str, size: int, patience: Patience, *, hashed: bool = True
) -> Path:
    """The file of that content; from the URL unless it is here already, undamaged.

    hashed: the copy is compared with its hash, and not with its size alone.

    Raises `ShardError` if the URL does not give it, `StorageError` if there is no room for it.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):  # it becomes the name of a file
        raise ShardError(url, f"its manifest says {sha256[:80]!r} is its SHA-256", ANOTHER)
    place = cache / sha256[:2] / sha256
    wanted = sha256 if hashed else ""
    if _is_good(place, wanted, size):  # before the lock: a cache may be read-only
        return place
    with _alone(place) as waited:
        if not _is_good(place, wanted, size):  # another process may have fetched it
            # the one that was waited for has tried often enough
            _fetch(url, place, sha256, size, replace(patience, tries=1) if waited else patience)
    return place


def _is_good(place: Path, sha256: str, size: int) -> bool:
    """Whether it is here as it was written; without a hash, whether it has the size."""
    try:
        if place.stat().st_size != size:
            return False
        if not sha256:
            return True
        with place.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False
    except OSError:  # a failing disk: to be fetched again
        return False


@contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """Hold the lock of the folder of `place`; whether another process had it before."""
    lock = FileLock(place.with_name(".lock"))
    with storing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        waited = not _at_once(lock)
        if waited:
            lock.acquire()
    try:
        yield waited
    finally:
        lock.release()


def _at_once(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _fetch(url: str, place: Path, sha256: str, size: int, patience: Patience) -> None:
    """Under the lock: a half file of that name is one of a process that died."""
    part = place.with_name(f".{sha256}.part")
    try:
        found = download(url, part, size, patience)
        if found != sha256:
            problem = f"damaged: sha256 {found[:12]}..., want {sha256[:12]}..."
            raise ShardError(url, problem, ANOTHER)
        with storing(place):
            part.replace(place)
    finally:
        with storing(place):
            part.unlink(missing_ok=True)

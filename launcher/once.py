"""A folder of shards is made once, whoever asks for it and however many do at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from data_shards.manifest import NAME, Stored
from data_shards.tars import problems
from fedcore.errors import ShardError, StorageError


def once(
    folder: Path,
    kind: type[Stored],
    settings: dict[str, Any],
    write: Callable[[], object],
    *,
    repair: bool,
) -> Path:
    """The folder with its shards, written unless it is there; safe with many callers at once.

    repair: hash what is there, and make it anew if a file or the manifest is damaged. Raises
    `ShardError` for a folder of that name with other settings, `StorageError` without room.
    """
    if is_good(folder, kind, settings, repair):  # before the lock: a shared store may be read-only
        return folder
    with _alone(folder):
        _clear_others(folder)
        if not is_good(folder, kind, settings, repair):  # another process may have made it
            write()
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock beside the folder."""
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise StorageError(str(folder), str(error), "another data.store") from error
    try:
        yield
    finally:
        lock.release()


def _clear_others(folder: Path) -> None:
    """Remove what killed writers of other folders left in the store: nobody holds their lock."""
    for part in folder.parent.glob(".*.part"):
        lock = FileLock(part.with_suffix(".lock"), timeout=0)
        with suppress(Timeout, OSError), lock:
            shutil.rmtree(part)


def is_good(folder: Path, kind: type[Stored], settings: dict[str, Any], repair: bool) -> bool:
    """Whether the shards are there; with `repair` also whether each is as it was written."""
    if not (folder / NAME).is_file():
        return False
    try:
        manifest = kind.load(folder)
    except ShardError:
        if repair:
            return False
        raise
    if manifest.made_with != settings:
        problem = f"was made with {manifest.made_with}, this configuration wants {settings}"
        raise ShardError(str(folder), problem, "another data.store, or removing that folder")
    return not (repair and problems(folder, manifest))

"""Tars of samples into a folder that is complete or absent; equal samples give equal bytes."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_shards.manifest import NAME, Shard, Stored
from fedcore.errors import StorageError
from fedcore.files import sha256_of

SHARD_BYTES = 64 * 2**20  # of data in one tar


@contextmanager
def complete_or_absent(folder: Path) -> Iterator[Path]:
    """A folder to write to, which takes the name `folder` once all is in it.

    Raises `StorageError` when the disk is full or not writable; nothing is left then.
    """
    work = folder.with_name(f".{folder.name}.part")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        reason = "a link or a file has its name"
        raise StorageError(str(folder), reason, "another data.store, or removing it")
    try:
        shutil.rmtree(work, ignore_errors=True)  # of a writer that died: we hold the lock
        work.mkdir(parents=True)
        yield work
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(str(folder), reason, "another data.store, or freeing space") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)  # renamed away, unless something went wrong


def write_manifest(work: Path, manifest: Stored) -> None:
    """On the disk before the folder takes its name: an empty manifest would look complete."""
    with (work / NAME).open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_tar(work: Path, file: str, samples: Iterable[Mapping[str, Any]]) -> Shard:
    """One tar of samples, each `__key__` and bytes by extension; on the disk when it returns."""
    import webdataset as wds

    count, held = 0, io.BytesIO()  # at most SHARD_BYTES and a sample
    writer = wds.TarWriter(held, encoder=False, mtime=0)
    for sample in samples:
        writer.write(sample)
        count += 1
    writer.close()
    return write_shard(work, file, held.getbuffer(), count)


def filled(samples: Iterable[dict[str, Any]], decoded: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Samples in runs of at most SHARD_BYTES of data; one that is larger is alone.

    decoded: bytes that each takes when it is read, if those are more than its data.
    """
    held: list[dict[str, Any]] = []
    room = SHARD_BYTES
    for sample in samples:
        data = sum(len(value) for key, value in sample.items() if key != "__key__")
        size = max(data, decoded)
        if held and size > room:
            yield held
            held, room = [], SHARD_BYTES
        held.append(sample)
        room -= size
    if held:
        yield held


def write_shard(work: Path, file: str, content: bytes | memoryview, samples: int) -> Shard:
    """A file of the folder as the manifest has it; on the disk when it returns."""
    path = work / file
    with path.open("wb", buffering=0) as raw:
        view = memoryview(content)
        while view:
            view = view[raw.write(view) :]
        os.fsync(raw.fileno())
    sha256 = hashlib.sha256(content).hexdigest()
    return Shard(file=file, samples=samples, bytes=path.stat().st_size, sha256=sha256)


def described(work: Path, file: str, samples: int) -> Shard:
    """A written file as the manifest has it."""
    path = work / file
    return Shard(file=file, samples=samples, bytes=path.stat().st_size, sha256=sha256_of(path))

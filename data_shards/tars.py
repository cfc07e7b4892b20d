"""Tars of samples in a folder that is complete or absent: what images and tokens have in common.

The same samples give the same bytes, and what is read is compared with its hash first.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_shards.folder import Folder, Remote
from data_shards.manifest import NAME, WAY_OUT, Shard, Stored
from data_shards.raw import reading
from fedcore.errors import ShardError, StorageError
from fedcore.files import inside

SHARD_BYTES = 64 * 2**20  # of data in one tar
AT_ONCE = 8  # files that are hashed or fetched at a time


@contextmanager
def complete_or_absent(folder: Path) -> Iterator[Path]:
    """A folder to write to, which takes the name `folder` once all is in it.

    Raises `StorageError` when the disk is full or not writable; nothing is left then.
    """
    work = folder.with_name(f".{folder.name}.part")
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

    path, count = work / file, 0
    with path.open("wb") as raw:
        writer = wds.TarWriter(raw, encoder=False, mtime=0)
        try:
            for sample in samples:
                writer.write(sample)
                count += 1
        except BaseException:
            # its own finaliser would write the end of the tar to a file that is closed by then
            writer.tarstream.fileobj = io.BytesIO()
            raise
        writer.close()
        raw.flush()
        os.fsync(raw.fileno())
    return described(work, file, count)


def described(work: Path, file: str, samples: int) -> Shard:
    """A written file as the manifest has it."""
    path = work / file
    return Shard(file=file, samples=samples, bytes=path.stat().st_size, sha256=sha256_of(path))


def read_tars(folder: Folder, shards: Sequence[Shard]) -> Iterator[dict[str, Any]]:
    """All samples of some shards in order, after all were checked; `ShardError` names a bad one.

    Shards are addressed by client, so no rank or worker splits them.
    """
    paths = [check(folder, shard) for shard in shards]
    return (sample for path in paths for sample in _samples(path))


def _samples(path: Path) -> Iterator[dict[str, Any]]:
    from webdataset.tariterators import group_by_keys

    with reading(path, WAY_OUT):
        yield from group_by_keys(_members(path))


def _members(path: Path) -> Iterator[dict[str, Any]]:
    """Name and bytes of each file in a tar.

    Not by webdataset's own opener: it takes a path that begins with `pipe:` for a command, and
    unpacks what is compressed, of which a small file may hold without end.
    """
    whole = path.stat().st_size
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if not member.isreg() or member.issparse() or member.size > whole:
                raise ValueError(f"{member.name!r} is no plain file")
            file = tar.extractfile(member)
            assert file is not None, "it is a plain file"
            yield {"fname": member.name, "data": file.read(), "__url__": str(path)}


def problems(
    folder: Folder, manifest: Stored, tick: Callable[[str], None] = lambda name: None
) -> list[ShardError]:
    """Every shard that is missing or differs from the manifest, in its order.

    tick is told the name of each file that was looked at. Remote files are fetched.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:  # hashing and the network leave Python's lock
        found = pool.map(lambda shard: _problem(folder, shard, tick), manifest.shards)
        return [error for error in found if error is not None]


def _problem(folder: Folder, shard: Shard, tick: Callable[[str], None]) -> ShardError | None:
    try:
        check(folder, shard)
    except ShardError as error:
        return error
    finally:
        tick(shard.file)
    return None


def check(folder: Folder, shard: Shard) -> Path:
    """The shard's path; `ShardError` naming the file if it is missing or not what was written.

    One of a remote folder is its copy in the cache, fetched first if it is not there.
    """
    if isinstance(folder, Remote):
        return folder.fetch(shard.file, shard.sha256, shard.bytes)
    path = inside(folder, shard.file)
    try:
        problem = _difference(path, shard)
    except FileNotFoundError:
        problem = "missing shard"
    except OSError as error:  # a failing disk, no permission
        problem = f"cannot be read: {error.strerror or error}"
    if problem:
        raise ShardError(str(path), problem, WAY_OUT)
    return path


def _difference(path: Path, shard: Shard) -> str:
    """How a file differs from what was written; empty if it does not."""
    size = path.stat().st_size
    if size != shard.bytes:
        return f"truncated or altered: {size} bytes, want {shard.bytes}"
    found = sha256_of(path)
    if found != shard.sha256:
        return f"damaged: sha256 {found[:12]}..., want {shard.sha256[:12]}..."
    return ""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()

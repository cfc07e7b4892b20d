"""Tars of samples, of images and of tokens: what is read is compared with its hash first."""

from __future__ import annotations

import hashlib
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_shards.folder import Folder, Remote
from data_shards.manifest import WAY_OUT, Shard, Stored
from data_shards.raw import reading
from fedcore.errors import ShardError
from fedcore.files import inside, sha256_of

AT_ONCE = 8  # files that are hashed or fetched at a time
BLOCK = tarfile.BLOCKSIZE


def read_tars(folder: Folder, shards: Sequence[Shard]) -> Iterator[dict[str, Any]]:
    """All samples of some shards in order, after all were checked; `ShardError` names a bad one.

    Shards are addressed by client, so no rank or worker splits them.
    """
    contents = [verified(folder, shard) for shard in shards]
    return (
        sample
        for shard, content in zip(shards, contents, strict=True)
        for sample in samples_of(content, f"{folder}/{shard.file}")
    )


def verified(folder: Folder, shard: Shard) -> bytes:
    """A file's content, read once: what was hashed is what is used.

    Raises `ShardError` naming the file if it is missing or not what was written.
    """
    content, problem = _read(local(folder, shard, hashed=False), shard)
    if problem and isinstance(folder, Remote):  # a damaged copy in the cache is fetched again
        content, problem = _read(local(folder, shard), shard)
    if problem:
        raise ShardError(f"{folder}/{shard.file}", problem, WAY_OUT)
    return content


def _read(path: Path, shard: Shard) -> tuple[bytes, str]:
    """A file's content, and how it differs from what was written."""
    size = _size(path)
    if size != shard.bytes:  # `read` takes all the memory that it is asked for
        return b"", _difference(size, "", shard)
    with _told(path), path.open("rb") as file:
        content = file.read(shard.bytes + 1)
    return content, _difference(len(content), hashlib.sha256(content).hexdigest(), shard)


def samples_of(content: bytes, name: str) -> Iterator[dict[str, Any]]:
    """The samples of a tar: `__key__` and bytes by extension; `ShardError` if it is none."""
    from webdataset.tariterators import group_by_keys

    with reading(name, WAY_OUT):
        yield from group_by_keys(_members(content, name))


def _members(content: bytes, name: str) -> Iterator[dict[str, Any]]:
    """Name and bytes of each file in a tar: plain files behind plain headers, up to its end.

    Not by webdataset's own opener: it takes a path that begins with `pipe:` for a command, and
    unpacks what is compressed, of which a small file may hold without end. Nor by `tarfile.open`:
    it follows sizes below zero back for ever, takes minutes for an extended header of digits (both
    in Python 3.11.7), and ends without a word at a header that is none.
    """
    at = 0
    while any(header := content[at : at + BLOCK]):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        data = content[at + BLOCK : at + BLOCK + max(0, member.size)]
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or len(data) != member.size:
            raise ValueError(f"member {member.name!r} is no plain file")
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise ValueError(f"member {member.name!r} lies outside of the tar")
        yield {"fname": member.name, "data": data, "__url__": name}
        at += BLOCK + -(-member.size // BLOCK) * BLOCK
    if not header:
        raise ValueError("the end of the tar is missing")


def problems(
    folder: Folder, manifest: Stored, tick: Callable[[str], None] = lambda name: None
) -> list[ShardError]:
    """A `ShardError` for each shard that is missing or damaged, in the manifest's order.

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
    """The shard's path; `ShardError` naming the file if it is missing or not what was written."""
    path = local(folder, shard)
    if isinstance(folder, Remote):
        return path
    sized(folder, shard)
    with _told(path):
        problem = _difference(shard.bytes, sha256_of(path), shard)
    if problem:
        raise ShardError(str(path), problem, WAY_OUT)
    return path


def sized(folder: Folder, shard: Shard) -> None:
    """Raise `ShardError`, naming the file, if it is missing or of another size than was written."""
    path = local(folder, shard, hashed=False)
    if (size := _size(path)) != shard.bytes:
        raise ShardError(str(path), _difference(size, "", shard), WAY_OUT)


def _size(path: Path) -> int:
    """Bytes of a file; `ShardError` for what is none: a pipe would be waited for."""
    with _told(path):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ShardError(str(path), "no plain file", WAY_OUT)
    return found.st_size


def local(folder: Folder, shard: Shard, *, hashed: bool = True) -> Path:
    """Where that file is on this machine; one of a remote folder is fetched into the cache.

    hashed: compare a copy that is there already; not where the caller does.
    """
    if isinstance(folder, Remote):
        return folder.fetch(shard.file, shard.sha256, shard.bytes, hashed=hashed)
    return inside(folder, shard.file)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """An error of the disk becomes a `ShardError`."""
    try:
        yield
    except FileNotFoundError:
        raise ShardError(str(path), "missing shard", WAY_OUT) from None
    except OSError as error:  # a failing disk, no permission
        problem = f"cannot be read: {error.strerror or error}"
        raise ShardError(str(path), problem, WAY_OUT) from None


def _difference(size: int, sha256: str, shard: Shard) -> str:
    """How a file differs from what was written; empty if it does not."""
    if size != shard.bytes:
        more = f"{size} bytes" if size < shard.bytes else f"more than {shard.bytes} bytes"
        return f"truncated or altered: {more}, want {shard.bytes}"
    if sha256 != shard.sha256:
        return f"damaged: sha256 {sha256[:12]}..., want {shard.sha256[:12]}..."
    return ""

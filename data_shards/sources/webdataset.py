"""Existing webdataset tars: of each sample `KEY.cls` and one of `KEY.jpg|jpeg|png|webp`.

`data.root` has train*.tar or train/*.tar, and test*.tar, test/*.tar, val*.tar or val/*.tar. One
pass over the heads of a tar's members makes an index; images are read where they lie. `KEY.json`
may name a `user`; other members are left out. `classnames.txt` beside the tars, if it is there,
names the classes, one a line.
"""

from __future__ import annotations

import re
import tarfile
from array import array
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from data_shards.decode import MOST_BYTES, Head, head
from data_shards.pictures import ENDINGS, Pictures, shape_of
from data_shards.raw import lines_of, reading, users_of
from data_shards.samples import Files
from data_shards.sources import SOURCES, Source, Split
from fedcore.errors import ConfigError, ShardError
from fedcore.files import parse_json

WAY_OUT = "uncompressed tars as webdataset writes them"
NAMES = "classnames.txt"
LAYOUT = "train*.tar and test*.tar, or train/*.tar and test/*.tar"
NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")  # key, then ending: from the first dot on
MOST_EXTENDED = 4096  # bytes of an extended header: a name, a time
EXTENDED = (b"x", b"g", b"X", b"L", b"K")  # headers that say more of the next member
MOST_WORDS = 2**20  # bytes of a .cls or .json


class Member(NamedTuple):
    """A file in a tar."""

    key: str  # of its sample
    ending: str  # of its name
    name: str  # with the tar's, for messages
    offset: int  # bytes
    size: int


class Entry(NamedTuple):
    """A sample of a tar."""

    name: str  # of the image, with the tar's, for messages
    offset: int  # of the image, in bytes
    size: int
    label: int
    user: str | int | None


def load(root: Path | None, split: Split, size: int | None) -> Files:
    """Images as the training images are (colour unless all are grey), in the order of the tars.

    size: height and width all are brought to; None = they have one size, or it is a `ShardError`.
    """
    if root is None:
        raise ConfigError("data.root", None, f"a folder with {LAYOUT}", "--set data.root=tars")
    shape = shape_of(root, _heads(_tars(root, Split.TRAIN)), size)
    found = _pictures(_tars(root, split))
    return found.as_files(shape) if size else found.of_one_size(shape)


def class_names(root: Path | None) -> list[str] | None:
    """The lines of classnames.txt, of which the n-th names the label n, counted from 0."""
    path = (root or Path()) / NAMES
    return lines_of(path, "a text file, UTF-8") if root and path.is_file() else None


def _tars(root: Path, split: Split) -> list[Path]:
    for name in ("train",) if split is Split.TRAIN else ("test", "val"):
        found = sorted(root.glob(f"{name}*.tar")) or sorted(root.glob(f"{name}/*.tar"))
        if found:
            return found
    raise ShardError(str(root), f"no such files: {split.value} tars", f"data.root with {LAYOUT}")


def _pictures(tars: list[Path]) -> Pictures:
    """All samples of the tars, none of whose images is read yet."""
    names, users, numbers = list[str](), list[str | int](), array("q")
    for number, path in enumerate(tars):
        for entry in _entries(path):
            names.append(entry.name)
            numbers.extend((number, entry.offset, entry.size, entry.label))
            if entry.user is not None:
                users.append(entry.user)
    places = np.array(numbers, np.int64).reshape(-1, 4)  # number of the tar, offset, bytes, label
    labels = places[:, 3].copy()
    known = users_of(tars[0], users, len(names)) if users else None

    def read(row: int) -> bytes:
        number, offset, size, _ = places[row].tolist()
        return _image(tars[number], names[row], offset, size)

    return Pictures(names, read, lambda row: head(read(row), names[row]), labels, known)


def _heads(tars: list[Path]) -> Iterator[Head]:
    """Of all images in order, no further than they are asked for: most often, that of the first."""
    for path in tars:
        for entry in _entries(path):
            yield head(_image(path, entry.name, entry.offset, entry.size), entry.name)


def _image(path: Path, name: str, offset: int, size: int) -> bytes:
    with reading(path, WAY_OUT), path.open("rb") as file:
        return _bytes_at(file, name, offset, size)


def _entries(path: Path) -> Iterator[Entry]:
    """Every sample: members that follow each other and have one key."""
    with reading(path, WAY_OUT), path.open("rb") as file:
        for key, group in groupby(_members(path, file), key=lambda member: member.key):
            members = list(group)
            parts = {member.ending: member for member in members}
            images = [member for ending, member in parts.items() if f".{ending}" in ENDINGS]
            if len(parts) < len(members) or len(images) != 1 or "cls" not in parts:
                problem = f"has {', '.join(member.ending for member in members)}"
                raise ShardError(f"{path}: {key}", problem, "cls and one of jpg, png and webp")
            label = _label(file, parts["cls"])
            user = _user(file, parts["json"]) if "json" in parts else None
            yield Entry(images[0].name, images[0].offset, images[0].size, label, user)


def _members(path: Path, file: BinaryIO) -> Iterator[Member]:
    """Every file in the tar that belongs to a sample, in order."""
    _guard(file, 0)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (info := tar.next()) is not None:
            _guard(file, tar.offset)
            tar.members.clear()  # type: ignore[attr-defined]  # else it keeps a million
            shown = f"{path}: {info.name}"
            if info.name.startswith("/") or ".." in info.name.split("/"):
                raise ShardError(shown, "leads out of the tar", WAY_OUT)
            if not (info.isfile() or info.isdir()) or info.issparse() or info.size > MOST_BYTES:
                raise ShardError(shown, "is no plain file of a size that images have", WAY_OUT)
            match = NAME.fullmatch(info.name)
            if match and info.isfile():
                key, ending = match.groups()
                yield Member(key, ending.lower(), shown, info.offset_data, info.size)
        end = tar.offset
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise ShardError(str(path), f"is damaged or cut off at byte {end:,}", WAY_OUT)


def _guard(file: BinaryIO, at: int) -> None:
    """Before `tarfile` reads the next header, where a hostile one would hold it for ever.

    It follows sizes below zero back, and takes minutes for an extended header of digits.
    """
    while any(header := _bytes_there(file, at, tarfile.BLOCKSIZE)):
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            break  # tarfile says so, or it is the end that is looked at
        extended = info.type in EXTENDED
        if info.size < 0 or (extended and info.size > MOST_EXTENDED):
            raise ValueError(f"a header at byte {at:,} claims {info.size:,} bytes")
        if not extended:
            break
        at += tarfile.BLOCKSIZE + -(-info.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    file.seek(0)


def _bytes_there(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _bytes_at(file: BinaryIO, name: str, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        raise ShardError(name, f"is cut off: {len(data):,} of {size:,} bytes", WAY_OUT)
    return data


def _words(file: BinaryIO, member: Member) -> bytes:
    if member.size > MOST_WORDS:
        raise ShardError(member.name, f"has {member.size:,} bytes", f"at most {MOST_WORDS:,}")
    return _bytes_at(file, member.name, member.offset, member.size)


def _label(file: BinaryIO, member: Member) -> int:
    text = _words(file, member)
    if not re.fullmatch(rb"\s*\d{1,9}\s*", text):
        raise ShardError(member.name, f"is {text[:40]!r}", "a whole number from 0, as text")
    return int(text)


def _user(file: BinaryIO, member: Member) -> str | int | None:
    try:
        content = parse_json(_words(file, member))
    except ValueError:
        raise ShardError(member.name, "is no JSON", WAY_OUT) from None
    user = content.get("user") if isinstance(content, dict) else None
    if isinstance(user, bool) or not isinstance(user, str | int | None):
        raise ShardError(member.name, f"user is {str(user)[:40]}", "a text or a whole number")
    return user


SOURCES.add(
    "webdataset",
    Source(
        load,
        kind="natural",
        about="existing webdataset tars of images and cls (data.root)",
        takes=("size",),
        read_names=class_names,
    ),
)

"""The idx format of MNIST and its successors: a head of whole numbers, then bytes; plain or .gz.

Head: two zero bytes, the kind of number (8 = unsigned byte), the number of axes, and the length of
each axis as four bytes, the highest first (LeCun, "The MNIST database", file formats).
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_shards.raw import reading
from fedcore.errors import ShardError

UNSIGNED_BYTE = 8
MOST_COMPRESSED = 1_032  # bytes that deflate makes of one, at most
WAY_OUT = "the complete file as published, or gunzipped"


def read_idx(path: Path, inner: tuple[int, ...]) -> NDArray[np.uint8]:
    """uint8 [M, *inner], mapped from a plain file, in memory from a .gz; else `ShardError`."""
    with reading(path, WAY_OUT):
        return _unpacked(path, inner) if path.suffix == ".gz" else _mapped(path, inner)


def _mapped(path: Path, inner: tuple[int, ...]) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        shape = _head(path, file.read(_bytes_of_head(inner)), inner)
    _expect(path, path.stat().st_size - _bytes_of_head(inner), shape)
    if not shape[0]:
        return np.empty(shape, dtype=np.uint8)  # nothing cannot be mapped
    return np.memmap(path, np.uint8, "r", _bytes_of_head(inner), shape)


def _unpacked(path: Path, inner: tuple[int, ...]) -> NDArray[np.uint8]:
    with gzip.open(path, "rb") as file:
        shape = _head(path, file.read(_bytes_of_head(inner)), inner)
        most = path.stat().st_size * MOST_COMPRESSED
        if math.prod(shape) > most:  # before there is memory for it
            raise ShardError(str(path), f"{list(shape)} in a file of this size", WAY_OUT)
        content = file.read(math.prod(shape) + 1)
    _expect(path, len(content), shape)
    return np.frombuffer(content, np.uint8).reshape(shape)


def _bytes_of_head(inner: tuple[int, ...]) -> int:
    return 4 + 4 * (1 + len(inner))


def _head(path: Path, head: bytes, inner: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths of all axes, if the file is of that kind."""
    axes = 1 + len(inner)
    magic = bytes([0, 0, UNSIGNED_BYTE, axes])
    if len(head) < _bytes_of_head(inner) or head[:4] != magic:
        problem = f"starts with {head[:4].hex() or 'nothing'}, want {magic.hex()} and {axes} axes"
        raise ShardError(str(path), problem, WAY_OUT)
    shape: tuple[int, ...] = struct.unpack(f">{axes}I", head[4:])
    if shape[1:] != inner:
        raise ShardError(str(path), f"is {list(shape)}, want [M, {inner}]", WAY_OUT)
    return shape


def _expect(path: Path, found: int, shape: tuple[int, ...]) -> None:
    if found != math.prod(shape):
        more = "more than " if found > math.prod(shape) else f"{found:,} of "
        raise ShardError(str(path), f"{more}{math.prod(shape):,} bytes of {list(shape)}", WAY_OUT)

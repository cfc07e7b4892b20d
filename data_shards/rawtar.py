"""The tar of raw samples as one array: written and read whole, at the speed of memory.

A sample is `<index>.json` then `<index>.u8`, each behind its header, so all samples of a shape take
equally many bytes and a tar is a matrix [n, stride]. The bytes are those of webdataset's TarWriter
(the headers are tarfile's own, with digits and checksum put in), and any reader of tars reads them.
"""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.files import parse_json

BLOCK, RECORD = 512, tarfile.RECORDSIZE
DIGITS = 8  # of an index
NAME, SIZE, SUM = slice(0, DIGITS), slice(124, 135), slice(148, 154)
MODE, OWNER = 0o444, "bigdata"  # TarWriter's
PIXELS = 3 * BLOCK  # where a sample's pixels begin: after two headers and the json

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


class Block(NamedTuple):
    """Decoded samples of one tar."""

    images: Bytes  # [n, channels, height, width]
    labels: Numbers  # [n]


def encoded(index: Numbers, labels: Numbers, images: Bytes) -> Bytes:
    """The bytes of a tar of raw samples; index and labels [n], images [n, ...]."""
    n, size = len(index), math.prod(images.shape[1:])
    texts = [
        json.dumps({"label": label, "index": i}).encode()
        for i, label in zip(index.tolist(), labels.tolist(), strict=True)
    ]
    whole = np.zeros(_length(n, size), dtype=np.uint8)
    rows = whole[: n * stride(size)].reshape(n, stride(size))
    sizes = np.array([len(text) for text in texts], dtype=np.int64)
    rows[:, :BLOCK] = _headers("json", index, sizes)
    padded = b"".join(text.ljust(BLOCK, b"\0") for text in texts)
    rows[:, BLOCK : 2 * BLOCK] = np.frombuffer(padded, np.uint8).reshape(n, BLOCK)
    rows[:, 2 * BLOCK : PIXELS] = _headers("u8", index, np.full(n, size))
    rows[:, PIXELS : PIXELS + size] = images.reshape(n, size)
    return whole


def fits(index: Numbers) -> bool:
    """Whether these samples can be written so: an index has eight digits."""
    return not len(index) or int(index.max()) < 10**DIGITS


def decoded(data: bytes, samples: int, shape: tuple[int, int, int]) -> Block | None:
    """The samples, images as a view of the data; None if it is not such a tar to the last byte.

    Then `tarfile` must read it. Raises `ValueError` for a json that is none.
    """
    size = math.prod(shape)
    if len(data) != _length(samples, size):
        return None
    whole = np.frombuffer(data, dtype=np.uint8)
    rows = whole[: samples * stride(size)].reshape(samples, stride(size))
    index, sizes = _decimal(rows[:, NAME]), _octal(rows[:, SIZE])
    if index is None or sizes is None or (samples and int(sizes.max()) > BLOCK):
        return None
    if (index[1:] == index[:-1]).any():  # one sample to a reader of members, and not two
        return None
    if whole[samples * stride(size) :].any() or rows[:, PIXELS + size :].any():
        return None
    if not np.array_equal(rows[:, :BLOCK], _headers("json", index, sizes)) or not np.array_equal(
        rows[:, 2 * BLOCK : PIXELS], _headers("u8", index, np.full(samples, size))
    ):
        return None
    images = rows[:, PIXELS : PIXELS + size].reshape(samples, *shape)
    labels = _labels(data, sizes.tolist(), stride(size))
    return None if labels is None else Block(images, labels)


def _labels(data: bytes, sizes: Sequence[int], stride: int) -> Numbers | None:
    """The label in each sample's json, all parsed at once; None unless each is a flat object."""
    starts = range(BLOCK, BLOCK + len(sizes) * stride, stride)
    texts = [data[at : at + size] for at, size in zip(starts, sizes, strict=True)]
    # as many objects as texts, and no more braces: none stands in a string or within a text, so
    # that what is no json by itself cannot become one beside its neighbours
    whole = b",".join(texts)
    braced = all(text[:1] == b"{" and text[-1:] == b"}" for text in texts)
    if not braced or not len(sizes) == whole.count(b"{") == whole.count(b"}"):
        return None
    found = parse_json(b"[" + whole + b"]")
    return labels_in(found) if len(found) == len(sizes) else None


def labels_in(texts: Sequence[object]) -> Numbers:
    """`label` of each sample's json; `ValueError` for one that is no label."""
    labels = [text.get("label") if isinstance(text, dict) else None for text in texts]
    for label in labels:
        if type(label) is not int or not 0 <= label < 2**31:
            raise ValueError(f"a label {label!r}"[:80])
    return np.array(labels, dtype=np.int64)


def stride(size: int) -> int:
    """Bytes that a sample with so many pixels takes in the tar."""
    return PIXELS + -(-size // BLOCK) * BLOCK


def _length(samples: int, size: int) -> int:
    """Bytes of a tar: its samples and two empty blocks, filled up to whole records."""
    return -(-(samples * stride(size) + 2 * BLOCK) // RECORD) * RECORD


@lru_cache(maxsize=4)
def _template(extension: str) -> Bytes:
    """A header with empty digits and without its checksum."""
    info = tarfile.TarInfo("0" * DIGITS + "." + extension)
    info.mode, info.uname, info.gname = MODE, OWNER, OWNER
    header = np.frombuffer(info.tobuf(tarfile.USTAR_FORMAT), dtype=np.uint8).copy()
    header[NAME] = header[SIZE] = header[SUM] = 0
    return header


def _headers(extension: str, index: Numbers, sizes: Numbers) -> Bytes:
    """Headers [n, 512] of members of those sizes, as `tarfile` writes them."""
    headers = np.repeat(_template(extension)[None], len(index), axis=0)
    headers[:, NAME] = _text(index, 10, DIGITS)
    headers[:, SIZE] = _text(sizes, 8, 11)
    # the checksum counts its own eight bytes as spaces; the last two of them are a zero and a space
    total = headers.sum(1, dtype=np.int64) - ord(" ") + 8 * ord(" ")
    headers[:, SUM] = _text(total, 8, 6)
    return headers


def _text(numbers: Numbers, base: int, digits: int) -> Bytes:
    """Numbers [n] as ASCII digits [n, digits]."""
    powers = base ** np.arange(digits - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % base + ord("0")).astype(np.uint8)


def _number(text: Bytes, base: int) -> Numbers | None:
    """ASCII digits [n, digits] as numbers [n]; None if one is no digit."""
    digits = text.astype(np.int64) - ord("0")
    if ((digits < 0) | (digits >= base)).any():
        return None
    powers: Numbers = base ** np.arange(text.shape[1] - 1, -1, -1, dtype=np.int64)
    return digits @ powers


def _decimal(text: Bytes) -> Numbers | None:
    return _number(text, 10)


def _octal(text: Bytes) -> Numbers | None:
    return _number(text, 8)

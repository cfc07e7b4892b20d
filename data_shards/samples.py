"""A split of a dataset: labels in memory, images when they are asked for.

Memory is so bounded by what is read at a time and not by the dataset: arrays may be memory maps of
files, and encoded images are read from theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data_shards.decode import decode
from fedcore.errors import ShardError

Labels = NDArray[np.int64]
Pixels = NDArray[np.uint8]
Shape = tuple[int, int, int]  # channels, height, width
Extension = Literal["jpg", "png", "webp"]
EXTENSIONS: tuple[Extension, ...] = ("jpg", "png", "webp")
STARTS: dict[Extension, bytes] = {"jpg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}


class File(NamedTuple):
    """An encoded image, as it came."""

    extension: Extension
    data: bytes

    @staticmethod
    def of(data: bytes, name: str) -> File:
        """By how the data start, since many a png is called .jpg; `ShardError` for another kind."""
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return File("webp", data)
        for extension, start in STARTS.items():
            if data.startswith(start):
                return File(extension, data)
        raise ShardError(name, "is no jpg, png or webp image", "converting it to png")


class Samples(Protocol):
    """What a source's `load` returns: labels, and images on demand."""

    @property
    def labels(self) -> Labels:
        """Label of each sample [M], int64, from 0."""

    @property
    def users(self) -> Labels | None:
        """Number of the user (writer, device) of each sample [M], from 0; None = not known."""

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image that `pixels` returns."""

    def pixels(self, rows: NDArray[np.int64]) -> Pixels:
        """Images uint8 [len(rows), channels, height, width]; `ShardError` if one is unreadable."""

    def file(self, row: int) -> File | None:
        """The image's own file, to be stored as it came; None = it has none."""


@dataclass(frozen=True)
class Arrays:
    """Images that lie in one array, in memory or mapped from a file."""

    images: Pixels  # [M, channels, height, width]
    labels: Labels
    users: Labels | None = None

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def pixels(self, rows: NDArray[np.int64]) -> Pixels:
        """Images [len(rows), channels, height, width]."""
        return np.ascontiguousarray(self.images[rows])

    def file(self, row: int) -> None:
        """Arrays have no files of their own."""


@dataclass(frozen=True)
class Files:
    """Encoded images, each read and decoded when it is asked for."""

    read: Callable[[int], File]  # of a row; raises `ShardError`
    names: Sequence[str]  # [M] for messages
    labels: Labels
    shape: Shape
    users: Labels | None = None

    def pixels(self, rows: NDArray[np.int64]) -> Pixels:
        """Images [len(rows), channels, height, width], brought to the shape."""
        images = np.empty((len(rows), *self.shape), dtype=np.uint8)
        for i, row in enumerate(rows.tolist()):
            images[i] = decode(self.read(row).data, self.shape, self.names[row])
        return images

    def file(self, row: int) -> File:
        """The image as it came, undecoded."""
        return self.read(row)

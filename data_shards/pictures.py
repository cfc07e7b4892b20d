"""Files of images to `Files`: one shape for all, found in their heads or asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_shards.decode import Head, encoded, head
from data_shards.samples import File, Files, Shape
from fedcore.errors import ShardError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
BLOCK = 1_000  # heads that a thread reads at a time
ONE_SIZE = "data.size=64, to bring all to one size"


@dataclass(frozen=True)
class Pictures:
    """Encoded images of a split, none of them read yet."""

    names: Sequence[str]  # [M] for messages
    read: Callable[[int], bytes]  # of a row
    head: Callable[[int], Head]  # of a row
    labels: NDArray[np.int64]
    users: NDArray[np.int64] | None = None

    def as_files(self, shape: Shape) -> Files:
        """Images that are brought to that shape when they are decoded."""
        return Files(self._file, self.names, self.labels, shape, self.users)

    def of_one_size(self, shape: Shape, way_out: str = ONE_SIZE) -> Files:
        """Images that have that size already: `ShardError` names the first that has not."""
        blocks = [range(len(self.names))[i : i + BLOCK] for i in range(0, len(self.names), BLOCK)]
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(lambda block: self._check(block, shape, way_out), blocks):
                pass  # the first problem is raised here
        return self.as_files(shape)

    def _file(self, row: int) -> File:
        return File.of(self.read(row), self.names[row])

    def _check(self, rows: range, shape: Shape, way_out: str) -> None:
        for row in rows:
            found = self.head(row)
            if (found.height, found.width) != shape[1:]:
                problem = f"is {found.width} x {found.height}, want {shape[2]} x {shape[1]}"
                raise ShardError(self.names[row], problem, way_out)


def of_paths(paths: Sequence[Path], labels: Sequence[int]) -> Pictures:
    """Images that lie in files of their own."""
    names = [str(path) for path in paths]
    return Pictures(
        names,
        lambda row: encoded(Path(names[row])),
        lambda row: head(Path(names[row]), names[row]),
        np.array(labels, dtype=np.int64),
    )


def shape_of(root: Path, heads: Iterable[Head], size: int | None) -> Shape:
    """The shape of all images: grey if all are, and square of that size, or as the first one is."""
    rest = iter(heads)
    first = next(rest, None)
    if first is None:
        raise ShardError(str(root), "no training images", "data.root=... with images in it")
    channels = 1 if first.grey and all(found.grey for found in rest) else 3
    return (channels, size, size) if size else (channels, first.height, first.width)

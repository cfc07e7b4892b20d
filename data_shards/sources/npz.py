"""Your own arrays: `data.root` is a .npz file with x_train, y_train, x_test, y_test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_shards.raw import labels_of, reading
from data_shards.sources import SOURCES, Arrays, Source, Split
from fedcore.errors import ConfigError, ShardError

KEYS = "x_train, y_train, x_test, y_test"


def load(root: Path | None, split: Split) -> Arrays:
    """x uint8 [M, H, W], [M, H, W, channels] or [M, channels, H, W]; y integers from 0, [M].

    Raises `ConfigError` without a root, `ShardError` for a file that is not like that.
    """
    if root is None:
        raise ConfigError("data.root", None, f"a .npz file with {KEYS}", "--set data.root=my.npz")
    with reading(root, f"a .npz file with {KEYS}"), np.load(root, allow_pickle=False) as file:
        images, labels = file[f"x_{split.value}"], file[f"y_{split.value}"]
    return Arrays(_as_channels_first(root, images), labels_of(root, labels, len(images)))


def _as_channels_first(root: Path, images: NDArray[np.generic]) -> NDArray[np.uint8]:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        problem = f"images are {images.dtype} {list(images.shape)}"
        raise ShardError(str(root), problem, "uint8 [M, H, W] or [M, H, W, channels]")
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1] not in (1, 3):  # [M, H, W, 4] would else be taken for H channels
        raise ShardError(str(root), f"images are {list(images.shape)}", "1 or 3 channels")
    return np.ascontiguousarray(images, dtype=np.uint8)


SOURCES.add("npz", Source(load, kind="natural", about="your own .npz file (data.root)"))

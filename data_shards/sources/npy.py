"""Your own arrays, mapped and not held: a folder with x_train.npy, y_train.npy and so for test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_shards.raw import channels_first, labels_of, reading, texts_of, users_of
from data_shards.sources import SOURCES, Arrays, Source, Split
from fedcore.errors import ConfigError

FILES = "x_train.npy, y_train.npy, x_test.npy, y_test.npy"


def load(root: Path | None, split: Split) -> Arrays:
    """x uint8 [M, H, W], [M, H, W, channels] or [M, channels, H, W]; y integers from 0, [M].

    u_train.npy and u_test.npy, if they are there: a user id for each image, a number or a text.
    """
    if root is None:
        raise ConfigError("data.root", None, f"a folder with {FILES}", "--set data.root=arrays")
    x, y, u = (root / f"{letter}_{split.value}.npy" for letter in "xyu")
    images = channels_first(x, _mapped(x))
    users = users_of(u, _mapped(u), len(images)) if u.exists() else None
    return Arrays(images, labels_of(y, _mapped(y), len(images)), users)


def class_names(root: Path | None) -> Sequence[str] | None:
    """Those of class_names.npy, one text for each class, if it is there."""
    path = (root or Path()) / "class_names.npy"
    return texts_of(path, _mapped(path)) if root and path.exists() else None


def _mapped(path: Path) -> NDArray[np.generic]:
    with reading(path, f"a folder with {FILES}, each as numpy.save writes it"):
        array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


SOURCES.add(
    "npy",
    Source(
        load,
        kind="natural",
        about="your own .npy files (data.root: a folder)",
        read_names=class_names,
    ),
)

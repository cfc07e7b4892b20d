"""Your own arrays: `data.root` is a .npz file with x_train, y_train, x_test, y_test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_shards.raw import channels_first, labels_of, reading, texts_of, users_of
from data_shards.sources import SOURCES, Arrays, Source, Split
from fedcore.errors import ConfigError

KEYS = "x_train, y_train, x_test, y_test"


def load(root: Path | None, split: Split) -> Arrays:
    """x uint8 [M, H, W], [M, H, W, channels] or [M, channels, H, W]; y integers from 0, [M].

    u_train and u_test, if they are there: a user id for each image, a number or a text, [M].

    Raises `ConfigError` without a root, `ShardError` for a file that is not like that.
    """
    if root is None:
        raise ConfigError("data.root", None, f"a .npz file with {KEYS}", "--set data.root=my.npz")
    part = split.value
    with reading(root, f"a .npz file with {KEYS}"), np.load(root, allow_pickle=False) as file:
        images, labels = file[f"x_{part}"], file[f"y_{part}"]
        users = file.get(f"u_{part}")
    count = len(images)
    known = None if users is None else users_of(root, users, count)
    return Arrays(channels_first(root, images), labels_of(root, labels, count), known)


def class_names(root: Path | None) -> Sequence[str] | None:
    """The file's array `class_names`, one text for each class, if it has one."""
    if root is None:
        return None  # told by `load`
    with reading(root, f"a .npz file with {KEYS}"), np.load(root, allow_pickle=False) as file:
        names = file.get("class_names")
    return None if names is None else texts_of(root, names)


SOURCES.add(
    "npz",
    Source(
        load,
        kind="natural",
        about="your own .npz file (data.root)",
        read_names=class_names,
    ),
)

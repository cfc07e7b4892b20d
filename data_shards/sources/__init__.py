"""Datasets, one file each. A file in this folder that calls `SOURCES.add` is found by name.

To add one, write `mine.py`:

    def load(root: Path | None, split: Split) -> Samples: ...

    SOURCES.add("mine", Source(load, kind="natural", about="what it is"))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from data_shards.names import MOST_CHARACTERS, trouble_with
from data_shards.samples import Arrays, File, Files, Samples
from fedcore.config_data import DataConfig
from fedcore.errors import ShardError
from fedcore.registry import Registry

__all__ = [
    "DIGITS",
    "SOURCES",
    "Arrays",
    "File",
    "Files",
    "Samples",
    "Source",
    "Split",
    "checked",
    "loaded",
    "named",
    "of_torchvision",
    "rows_of",
    "stratified",
]

Kind = Literal["digits", "natural"]


class Split(Enum):
    """Training samples are dealt out to clients; test samples are only ever reported on."""

    TRAIN = "train"
    TEST = "test"


@dataclass(frozen=True)
class Source:
    """A dataset: how to load it, and what kind of views may be drawn of its images."""

    load: Callable[..., Samples]  # (data.root, split), and what it `takes` by name
    kind: Kind  # digits: crop, shift, rotation; natural: crop, flip, colour
    about: str
    bundled: bool = False  # comes with an installed package: shards are made without being asked
    classes: int | None = None  # None = the largest label + 1
    class_names: tuple[str, ...] | None = None  # in the order of labels; None = not known
    shape: tuple[int, int, int] | None = None  # channels, height, width; None = as loaded
    mean: tuple[float, ...] | None = None  # per channel, of images in 0...1; None = computed
    std: tuple[float, ...] | None = None
    takes: tuple[str, ...] = ()  # keys of `data` that it depends on, e.g. "size"
    download: Callable[[Path], None] | None = None  # fetch the published files into data.root
    # what the files in data.root call the classes, rather than `class_names`; None = they do not
    read_names: Callable[[Path | None], Sequence[str] | None] | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is one of {', '.join(get_args(Kind))}, and not {self.kind!r}")


SOURCES: Registry[Source] = Registry("data.source", "data_shards.sources")

DIGITS = tuple("0123456789")  # names of the classes of many datasets
MOST_CLASSES = 100_000  # a label above it is an identifier, and a prototype each would not fit


def checked(name: str, source: Source, train: Samples, test: Samples) -> int:
    """The number of classes C; `ShardError` if the two splits cannot be trained on."""
    for split, samples in (("training", train), ("test", test)):
        if isinstance(samples, Arrays):
            _check_arrays(name, split, samples)
        if not len(samples.labels):
            problem = f"no labels in the {split} split"
            raise ShardError(name, problem, "at least one sample in each split")
    if train.shape != test.shape:
        problem = f"images {list(train.shape)}, but test {list(test.shape)}"
        raise ShardError(name, problem, "training and test images of one shape")
    if not np.isin(test.labels, train.labels).any():
        problem = f"test labels {_few(test.labels)}, and none of them in training"
        raise ShardError(name, problem, "test samples of classes that are trained")
    low = int(min(train.labels.min(), test.labels.min()))
    high = int(max(train.labels.max(), test.labels.max()))
    classes = source.classes or high + 1
    if low < 0 or high >= classes or not 2 <= classes <= MOST_CLASSES:
        problem = f"labels {low}...{high} for {classes} classes"
        raise ShardError(name, problem, "labels 0...C-1 of at least two classes")
    if source.class_names is not None and (why := trouble_with(source.class_names, classes)):
        way_out = f"one name for each class, of 1 to {MOST_CHARACTERS} printable characters"
        raise ShardError(name, why, way_out)
    return classes


def _check_arrays(name: str, split: str, arrays: Arrays) -> None:
    """`ShardError` for arrays of another type or layout than `Arrays` says."""
    images, labels = arrays.images, arrays.labels
    if images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        want = "channels before height and width: images.transpose(0, 3, 1, 2)"
        raise ShardError(name, f"{split} images {list(images.shape)}", want)
    if images.dtype != np.uint8 or images.ndim != 4:
        problem = f"{split} images {list(images.shape)} of {images.dtype}"
        raise ShardError(name, problem, "uint8 [M, channels, height, width]")
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        problem = f"{split} labels {list(labels.shape)} of {labels.dtype} for {len(images)} images"
        raise ShardError(name, problem, "int64 [M], one label for each image")
    users = arrays.users
    if users is not None and not (
        users.shape == labels.shape
        and np.issubdtype(users.dtype, np.integer)
        and int(users.min(initial=0)) >= 0
    ):
        problem = f"{split} users {list(users.shape)} of {users.dtype} for {len(images)} images"
        raise ShardError(name, problem, "int64 [M], numbers from 0, one for each image")


def _few(labels: NDArray[np.int64]) -> str:
    found = np.unique(labels).tolist()
    return ", ".join(map(str, found[:10])) + ("..." if len(found) > 10 else "")


def loaded(source: Source, data: DataConfig, split: Split) -> Samples:
    """A split of the dataset, as the configuration wants it."""
    return source.load(data.root, split, **{key: getattr(data, key) for key in source.takes})


def named(source: Source, root: Path | None) -> Source:
    """The source with the class names that its files say, if they say any."""
    found = source.read_names(root) if source.read_names else None
    return source if found is None else replace(source, class_names=tuple(found))


SPLIT_SEED = 20_240_101  # of the split below: a constant of the dataset, not of a run


def stratified(
    images: NDArray[np.uint8], labels: NDArray[np.int64], split: Split, test_share: float = 0.2
) -> Arrays:
    """The same split in every run, for datasets that are published without one."""
    rows = rows_of(labels, split, test_share)
    return Arrays(images[rows], labels[rows])


def rows_of(labels: NDArray[np.int64], split: Split, test_share: float = 0.2) -> NDArray[np.int64]:
    """Rows of the split, in order: of each class, the same share goes to the test split."""
    draws = np.random.default_rng(SPLIT_SEED)
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        chosen = draws.permutation(members)[: round(test_share * len(members))]
        test[chosen] = True
    return np.flatnonzero(test if split is Split.TEST else ~test)


def of_torchvision(name: str, *arguments: dict[str, Any]) -> Callable[[Path], None]:
    """Fetches what torchvision's dataset of that name downloads with each of the arguments."""

    def fetch(root: Path) -> None:
        from torchvision import datasets

        for given in arguments:
            getattr(datasets, name)(root, download=True, **given)

    return fetch

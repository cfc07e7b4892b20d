"""MNIST, Fashion-MNIST and EMNIST: grey 28x28 images in idx files, plain or .gz.

LeCun et al. 1998, Xiao et al. 2017, Cohen et al. 2017. Plain files are mapped and not held.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from data_shards.idx import WAY_OUT, read_idx
from data_shards.raw import labels_of
from data_shards.sources import DIGITS, SOURCES, Arrays, Source, Split, of_torchvision
from fedcore.errors import ConfigError, ShardError

SIDE = 28


class Layout(NamedTuple):
    """How a dataset's files are named, and what is special in them."""

    name: str
    files: dict[Split, str]  # the start of the files' names
    folders: tuple[str, ...]  # below data.root, where archives and torchvision unpack them
    classes: tuple[str, ...]  # their names, in the order of labels
    transposed: bool = False  # columns before rows, as EMNIST is published
    first: int = 0  # the smallest label


def load(layout: Layout, root: Path | None, split: Split) -> Arrays:
    """Images [M, 1, 28, 28] and labels [M] from 0, in the order of the published files."""
    start = layout.files[split]
    images = read_idx(_file(layout, root, f"{start}-images-idx3-ubyte"), (SIDE, SIDE))
    path = _file(layout, root, f"{start}-labels-idx1-ubyte")
    labels = labels_of(path, read_idx(path, ()), len(images), layout.first) - layout.first
    if len(labels) and int(labels.max()) >= len(layout.classes):
        problem = f"a label {labels.max() + layout.first} among {len(layout.classes)} classes"
        raise ShardError(str(path), problem, f"the file as published for {layout.name}")
    upright = images.swapaxes(1, 2) if layout.transposed else images
    return Arrays(upright[:, np.newaxis], labels)


def _file(layout: Layout, root: Path | None, name: str) -> Path:
    """Where the file lies, rather plain than compressed: that one can be mapped."""
    if root is None:
        way_out = f"--set data.root=/datasets/{layout.name}"
        raise ConfigError("data.root", None, f"a folder with {name}[.gz]", way_out)
    places = [root / folder / name for folder in ("", *layout.folders)]
    for path in (*places, *(place.with_name(f"{name}.gz") for place in places)):
        if path.is_file():
            return path
    raise ShardError(str(root / name), "no such file, nor a .gz of it", WAY_OUT)


def _add(layout: Layout, about: str, **facts: Any) -> None:
    shape = (1, SIDE, SIDE)
    source = Source(
        partial(load, layout),
        about=about,
        classes=len(layout.classes),
        class_names=layout.classes,
        shape=shape,
        **facts,
    )
    SOURCES.add(layout.name, source)


MNIST_FILES = {Split.TRAIN: "train", Split.TEST: "t10k"}
CLOTHES = (  # as Zalando Research names them
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
# as the published mappings number them; small letters that look like their capitals are merged
BY_CLASS = (*DIGITS, *ascii_uppercase, *ascii_lowercase)
MERGED = (*DIGITS, *ascii_uppercase, *"abdefghnqrt")
EMNIST_CLASSES: dict[str, tuple[str, ...]] = {
    "balanced": MERGED,
    "byclass": BY_CLASS,
    "bymerge": MERGED,
    "letters": tuple(ascii_lowercase),  # of either case, called as torchvision does
    "digits": DIGITS,
    "mnist": DIGITS,
}

_add(
    Layout("mnist", MNIST_FILES, ("MNIST/raw",), DIGITS),
    "70,000 handwritten digits, 28x28 (data.root: train-images-idx3-ubyte ...)",
    kind="digits",
    mean=(0.1307,),  # as in PyTorch's own examples
    std=(0.3081,),
    download=of_torchvision("MNIST", {}),
)
_add(
    Layout("fashion_mnist", MNIST_FILES, ("FashionMNIST/raw",), CLOTHES),
    "70,000 grey pictures of clothes, 28x28 (data.root: train-images-idx3-ubyte ...)",
    kind="natural",
    download=of_torchvision("FashionMNIST", {}),
)
for _part, _classes in EMNIST_CLASSES.items():
    _add(
        Layout(
            f"emnist_{_part}",
            {split: f"emnist-{_part}-{split.value}" for split in Split},
            ("gzip", "EMNIST/raw"),
            _classes,
            transposed=True,
            first=int(_part == "letters"),
        ),
        f"EMNIST {_part}: handwriting in {len(_classes)} classes, 28x28 (data.root: its idx files)",
        kind="digits",
        download=of_torchvision("EMNIST", {"split": _part}),  # one archive of all six
    )

"""FEMNIST: 805,263 characters by 3,550 writers, 28x28 grey (Caldas et al. 2018, LEAF).

The JSON files that LEAF's `preprocess.sh` makes. Ink is dark on white paper, as LEAF has it: unlike
EMNIST, of which these are the originals. Pixels are held in memory: 784 bytes of each image.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_shards.raw import labels_of, located, reading, users_of
from data_shards.sources import SOURCES, Arrays, Source, Split
from fedcore.errors import ShardError

SIDE = 28
NAMES = tuple(digits + ascii_uppercase + ascii_lowercase)  # as LEAF numbers them
CLASSES = len(NAMES)
WAY_OUT = "the file as LEAF's preprocess.sh writes it"


class Writer(NamedTuple):
    """All that one person wrote, in one file."""

    name: str
    images: NDArray[np.uint8]  # [M, 784]
    labels: NDArray[np.int64]


def load(root: Path | None, split: Split) -> Arrays:
    """Images [M, 1, 28, 28] and labels [M], file by file by name; a user is a writer.

    Writers are numbered by the order of their names among those of the split.
    """
    folder = located(root, "femnist")
    folder = folder / "data" if (folder / "data").is_dir() else folder
    files = sorted((folder / split.value).glob("*.json"))
    if not files:
        way_out = "data.root=... with LEAF's data/train/*.json and data/test/*.json in it"
        raise ShardError(str(folder / split.value), "no such folder with *.json", way_out)
    writers = [writer for path in files for writer in _writers(path)]
    if not writers:
        raise ShardError(str(files[0]), "no users", WAY_OUT)
    images = np.concatenate([writer.images for writer in writers])
    labels = np.concatenate([writer.labels for writer in writers])
    names = np.repeat([writer.name for writer in writers], [len(w.labels) for w in writers])
    users = users_of(folder, names, len(labels))
    return Arrays(images.reshape(-1, 1, SIDE, SIDE), labels, users)


def _writers(path: Path) -> Iterator[Writer]:
    """Every writer in the order of the file's `users`."""
    with reading(path, WAY_OUT), path.open(encoding="utf-8") as file:
        # a writer becomes arrays as soon as it is read: as Python's numbers, a file takes gigabytes
        content = json.load(file, object_hook=partial(_shrunk, path))
        names, counts, data = (content[key] for key in ("users", "num_samples", "user_data"))
        for name, count in zip(names, counts, strict=True):
            images, labels = data[name]["x"], data[name]["y"]
            if len(labels) != count:
                problem = f"{len(labels)} samples of {name}, not the {count} of num_samples"
                raise ShardError(str(path), problem, WAY_OUT)
            yield Writer(str(name), images, labels)


def _shrunk(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    """A writer's x and y as arrays; any other object as it is."""
    if not {"x", "y"} <= value.keys():
        return value
    images = np.asarray(value["x"], dtype=np.float64).reshape(-1, SIDE * SIDE)
    if not ((images >= 0) & (images <= 1)).all():  # nor NaN
        raise ShardError(str(path), "a pixel outside of 0...1", WAY_OUT)
    labels = labels_of(path, value["y"], len(images))
    if len(labels) and int(labels.max()) >= CLASSES:
        raise ShardError(str(path), f"a label {labels.max()}", f"labels 0...{CLASSES - 1}")
    return {"x": np.rint(images * 255).astype(np.uint8), "y": labels}


SOURCES.add(
    "femnist",
    Source(
        load,
        kind="digits",
        about="LEAF's FEMNIST: characters of 3,550 writers, 28x28 (data.root: data/train/*.json)",
        classes=CLASSES,
        class_names=NAMES,
        shape=(1, SIDE, SIDE),
    ),
)

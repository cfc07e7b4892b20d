"""SVHN: digits cut from photographs of house numbers, 32x32 colour (Netzer et al. 2011)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_shards.raw import images_of, labels_of, located, reading
from data_shards.sources import DIGITS, SOURCES, Arrays, Source, Split, of_torchvision
from fedcore.errors import ShardError

TEST = {Split.TEST: ("test",)}


def load(files: dict[Split, tuple[str, ...]], root: Path | None, split: Split) -> Arrays:
    """Images [M, 3, 32, 32] and labels [M], in the order of the published files."""
    folder = located(root, "SVHN")
    parts = [_file(folder / f"{name}_32x32.mat") for name in files[split]]
    images, labels = [x.images for x in parts], [x.labels for x in parts]
    return Arrays(np.concatenate(images), np.concatenate(labels))


def _file(path: Path) -> Arrays:
    """X [32, 32, 3, M] and y [M, 1], in which a digit 0 is written as 10."""
    content = _matrices(path)
    rows = images_of(path, np.moveaxis(content["X"], -1, 0), (32, 32, 3))
    labels = labels_of(path, content["y"], len(rows), first=1)
    if len(labels) and int(labels.max()) > 10:
        raise ShardError(str(path), f"a label {labels.max()}", "labels 1...10, 10 for the digit 0")
    return Arrays(np.ascontiguousarray(rows.transpose(0, 3, 1, 2)), labels % 10)


def _matrices(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    way_out = "the complete file as published (cropped digits, format 2)"
    with reading(path, way_out), path.open("rb") as file:
        content: dict[str, Any] = loadmat(file, variable_names=["X", "y"])
    absent = " and ".join(sorted({"X", "y"} - content.keys()))
    if absent:
        raise ShardError(str(path), f"no matrix {absent}", way_out)
    return content


def _add(name: str, train: tuple[str, ...], about: str) -> None:
    SOURCES.add(
        name,
        Source(
            partial(load, {Split.TRAIN: train} | TEST),
            # no flip and no colour, though the published runs draw both: a mirrored 2 is no digit
            kind="digits",
            about=about,
            classes=10,
            class_names=DIGITS,
            shape=(3, 32, 32),
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            download=of_torchvision("SVHN", *({"split": part} for part in (*train, "test"))),
        ),
    )


_add("svhn", ("train",), "99,289 house-number digits, 32x32 (data.root: train_32x32.mat ...)")
_add("svhn_extra", ("train", "extra"), "svhn with its 531,131 easier training digits")

"""Tiny-ImageNet: 110,000 photographs in 200 classes, 64x64 (Stanford CS231n, 2015).

Its test images have no published labels: as everywhere, the validation split is the test split.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_shards.pictures import of_paths
from data_shards.raw import lines_of, located
from data_shards.samples import Files
from data_shards.sources import SOURCES, Source, Split
from fedcore.errors import ShardError
from fedcore.files import inside

FOLDER = "tiny-imagenet-200"
SIZE = 64
CLASSES = 200
WAY_OUT = f"unpacking {FOLDER}.zip again, and data.root=... with {FOLDER} in it"


def load(root: Path | None, split: Split) -> Files:
    """Images [M, 3, 64, 64], also of grey files; labels [M] number the classes of wnids.txt."""
    folder = located(root, FOLDER)
    names = lines_of(folder / "wnids.txt", WAY_OUT)
    if len(set(names)) < len(names):
        raise ShardError(str(folder / "wnids.txt"), "a class is listed twice", WAY_OUT)
    listed = _train(folder, names) if split is Split.TRAIN else _validation(folder)
    numbers = {name: number for number, name in enumerate(names)}
    unknown = sorted({name for _, name in listed} - numbers.keys())
    if unknown or not listed:
        problem = f"class {unknown[0]} is not listed" if unknown else f"no {split.value} images"
        raise ShardError(str(folder / "wnids.txt"), problem, WAY_OUT)
    found = of_paths([path for path, _ in listed], [numbers[name] for _, name in listed])
    return found.of_one_size((3, SIZE, SIZE), WAY_OUT)


def class_names(root: Path | None) -> list[str] | None:
    """The WordNet ids of wnids.txt; None for a part of the dataset, which has classes unnamed."""
    names = lines_of(located(root, FOLDER) / "wnids.txt", WAY_OUT)
    return names if len(names) == CLASSES else None


def _train(folder: Path, names: Sequence[str]) -> list[tuple[Path, str]]:
    """Every training image with its class, class by class, by name within a class."""
    listed = []
    for name in names:
        images = inside(folder / "train", name) / "images"
        if not images.is_dir():
            raise ShardError(str(images), "no such folder", WAY_OUT)
        found = sorted(images.glob("*.JPEG"))
        if not found:
            raise ShardError(str(images), "no *.JPEG in it", WAY_OUT)
        listed += [(path, name) for path in found]
    return listed


def _validation(folder: Path) -> list[tuple[Path, str]]:
    """Every validation image with its class, in the order of the published list."""
    listing = folder / "val" / "val_annotations.txt"
    rows = [line.split("\t") for line in lines_of(listing, WAY_OUT)]
    if any(len(row) < 2 for row in rows):
        raise ShardError(str(listing), "a line without file and class", WAY_OUT)
    return [(inside(folder / "val" / "images", row[0]), row[1]) for row in rows]


SOURCES.add(
    "tiny_imagenet",
    Source(
        load,
        kind="natural",
        about="110,000 photographs in 200 classes, 64x64 (data.root: tiny-imagenet-200)",
        classes=CLASSES,
        read_names=class_names,
        shape=(3, SIZE, SIZE),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
    ),
)

"""Your own images, a folder for each class: jpg, jpeg, png and webp, read when they are asked for.

`data.root` has train/CLASS/* and test/CLASS/* (or val/CLASS/*), or CLASS/* of which a fifth becomes
the test split. Hidden files and links that lead out of the root are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data_shards.pictures import ENDINGS, Pictures, of_paths, shape_of
from data_shards.samples import Files
from data_shards.sources import SOURCES, Source, Split, rows_of
from fedcore.errors import ConfigError, ShardError

OTHERS = (".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif", ".heic")
LAYOUT = "train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png"


def load(root: Path | None, split: Split, size: int | None) -> Files:
    """Images as the training images are (colour unless all are grey); labels by name of class.

    size: height and width all are brought to; None = they have one size, or it is a `ShardError`.
    """
    if root is None:
        raise ConfigError("data.root", None, f"a folder with {LAYOUT}", "--set data.root=pictures")
    train = _pictures(root, Split.TRAIN)
    shape = shape_of(root, map(train.head, range(len(train.names))), size)
    found = train if split is Split.TRAIN else _pictures(root, split)
    return found.as_files(shape) if size else found.of_one_size(shape)


def class_names(root: Path | None) -> list[str] | None:
    """The names of the folders, of which the n-th has the label n."""
    if root is None or not root.is_dir():
        return None  # told by `load`
    return _classes(root, _place(root, Split.TRAIN))


def _pictures(root: Path, split: Split) -> Pictures:
    """All images of the split, class by class, by name within a class."""
    if not root.is_dir():
        raise ShardError(str(root), "no such folder", f"data.root=... with {LAYOUT}")
    classes = _classes(root, _place(root, Split.TRAIN))
    if not classes:
        raise ShardError(str(root), "no such files: no class has a folder", LAYOUT)
    folder = _place(root, split)
    listed = list(_listed(root, folder, classes))
    paths, labels = [path for path, _ in listed], [label for _, label in listed]
    if folder != root:
        return of_paths(paths, labels)
    rows = rows_of(np.array(labels), split).tolist()
    return of_paths([paths[row] for row in rows], [labels[row] for row in rows])


def _place(root: Path, split: Split) -> Path:
    """Where the split's classes lie: the root, if it is not split; `val` may stand for `test`."""
    if not any((root / name).is_dir() for name in ("train", "test", "val")):
        return root
    names = ("train",) if split is Split.TRAIN else ("test", "val")
    for name in names:
        if (root / name).is_dir():
            return root / name
    raise ShardError(str(root), f"no such folder in it: {' or '.join(names)}", LAYOUT)


def _classes(root: Path, folder: Path) -> list[str]:
    return [place.name for place in _within(root, folder) if place.is_dir()]


def _listed(root: Path, folder: Path, classes: Sequence[str]) -> Iterator[tuple[Path, int]]:
    """Every image below the folder with its label."""
    numbers = {name: number for number, name in enumerate(classes)}
    for name in _classes(root, folder):
        if name not in numbers:
            problem = "is a class without training images"
            raise ShardError(str(folder / name), problem, "the same classes in both splits")
        images = [path for path in _within(root, folder / name) if _is_image(path)]
        if not images:
            problem = f"has no {' '.join(ENDINGS)} directly in it"
            raise ShardError(str(folder / name), problem, "images in it, or removing it")
        yield from ((path, numbers[name]) for path in images)


def _is_image(path: Path) -> bool:
    """Whether it is one that can be read; one of another kind is told and not left out."""
    if path.suffix.lower() in OTHERS:
        raise ShardError(str(path), "is none of jpg, png and webp", "converting it to png")
    return path.suffix.lower() in ENDINGS and path.is_file()


def _within(root: Path, folder: Path) -> list[Path]:
    """What lies in the folder, by name: nothing hidden, no link that leads out of the root."""
    top = root.resolve()
    return [
        path
        for path in sorted(folder.iterdir())
        if not path.name.startswith(".")
        and not (path.is_symlink() and not path.resolve().is_relative_to(top))
    ]


SOURCES.add(
    "image_folder",
    Source(
        load,
        kind="natural",
        about="your own images, a folder for each class (data.root)",
        takes=("size",),
        read_names=class_names,
    ),
)

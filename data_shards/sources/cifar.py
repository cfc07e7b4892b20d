"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32x32 each (Krizhevsky 2009), python version."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_shards.raw import images_of, labels_of, located, reading, texts_of
from data_shards.sources import SOURCES, Arrays, Source, Split, of_torchvision
from data_shards.unpickle import unpickle
from fedcore.errors import ShardError

Channels = tuple[float, float, float]

PIXELS = 3 * 32 * 32  # of a row: red, then green, then blue


class Layout(NamedTuple):
    """What the archive unpacks to."""

    folder: str
    archive: str
    files: dict[Split, tuple[str, ...]]
    labels: str  # the key of the labels in a batch
    meta: str  # the file that names the classes
    names: str  # the key of their names in it

    @property
    def way_out(self) -> str:
        """What to do about a damaged file."""
        return f"unpacking {self.archive} again, and data.root=... with {self.folder} in it"


CIFAR10 = Layout(
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    {Split.TRAIN: tuple(f"data_batch_{i}" for i in range(1, 6)), Split.TEST: ("test_batch",)},
    "labels",
    "batches.meta",
    "label_names",
)
CIFAR100 = Layout(
    "cifar-100-python",
    "cifar-100-python.tar.gz",
    {Split.TRAIN: ("train",), Split.TEST: ("test",)},
    "fine_labels",
    "meta",
    "fine_label_names",
)


def load(layout: Layout, root: Path | None, split: Split) -> Arrays:
    """Images [M, 3, 32, 32] and labels [M], in the order of the published batches."""
    folder = located(root, layout.folder)
    batches = [_batch(folder / name, layout) for name in layout.files[split]]
    images, labels = [x.images for x in batches], [x.labels for x in batches]
    return Arrays(np.concatenate(images), np.concatenate(labels))


def read_names(layout: Layout, root: Path | None) -> Sequence[str] | None:
    """As the file beside the batches says, in the order of labels; None without that file."""
    path = located(root, layout.folder) / layout.meta
    if not path.is_file():
        return None
    with reading(path, layout.way_out):
        names = _with_text_keys(unpickle(path)).get(layout.names)
    return None if names is None else texts_of(path, names)


def _batch(path: Path, layout: Layout) -> Arrays:
    """One published file: a dictionary with rows [M, 3072] and a list of labels."""
    with reading(path, layout.way_out):
        content = _with_text_keys(unpickle(path))
    missing = {"data", layout.labels} - content.keys()
    if missing:
        found = ", ".join(map(str, content)) or "none"
        problem = f"no {' and '.join(sorted(missing))} among {found}"
        raise ShardError(str(path), problem, layout.way_out)
    rows = images_of(path, content["data"], (PIXELS,))
    return Arrays(rows.reshape(-1, 3, 32, 32), labels_of(path, content[layout.labels], len(rows)))


def _with_text_keys(content: Any) -> dict[Any, Any]:
    """Keys are bytes, as Python 2 wrote them, or text in a copy that a later Python made."""
    return {k.decode() if isinstance(k, bytes) else k: v for k, v in dict(content).items()}


def _add(
    layout: Layout,
    classes: int,
    mean: Channels,
    std: Channels,
    class_names: tuple[str, ...] | None = None,
) -> None:
    about = f"60,000 photographs in {classes} classes, 32x32 (data.root: {layout.folder})"
    facts: dict[str, Any] = {"classes": classes, "shape": (3, 32, 32), "mean": mean, "std": std}
    facts |= {"class_names": class_names, "read_names": partial(read_names, layout)}
    fetch = of_torchvision(f"CIFAR{classes}", {})  # both splits are in one archive
    source = Source(partial(load, layout), "natural", about, **facts, download=fetch)
    SOURCES.add(f"cifar{classes}", source)


_add(
    CIFAR10,
    10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    class_names=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
)
_add(CIFAR100, 100, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))

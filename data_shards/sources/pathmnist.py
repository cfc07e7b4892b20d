"""PathMNIST: 28x28 tissue patches of colorectal cancer, 9 classes (Yang et al. 2023, MedMNIST v2).

89,996 training and 7,180 test images; the 10,004 validation images are not used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_shards.raw import images_of, labels_of, located, reading
from data_shards.sources import SOURCES, Arrays, Source, Split

FILE = "pathmnist.npz"


def load(root: Path | None, split: Split) -> Arrays:
    """Images [M, 3, 28, 28] and labels [M], in the order of the published file."""
    place = located(root, FILE)
    path = place / FILE if place.is_dir() else place
    with (
        reading(path, f"the complete {FILE} as published"),
        np.load(path, allow_pickle=False) as file,
    ):
        images, labels = file[f"{split.value}_images"], file[f"{split.value}_labels"]
    rows = images_of(path, images, (28, 28, 3))
    channels_first = np.ascontiguousarray(rows.transpose(0, 3, 1, 2))
    return Arrays(channels_first, labels_of(path, labels, len(rows)))


SOURCES.add(
    "pathmnist",
    Source(
        load,
        kind="natural",
        about="97,176 tissue patches in 9 classes, 28x28 (data.root: pathmnist.npz)",
        classes=9,
        class_names=(  # as MedMNIST publishes them
            *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle"),
            *("normal colon mucosa", "cancer-associated stroma"),
            "colorectal adenocarcinoma epithelium",
        ),
        shape=(3, 28, 28),
        mean=(0.5, 0.5, 0.5),  # as MedMNIST publishes it
        std=(0.5, 0.5, 0.5),
    ),
)

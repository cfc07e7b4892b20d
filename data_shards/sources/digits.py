"""scikit-learn's digits: 1,797 grey 8x8 images of handwritten digits (UCI, Alpaydin & Kaynak)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_shards.sources import DIGITS, SOURCES, Arrays, Source, Split, stratified


def load(root: Path | None, split: Split) -> Arrays:
    """Images [M, 1, 8, 8]: the published 0...16 spread over 0...255; a fixed 80/20 split."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = np.rint(raw.images * (255 / 16)).astype(np.uint8)[:, None]
    return stratified(images, raw.target.astype(np.int64), split)


SOURCES.add(
    "digits",
    Source(
        load,
        kind="digits",
        about="1,797 handwritten digits, 8x8 (scikit-learn)",
        bundled=True,
        classes=10,
        class_names=DIGITS,
        shape=(1, 8, 8),
    ),
)

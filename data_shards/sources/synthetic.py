"""Class-conditional images that are made when they are asked for, as many and as hard as wanted.

An image is a sum of 4 x 4 cosine waves in each channel. A class has fixed waves, drawn once for
all runs; an image has its class's, weaker or stronger, with noise on each, and all are moved a
little. At difficulty 1 the boundary between two classes lies two standard deviations of the noise
away from each, so that no model separates them fully; the noise grows with the difficulty.

A draw has an address (split, row, number), and sums are of whole numbers below 2^53: an image is
the same in whatever batch it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_shards.samples import Labels, Pixels, Shape
from data_shards.sources import SOURCES, Source, Split
from fedcore.config_data import SyntheticConfig
from fedcore.errors import ConfigError

Floats = NDArray[np.float64]
Whole = NDArray[np.uint64]

SEED = 20_240_102  # of all that is drawn: a constant of the dataset, not of a run
STREAMS = {Split.TRAIN: 1, Split.TEST: 2}  # the draws of classes are stream 0
WAVES = 4  # of each axis: none, a half, one and one and a half in the image
UNIT = 2.0**13  # whole numbers stand for this many parts of 1
CONTRAST = 45.0  # standard deviation of pixels, of 0...255
TWICE = np.array([*range(WAVES), *range(1, WAVES)])  # of each cosine and sine: which wave it is of
CHUNK = 2**18  # pixels that are made at a time


def load(root: Path | None, split: Split, synthetic: SyntheticConfig) -> Synthetic:
    """Images [M, channels, size, size], none of them made yet; labels [M], equally often."""
    wanted = synthetic
    if wanted.samples < wanted.classes:
        key, want = "data.synthetic.samples", f"at least one for each of {wanted.classes} classes"
        raise ConfigError(key, wanted.samples, want, f"{key}={wanted.classes * 100}")
    return Synthetic(wanted, split)


@dataclass(frozen=True)
class Synthetic:
    """The images of a split."""

    settings: SyntheticConfig
    split: Split
    users: None = None

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image."""
        return self.settings.channels, self.settings.size, self.settings.size

    @cached_property
    def labels(self) -> Labels:
        """Of each sample [M]: every class equally often but for one, in an order by chance."""
        train = self.split is Split.TRAIN
        count = self.settings.samples if train else self.settings.test_samples
        draws = np.random.default_rng([SEED, STREAMS[self.split]])
        return draws.permutation(np.arange(count, dtype=np.int64) % self.settings.classes)

    def pixels(self, rows: NDArray[np.int64]) -> Pixels:
        """Images [len(rows), channels, size, size]."""
        images = np.empty((len(rows), *self.shape), dtype=np.uint8)
        each = max(1, CHUNK // int(np.prod(self.shape)))
        for start in range(0, len(rows), each):
            part = slice(start, start + each)
            images[part] = self._made(rows[part])
        return images

    def file(self, row: int) -> None:
        """None: generated images are no files."""

    def _made(self, rows: NDArray[np.int64]) -> Pixels:
        """A chunk of them: waves, moved, summed up, and spread over 0...255."""
        there = min(self.settings.difficulty, 1.0)  # how much they vary, besides the noise
        drawn = _draws(STREAMS[self.split], rows, 3 + self._patterns.shape[1])
        amplitude = 1 + there * (_uniform(drawn[:, :1]) - 0.5) / 2  # 3/4...5/4
        down, across = (there * (_uniform(drawn[:, i]) - 0.5) / 4 for i in (1, 2))  # of the size
        waves = amplitude * self._patterns[self.labels[rows]] + self._noise * _normal(drawn[:, 3:])
        moved = _moved(waves / np.hypot(1, self._noise), down, across)
        summed = _summed(moved, self.settings.size) * (CONTRAST / WAVES / UNIT**3)
        return np.clip(np.rint(summed + 127.5), 0, 255).astype(np.uint8)

    @cached_property
    def _patterns(self) -> Floats:
        """Of each class [C, channels * 16], unit normal."""
        count = self.settings.channels * WAVES**2
        return _normal(_draws(0, np.arange(self.settings.classes), count))

    @property
    def _noise(self) -> float:
        """Standard deviation along any line: at 1, a quarter of the distance of two classes."""
        distance = np.sqrt(2 * self.settings.channels * WAVES**2)
        return float(self.settings.difficulty * distance / 4)


def _moved(waves: Floats, down: Floats, across: Floats) -> Floats:
    """Cosines and sines [R, channels, 7, 7] of waves [R, channels * 16] moved by a part of 1 [R].

    cos(w (x - d)) = cos(w d) cos(w x) + sin(w d) sin(w x), on each axis; whole numbers, UNIT = 1.
    """
    both = waves.reshape(len(waves), -1, WAVES, WAVES)[:, :, TWICE[:, None], TWICE]
    turned = UNIT * both * _cos_and_sin(down)[:, None, :, None]
    return np.rint(turned * _cos_and_sin(across)[:, None, None, :])


def _summed(waves: Floats, size: int) -> Floats:
    """Images [R, channels, size, size] of their cosines and sines [R, channels, 7, 7]; exact."""
    at = (np.arange(size) + 0.5) / size
    table = np.rint(UNIT * np.where(TWICE, np.sqrt(2), 1) * _cos_and_sin(at))  # [size, 7]
    lines = waves.reshape(-1, len(TWICE)) @ table.T
    columns = lines.reshape(*waves.shape[:3], size).swapaxes(2, 3)
    return (columns @ table.T).swapaxes(2, 3)


def _cos_and_sin(at: Floats) -> Floats:
    """Of each wave [..., 7]: four cosines, and three sines, since the first would be 0."""
    angle = np.pi * at[..., None] * np.arange(WAVES)
    return np.concatenate([np.cos(angle), np.sin(angle[..., 1:])], axis=-1)


def _draws(stream: int, rows: NDArray[np.int64], count: int) -> Whole:
    """64 bits by chance [R, count] for each row and number (SplitMix64 of the address)."""
    first = np.asarray(rows, np.uint64)[:, None] * np.uint64(256)
    numbers = np.arange(SEED + (stream << 56), SEED + (stream << 56) + count, dtype=np.uint64)
    address: Whole = np.add(first, numbers, dtype=np.uint64)
    bits: Whole = address * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Whole = bits ^ (bits >> np.uint64(31))
    return mixed


def _uniform(bits: Whole) -> Floats:
    """In 0...1."""
    return np.asarray(bits >> np.uint64(11), np.float64) * 2.0**-53


def _normal(bits: Whole) -> Floats:
    """Unit normal but for its far tails: the sum of four numbers of 16 bits."""
    summed = np.zeros(bits.shape)
    for low in (0, 16, 32, 48):
        summed += (bits >> np.uint64(low)) & np.uint64(0xFFFF)
    unit: Floats = (summed - 2 * (2**16 - 1)) * (3 / (2.0**32 - 1)) ** 0.5
    return unit


SOURCES.add(
    "synthetic",
    Source(
        load,
        # no flip: a mirrored pattern is no longer its class's; waves this long bear the rest
        kind="digits",
        about="generated images: data.synthetic says how many and how hard",
        bundled=True,
        takes=("synthetic",),
    ),
)

"""Feature skew: clients whose images differ in kind. Pure functions of (pixels, domain, seed).

Client k is of domain k mod `data.domains`, test sample i of domain i mod `data.domains`: the test
split is the mixture. Images are skewed when they are asked for, and stay uint8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from data_shards.augment import shift_hue
from data_shards.samples import Labels, Pixels, Samples, Shape
from fedcore.config_data import DataConfig
from fedcore.errors import ConfigError
from fedcore.seeds import EVERYONE, seed

Rows = NDArray[np.int64]

TOGETHER = 1024  # images that are skewed at a time: as floats they take four times the memory


def skewed_by_client(
    samples: Samples, parts: Sequence[Rows], data: DataConfig, run_seed: int
) -> Samples:
    """The training split, each client's part [N] in its domain; as it is without a skew."""
    if data.skew == "none":
        return samples
    channels = samples.shape[0]
    if data.skew == "colour" and channels not in (1, 3):
        want = f"images of 1 or 3 channels, and those of {data.source} have {channels}"
        raise ConfigError("data.skew", "colour", want, "data.skew=rotation")
    domains = np.zeros(len(samples.labels), dtype=np.int64)
    for client, part in enumerate(parts):
        domains[part] = domain_of(client, data.domains)
    return Skewed(samples, domains, data, seed(run_seed, EVERYONE, 0, "skew"))


def skewed_test(samples: Samples, data: DataConfig, run_seed: int) -> Samples:
    """The test split, its domains in turn; as it is without a skew."""
    if data.skew == "none":
        return samples
    domains = np.arange(len(samples.labels)) % data.domains
    return Skewed(samples, domains, data, seed(run_seed, EVERYONE, 0, "skew of the test split"))


def domain_of(client: int, domains: int) -> int:
    """The number of the domain that a client's images are in."""
    return client % domains


def skewed_shape(shape: Shape, data: DataConfig) -> Shape:
    """The shape that images have once they are skewed: a tint needs three channels."""
    return (3, *shape[1:]) if data.skew == "colour" else shape


@dataclass(frozen=True)
class Skewed:
    """Samples of which each is shown in its domain. Follows `Samples`."""

    samples: Samples
    domains: Labels  # of each sample [M]
    data: DataConfig
    seed: int  # of the noise

    @property
    def labels(self) -> Labels:
        """Labels [M]: a feature skew leaves them as they are."""
        return self.samples.labels

    @property
    def users(self) -> Labels | None:
        """The user of each sample [M], as the source knows them; None = not known."""
        return self.samples.users

    @property
    def shape(self) -> Shape:
        """Of every image that `pixels` returns."""
        return skewed_shape(self.samples.shape, self.data)

    def pixels(self, rows: Rows) -> Pixels:
        """Images [len(rows), channels, height, width]; one is the same whatever it is read with."""
        images = np.empty((len(rows), *self.shape), dtype=np.uint8)
        for start in range(0, len(rows), TOGETHER):
            some = rows[start : start + TOGETHER]
            plain, domains = self.samples.pixels(some), self.domains[some]
            for domain in np.unique(domains).tolist():
                at = np.flatnonzero(domains == domain)
                images[start + at] = skewed(plain[at], some[at], domain, self.data, self.seed)
        return images

    def file(self, row: int) -> None:
        """A skewed image has no file."""


def skewed(images: Pixels, rows: Rows, domain: int, data: DataConfig, noise_seed: int) -> Pixels:
    """Images uint8 [n, channels, height, width] of the samples `rows`, as that domain has them."""
    if data.skew == "rotation":
        return rotated(images, domain, data.domains)
    if data.skew == "colour":
        return tinted(images, domain / data.domains)
    if data.skew == "noise":
        return noisy(images, rows, data.strength * domain / (data.domains - 1), noise_seed)
    return images


def rotated(images: Pixels, domain: int, domains: int) -> Pixels:
    """Turned by domain / domains of a full circle, anticlockwise (Ghifary et al. 2015).

    Quarter turns are exact; other angles are bilinear, and black where there was no image.
    """
    quarters, rest = divmod(4 * domain, domains)
    square = images.shape[2] == images.shape[3]
    if not rest and (square or quarters % 2 == 0):
        return np.rot90(images, quarters, axes=(2, 3))
    from torchvision.transforms.v2 import InterpolationMode, functional  # slow to load

    plain = torch.from_numpy(np.ascontiguousarray(images))
    turned = functional.rotate(plain, 360 * domain / domains, InterpolationMode.BILINEAR)
    return np.asarray(turned)


def tinted(images: Pixels, turns: float) -> Pixels:
    """RGB with the hue shifted by `turns` of the colour circle; grey images in that hue.

    Grey becomes red at 0: shades of one colour as bright as they were, their largest channel the
    grey image (Arjovsky et al. 2019, two colours).
    """
    if images.shape[1] == 1:
        nothing = np.zeros_like(images)
        images = np.concatenate([images, nothing, nothing], axis=1)
    if turns == 0:
        return images
    plain = torch.from_numpy(np.ascontiguousarray(images)).double() / 255
    shifted = shift_hue(plain, torch.full((len(images),), turns, dtype=torch.float64))
    return np.asarray((shifted * 255).round().to(torch.uint8))


def noisy(images: Pixels, rows: Rows, std: float, noise_seed: int) -> Pixels:
    """With Gaussian noise of that standard deviation, of images in 0...1 (Li et al. 2022).

    Each sample's noise has a seed address of its own.
    """
    if std == 0:
        return images
    noised = np.empty_like(images)
    for i, row in enumerate(rows.tolist()):
        draws = np.random.default_rng(seed(noise_seed, EVERYONE, 0, "noise", row))
        noise = draws.standard_normal(images.shape[1:], dtype=np.float32)
        noised[i] = np.clip(np.rint(images[i] + 255 * std * noise), 0, 255)
    return noised

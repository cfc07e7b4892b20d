"""The network of the comparisons with other simulators: two convolutions and two linear layers.

conv 3-32-64 (3x3, padding 1), each with ReLU and max-pool, then 4096-128-10: 545,098 parameters.
Ours ends in 128 features and ten prototypes, which have no bias: 545,088.
"""

from __future__ import annotations

from torch import nn

from fedcore.models import MODELS, Encoder, ModelSpec

WIDTH = 128


def layers(channels: int = 3, height: int = 32, width: int = 32) -> list[nn.Module]:
    """Images to 128 features."""
    return [
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), WIDTH),
        nn.ReLU(),
    ]


def plain(classes: int = 10) -> nn.Sequential:
    """The whole network, as one writes it by hand."""
    return nn.Sequential(*layers(), nn.Linear(WIDTH, classes))


def build(spec: ModelSpec) -> Encoder:
    """Its encoder, for fedcore."""
    return Encoder(nn.Sequential(*layers(spec.channels, spec.height, spec.width)), WIDTH)


MODELS.add("bench_cnn", build)

"""A small CNN for 8x8...32x32 digits: three 3x3 convolutions, D = 64."""

from __future__ import annotations

from torch import nn

from fedcore.models import MODELS, Encoder, ModelSpec


def build(spec: ModelSpec) -> Encoder:
    """conv 16 - pool - conv 32 - pool - conv 64 - global mean, each with batch norm."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return Encoder(
        nn.Sequential(
            *block(spec.channels, 16),
            nn.MaxPool2d(2),
            *block(16, 32),
            nn.MaxPool2d(2),
            *block(32, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        64,
    )


MODELS.add("small_cnn", build)

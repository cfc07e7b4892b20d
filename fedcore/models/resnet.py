"""ResNet-18 for CIFAR-sized images (He et al. 2016): 3x3 stem, no max-pool, D = 512."""

from __future__ import annotations

from torch import nn

from fedcore.models import MODELS, Encoder, ModelSpec


def build(spec: ModelSpec) -> Encoder:
    """torchvision's network with the stem that small images need; returns features."""
    from torchvision.models import resnet18  # on use: importing it takes longer than torch

    network = resnet18()
    network.conv1 = nn.Conv2d(spec.channels, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    return Encoder(network, 512)


MODELS.add("resnet18", build)

"""MobileNetV2 for CIFAR-sized images (Sandler et al. 2018): total stride 8, not 32; D = 1280."""

from __future__ import annotations

from torch import nn

from fedcore.models import MODELS, Encoder, ModelSpec

# expansion, channels, blocks, stride: the published table, whose second stage halves the image too;
# here, as in the stem, it does not, so that 32x32 ends as 4x4 and not as a single pixel
STAGES = [
    [1, 16, 1, 1],
    [6, 24, 2, 1],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
]


def build(spec: ModelSpec) -> Encoder:
    """torchvision's network with strides that small images need; returns features."""
    from torchvision.models import MobileNetV2  # on use: importing it takes longer than torch

    network = MobileNetV2(inverted_residual_setting=STAGES)
    stem = nn.Conv2d(spec.channels, 32, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out")  # as torchvision starts the others
    network.features[0][0] = stem
    network.classifier = nn.Identity()
    return Encoder(network, network.last_channel)


MODELS.add("mobilenet_v2", build)

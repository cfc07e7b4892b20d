"""Encoders, one file each. A file that calls `MODELS.add(name, build)` is found by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from fedcore.registry import Registry


class ModelSpec(NamedTuple):
    """What an encoder is built for."""

    channels: int
    height: int
    width: int
    classes: int
    feature_dim: int | None = None  # None = the encoder's own D


class Encoder(NamedTuple):
    """A module images [B, channels, height, width] -> features [B, D], and its D."""

    module: nn.Module
    width: int


Builder = Callable[[ModelSpec], Encoder]

MODELS: Registry[Builder] = Registry("model.name", "fedcore.models")

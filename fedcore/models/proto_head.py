"""Any encoder, with learnable class prototypes P [C, D] beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedcore.models import MODELS, ModelSpec
from fedcore.seeds import EVERYONE, seed


class ProtoHead(nn.Module):
    """images -> features [B, D], not normalised; `prototypes` is a parameter the losses use."""

    def __init__(self, encoder: nn.Module, classes: int, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.prototypes = nn.Parameter(torch.randn(classes, width))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder(images)
        return features


def build_model(name: str, spec: ModelSpec, run_seed: int) -> ProtoHead:
    """The model every client starts from, drawn at the address (run seed, everyone, 0, "model")."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed(run_seed, EVERYONE, 0, "model"))
        encoder, width = MODELS.get(name)(spec)
        if spec.feature_dim is not None and spec.feature_dim != width:
            encoder, width = (
                nn.Sequential(encoder, nn.Linear(width, spec.feature_dim)),
                spec.feature_dim,
            )
        return ProtoHead(encoder, spec.classes, width)

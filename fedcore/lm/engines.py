"""Engines by name; each library is imported when its engine is asked for."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from fedcore.config import RunConfig
from fedcore.lm.engine import Engine, PlainEngine


def build_engine(
    config: RunConfig,
    model: nn.Module,
    optimiser: Optimizer,
    device: torch.device,
    ranks: int,
    rank: int,
) -> Engine:
    """The configured engine over a model on `device` and its optimiser. Collective."""
    assert config.lm is not None
    if config.lm.engine == "deepspeed":
        from fedcore.lm.engine_deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(config, model, optimiser, device, ranks, rank)
    if config.lm.engine == "accelerate":
        from fedcore.lm.engine_accelerate import AccelerateEngine

        return AccelerateEngine(config, model, optimiser, device, ranks, rank)
    return PlainEngine(config, model, optimiser, device, ranks, rank)

"""The optimiser on stacked tensors: SGD with momentum, and the per-client clip of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcore.clients.state import ClientState, Tensors
from fedcore.objective.weighting import LOG_VAR_LIMIT
from fedcore.schedule import Progress, Schedule


@dataclass(frozen=True, kw_only=True)
class Hyper:
    """A client's optimiser settings."""

    lr: float  # of parameters, at its peak
    lr_schedule: Schedule
    lr_log_var: float  # of the two log-variances, constant
    momentum: float
    weight_decay: float  # of parameters
    max_norm: float  # of the gradient of all of a client's parameters together
    carry_momentum: bool


def clip_each(grads: Tensors, max_norm: float) -> tuple[Tensors, Tensor, Tensor]:
    """Scale each client's gradient to norm <= max_norm; also the scale [K] and the norm [K] before.

    Squares of the log-variances' gradient are taken in float64: a loss far from its variance has
    one that float32 cannot square, and an infinite norm would stop all of the client's parameters.
    """
    wide = {k: g.double() if k == "log_var" else g for k, g in grads.items()}
    squares = [g.flatten(1).square().sum(1).double() for g in wide.values()]
    norm = torch.stack(squares).sum(0).sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1)
    clipped = {k: (g * over(scale.to(wide[k].dtype), g)).to(g.dtype) for k, g in grads.items()}
    return clipped, scale, norm


def over(values: Tensor, like: Tensor) -> Tensor:
    """`values` [K] with axes of length 1 added, so that it broadcasts against `like` [K, ...]."""
    return values.view(-1, *[1] * (like.dim() - 1))


def sgd(state: ClientState, grads: Tensors, hyper: Hyper, at: Progress) -> ClientState:
    """m <- mu m + g + wd w; w <- w - lr m (Sutskever et al. 2013, in torch's form).

    Log-variances have their own rate, no decay, and stay within LOG_VAR_LIMIT.
    """
    lr = hyper.lr * hyper.lr_schedule(at)
    memory, moved = {}, {}
    for name, value in state.moved_tensors().items():
        grad = grads.get(name)
        if grad is None:  # a lambda that no gradient moves, a classifier that is fixed
            memory[name], moved[name] = state.memory[name], value
            continue
        own = name == "log_var"
        if hyper.weight_decay and not own:
            grad = grad + hyper.weight_decay * value
        memory[name] = hyper.momentum * state.memory[name] + grad
        moved[name] = value - (hyper.lr_log_var if own else lr) * memory[name]
    log_var = moved.pop("log_var")
    if "log_var" in grads:
        log_var = log_var.clamp(-LOG_VAR_LIMIT, LOG_VAR_LIMIT)
    return ClientState(moved, state.buffers, log_var, memory, state.steps + 1, state.kept)

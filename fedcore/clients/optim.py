"""The optimiser on flat rows: SGD with momentum, and the per-client clip of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcore.clients.layout import Tensors
from fedcore.clients.state import LOG_VAR_MEMORY, MEMORY, ClientState
from fedcore.objective.weighting import LOG_VAR_LIMIT
from fedcore.schedule import Progress, Schedule


@dataclass(frozen=True, kw_only=True)
class Hyper:
    """How a client's optimiser moves its parameters and its log-variances."""

    lr: float  # of parameters, at its peak
    lr_schedule: Schedule
    lr_log_var: float  # of the two log-variances, constant
    momentum: float
    weight_decay: float  # of parameters
    max_norm: float  # of the gradient of all of a client's parameters together
    carry_momentum: bool


def clip_each(grads: Tensor, pull: Tensor | None, max_norm: float) -> tuple[Tensor, Tensor]:
    """Scale each client's gradient to norm <= max_norm, in place; the scale [K], the norm [K].

    grads [K, P] of the parameters; pull [K, 2] of the log-variances. Its squares are taken in
    float64: a loss far from its variance has a gradient that float32 cannot square, and an infinite
    norm would stop all of the client's parameters.
    """
    norm: Tensor = torch.linalg.vector_norm(grads, dim=1).double()
    if pull is not None:
        norm = (norm.square() + pull.double().square().sum(1)).sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1)
    if scale.device.type == "cpu" and bool((scale == 1).all()):
        return scale, norm  # on a CPU to look is cheaper than to multiply by one
    grads.mul_(scale.to(grads.dtype)[:, None])
    if pull is not None:
        pull.copy_(pull * scale[:, None])
    return scale, norm


def over(values: Tensor, like: Tensor) -> Tensor:
    """`values` [K] with axes of length 1 added, so that it broadcasts against `like` [K, ...]."""
    return values.view(-1, *[1] * (like.dim() - 1))


def sgd(
    state: ClientState,
    grads: Tensor,
    pull: Tensor | None,
    hyper: Hyper,
    at: Progress,
    fixed: Sequence[str] = (),
) -> None:
    """m <- mu m + g + wd w; w <- w - lr m (Sutskever et al. 2013, in torch's form), in place.

    grads [K, P] is used up; fixed: parameters that stay. Log-variances (pull [K, 2]; None = nothing
    moves them) have their own rate, no decay, and stay within LOG_VAR_LIMIT.
    """
    if hyper.weight_decay:
        grads.add_(state.weights, alpha=hyper.weight_decay)
        for name in fixed:
            state.layout.views(grads)[name].zero_()
    memory = remembered(state.flat, MEMORY, grads, hyper.momentum)
    subtract(state.weights, memory, hyper.lr * hyper.lr_schedule(at))
    if pull is not None:
        own = remembered(state.kept, LOG_VAR_MEMORY, pull, hyper.momentum)
        state.log_var.sub_(hyper.lr_log_var * own).clamp_(-LOG_VAR_LIMIT, LOG_VAR_LIMIT)
    state.steps.add_(1)


def remembered(held: Tensors, name: str, grads: Tensor, momentum: float) -> Tensor:
    """m <- mu m + g under that name; a memory that is not there yet is 0, and becomes g itself."""
    if name not in held:
        held[name] = grads
    else:
        held[name].mul_(momentum).add_(grads)
    return held[name]


def subtract(values: Tensor, other: Tensor, rate: Tensor) -> None:
    """values <- values - rate other, in place; rate []. Nothing is waited for."""
    if rate.device.type == "cpu":
        values.sub_(other, alpha=float(rate))  # as a number: a tensor would be read as often as P
    else:
        values.addcmul_(other, -rate)

"""Learners of lambda that look at gradients of the weights: GradNorm, and the hypergradient.

Both move l = log raw lambda and leave a = 0. Everything is per client, with the axis K first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.clients.optim import Hyper, subtract
from fedcore.clients.state import ClientState
from fedcore.objective.learners import GradNorm, Hypergradient, Learner
from fedcore.objective.weighting import LOG_VAR_LIMIT, Weighted
from fedcore.schedule import Progress

FIRST = "first_losses"  # kept [K, 2]: B and A of a client's first step; 0 = not yet
TANGENT, TANGENT_MEMORY = "round/tangent", "round/tangent_memory"


class Leaves(NamedTuple):
    """The tensors that a step differentiates by."""

    weights: Tensor  # [K, P]
    log_var: Tensor | None  # [K, 2], where the sigma loss moves them
    prototypes: Tensor  # [K, C, D] views of `weights`


class Slopes(NamedTuple):
    """The gradients of one step, and what a learner of lambda found beside them."""

    weights: Tensor  # of the loss [K, P]
    log_var: Tensor | None  # of the sigma loss [K, 2]
    rest: Tensor  # [K] raw lambda at which a balance of gradients rests; NaN without one
    unclipped: Tensor | None = None  # [K, 2] gradient in (l, a), found another way; not clipped
    direct: Tensor | None = None  # lambda grad A [K, P]: d grads / d log lambda at fixed weights
    curved: Tensor | None = None  # H Z [K, P]; None where Z is zero


def slopes(
    learner: Learner | None,
    state: ClientState,
    leaves: Leaves,
    base: Tensor,
    align: Tensor,
    used: Weighted,
) -> Slopes:
    """Everything that is differentiated in a step. base, align: losses [K].

    Clients share no tensor, so the gradient of the sum of their losses is each one's own.
    """
    none = torch.full_like(base.detach(), torch.nan)
    if isinstance(learner, GradNorm):
        pull, rest = gradnorm(learner, base, align, leaves.prototypes, used, state.kept[FIRST])
        return Slopes(gradient(used.loss, leaves.weights), None, rest, pull)
    if isinstance(learner, Hypergradient):
        again = learner.horizon > 1  # in a window of one step Z is zero, and H Z with it
        direct = gradient(used.effective * align, leaves.weights, keep=True)
        grads = gradient(used.loss, leaves.weights, again=again)
        curved = None
        if again:
            curved = hessian_times(grads, leaves.weights, state.flat[TANGENT])
        return Slopes(grads.detach(), None, none, None, direct, curved)
    if leaves.log_var is None:
        return Slopes(gradient(used.loss, leaves.weights), None, none)
    grads, pull = torch.autograd.grad(
        used.loss.sum(), (leaves.weights, leaves.log_var), materialize_grads=True
    )
    return Slopes(grads, pull, none)


def gradient(losses: Tensor, leaf: Tensor, *, keep: bool = False, again: bool = False) -> Tensor:
    """d sum(losses) / d leaf, of the shape of `leaf`.

    keep: the graph stays; again: the gradient can be differentiated again.
    """
    (found,) = torch.autograd.grad(
        losses.sum(),
        leaf,
        retain_graph=keep or again,
        create_graph=again,
        allow_unused=True,
        materialize_grads=True,
    )
    return found


def norm_of(loss: Tensor, leaf: Tensor) -> Tensor:
    """Norm [K] of d loss_k / d leaf_k; the graph stays for the step's own gradient."""
    norm: Tensor = torch.linalg.vector_norm(gradient(loss, leaf, keep=True).flatten(1), dim=1)
    return norm


def gradnorm(
    learner: GradNorm, base: Tensor, align: Tensor, leaf: Tensor, used: Weighted, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient of the GradNorm loss in (l, a) [K, 2], and raw lambda* [K].

    first [K, 2]: B and A of each client's first step; filled in at that step.

    The loss |G_A - mean(G) r_A^alpha| with G_B = |grad B|, G_A = lambda |grad A| at the leaf (the
    prototypes), r the relative inverse training rate, its target held fixed (Chen et al. 2018,
    eq. 2). B keeps weight 1, so lambda stands for the ratio of the paper's two weights.
    """
    G_B, unit = norm_of(base, leaf), norm_of(align, leaf)
    with torch.no_grad():
        losses = torch.stack([base, align], 1)
        first.copy_(torch.where(first > 0, first, losses))
        ratio = losses / first.clamp(min=torch.finfo(first.dtype).tiny)
        pull = (ratio[:, 1] / ratio.mean(1)).nan_to_num(1.0) ** learner.asymmetry
        G_A = used.effective * unit
        slope = torch.sign(G_A - 0.5 * (G_B + G_A) * pull) * G_A
        share = used.effective / used.raw  # s, where it is placed on the weights
        rest = G_B * pull / (unit * (2 - pull) * share)
        rest = torch.where(pull < 2, rest, torch.inf)
    return torch.stack([slope, torch.zeros_like(slope)], 1), rest


def hessian_times(grads: Tensor, leaf: Tensor, direction: Tensor) -> Tensor:
    """H v [K, P], from gradients that can be differentiated again (Pearlmutter 1994)."""
    if not grads.requires_grad:
        return torch.zeros_like(leaf)
    return gradient(grads * direction, leaf)


def tangent_step(
    state: ClientState,
    direct: Tensor,
    curved: Tensor | None,
    scale: Tensor,
    hyper: Hyper,
    at: Progress,
) -> None:
    """Z = d w / d log lambda after one step of `sgd`, in place.

    Z_m <- mu Z_m + c (H Z + lambda grad A) + wd Z, Z <- Z - lr Z_m; the clip's c [K] is held fixed.
    direct: lambda grad A; curved: H Z, None where Z is zero. Each [K, P].
    """
    tangent, memory = state.flat[TANGENT], state.flat[TANGENT_MEMORY]
    turned = direct if curved is None else direct + curved
    slope = turned * scale.to(turned.dtype)[:, None] + hyper.weight_decay * tangent
    memory.mul_(hyper.momentum).add_(slope)
    subtract(tangent, memory, hyper.lr * hyper.lr_schedule(at))


def begin_window(state: ClientState) -> None:
    """Start the tangents of a window of `horizon` steps at zero."""
    for name in (TANGENT, TANGENT_MEMORY):
        state.keep(name)


def follow(state: ClientState, held_out: Tensor, learner: Hypergradient) -> None:
    """l <- l - rate <grad E, Z>, in place; held_out: grad E [K, P] at the new weights."""
    slope = (held_out * state.flat[TANGENT]).sum(1)
    state.log_var[:, 0].sub_(learner.rate * slope).clamp_(-LOG_VAR_LIMIT, LOG_VAR_LIMIT)

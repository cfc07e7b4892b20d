"""Learners of lambda that look at gradients of the weights: GradNorm, and the hypergradient.

Both move l = log raw lambda and leave a = 0. Everything is per client, with the axis K first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.clients.optim import Hyper, over
from fedcore.clients.state import ClientState, Tensors
from fedcore.objective.learners import GradNorm, Hypergradient, Learner
from fedcore.objective.weighting import LOG_VAR_LIMIT, Weighted
from fedcore.schedule import Progress

FIRST = "first_losses"  # kept [K, 2]: B and A of a client's first step; 0 = not yet
TANGENT, TANGENT_MEMORY = "round/tangent", "round/tangent_memory"


class Slopes(NamedTuple):
    """The gradients of one step, and what a learner of lambda found beside them."""

    grads: Tensors  # of the loss, by leaf; each [K, ...]
    kept: Tensors  # what the state then keeps
    rest: Tensor  # [K] raw lambda at which a balance of gradients rests; NaN without one
    log_var: Tensor | None = None  # [K, 2] gradient in (l, a), found another way; not clipped
    direct: Tensors | None = None  # lambda grad A, by leaf: d grads / d log lambda at fixed weights
    curved: Tensors | None = None  # H Z, by leaf; None where Z is zero


def slopes(
    learner: Learner | None,
    state: ClientState,
    leaves: Tensors,
    base: Tensor,
    align: Tensor,
    used: Weighted,
) -> Slopes:
    """Everything that is differentiated in a step. Losses [K]; leaves each [K, ...]."""
    none = torch.full_like(base.detach(), torch.nan)
    # clients share no tensor: the gradient of the sum is each client's own gradient
    if isinstance(learner, GradNorm):
        first, leaf = state.kept[FIRST], leaves["prototypes"]
        pull, rest, first = gradnorm(learner, base, align, leaf, used, first)
        return Slopes(gradients(used.loss, leaves), state.kept | {FIRST: first}, rest, pull)
    if isinstance(learner, Hypergradient):
        again = learner.horizon > 1  # in a window of one step Z is zero, and H Z with it
        direct = gradients(used.effective * align, leaves, keep=True)
        grads = gradients(used.loss, leaves, again=again)
        curved = hessian_times(grads, leaves, state.kept_under(TANGENT)) if again else None
        return Slopes(grads, dict(state.kept), none, None, direct, curved)
    return Slopes(gradients(used.loss, leaves), dict(state.kept), none)


def gradients(
    losses: Tensor, leaves: Tensors, *, keep: bool = False, again: bool = False
) -> Tensors:
    """d sum(losses) / d leaf by name. keep: the graph stays; again: they can be differentiated."""
    found = torch.autograd.grad(
        losses.sum(),
        list(leaves.values()),
        retain_graph=keep or again,
        create_graph=again,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(leaves, found, strict=True))


def norm_of(loss: Tensor, leaf: Tensor) -> Tensor:
    """Norm [K] of d loss_k / d leaf_k; the graph stays for the step's own gradient."""
    grad = gradients(loss, {"leaf": leaf}, keep=True)["leaf"]
    norm: Tensor = torch.linalg.vector_norm(grad.flatten(1), dim=1)
    return norm


def gradnorm(
    learner: GradNorm, base: Tensor, align: Tensor, leaf: Tensor, used: Weighted, first: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of the GradNorm loss in (l, a) [K, 2], raw lambda* [K], and the first losses [K, 2].

    The loss |G_A - mean(G) r_A^alpha| with G_B = |grad B|, G_A = lambda |grad A| at the leaf (the
    prototypes), r the relative inverse training rate, its target held fixed (Chen et al. 2018,
    eq. 2). B keeps weight 1, so lambda stands for the ratio of the paper's two weights.
    """
    G_B, unit = norm_of(base, leaf), norm_of(align, leaf)
    with torch.no_grad():
        losses = torch.stack([base, align], 1)
        first = torch.where(first > 0, first, losses)
        ratio = losses / first.clamp(min=torch.finfo(first.dtype).tiny)
        pull = (ratio[:, 1] / ratio.mean(1)).nan_to_num(1.0) ** learner.asymmetry
        G_A = used.effective * unit
        slope = torch.sign(G_A - 0.5 * (G_B + G_A) * pull) * G_A
        share = used.effective / used.raw  # s, where it is placed on the weights
        rest = G_B * pull / (unit * (2 - pull) * share)
        rest = torch.where(pull < 2, rest, torch.inf)
    return torch.stack([slope, torch.zeros_like(slope)], 1), rest, first


def hessian_times(grads: Tensors, leaves: Tensors, direction: Tensors) -> Tensors:
    """H v by name, from gradients that can be differentiated again (Pearlmutter 1994)."""
    inner = torch.stack([(g * direction[k]).sum() for k, g in grads.items() if g.requires_grad])
    return gradients(inner, leaves)


def tangent_step(
    state: ClientState,
    direct: Tensors,
    curved: Tensors | None,
    scale: Tensor,
    hyper: Hyper,
    at: Progress,
) -> Tensors:
    """Z = d w / d log lambda after one step of `sgd`, to be kept.

    Z_m <- mu Z_m + c (H Z + lambda grad A) + wd Z, Z <- Z - lr Z_m; the clip's c [K] is held fixed.
    direct: lambda grad A; curved: H Z, None where Z is zero.
    """
    lr, kept = hyper.lr * hyper.lr_schedule(at), {}
    tangent, memory = state.kept_under(TANGENT), state.kept_under(TANGENT_MEMORY)
    for name, grad in direct.items():
        turned = grad + curved[name] if curved else grad
        slope = turned * over(scale.to(grad.dtype), grad) + hyper.weight_decay * tangent[name]
        kept[f"{TANGENT_MEMORY}/{name}"] = hyper.momentum * memory[name] + slope
        kept[f"{TANGENT}/{name}"] = tangent[name] - lr * kept[f"{TANGENT_MEMORY}/{name}"]
    return kept


def begin_window(state: ClientState) -> None:
    """Start the tangents of a window of `horizon` steps at zero."""
    for prefix in (TANGENT, TANGENT_MEMORY):
        state.keep(prefix, state.params)


def follow(state: ClientState, held_out: Tensors, learner: Hypergradient) -> Tensor:
    """log_var [K, 2] after l <- l - rate <grad E, Z>; held_out: grad E at the new weights."""
    tangent = state.kept_under(TANGENT)
    products = [(held_out[k] * z).flatten(1).sum(1) for k, z in tangent.items()]
    slope = torch.stack(products).sum(0)
    local = (state.log_var[:, 0] - learner.rate * slope).clamp(-LOG_VAR_LIMIT, LOG_VAR_LIMIT)
    return torch.stack([local, state.log_var[:, 1]], 1)

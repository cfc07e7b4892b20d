"""local_step: THE training step, for any algorithm, any lane width and any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedcore.algorithms import Algorithm
from fedcore.batch import Batch
from fedcore.clients import control, learn
from fedcore.clients.lanes import over_clients
from fedcore.clients.optim import Hyper, clip_each, sgd
from fedcore.clients.state import ClientState, Tensors
from fedcore.models.proto_head import ProtoHead
from fedcore.objective.learners import GradNorm, Hypergradient
from fedcore.objective.terms import Term
from fedcore.objective.view import View
from fedcore.schedule import Progress


class Targets(NamedTuple):
    """What the server's order fixes for a round, the same for all clients."""

    anchors: Tensor  # [C, D]
    global_prototypes: Tensor  # [C, D]
    weights: Tensors  # parameters of the averaged model, or of the common start
    control: Tensors  # SCAFFOLD's c by parameter; empty for the others


class Lane(NamedTuple):
    """What is fixed during an epoch for each client of a lane."""

    label_counts: Tensor  # [K, C]
    anchors: Tensor  # [K, C, D]


class StepReadings(NamedTuple):
    """What one step was made of, per client; all on the device."""

    terms: Tensor  # [K, n] loss terms, base first
    base: Tensor  # [K]
    align: Tensor  # [K]
    raw: Tensor  # [K] lambda
    effective: Tensor  # [K] lambda that multiplied the align loss
    norm: Tensor  # [K] gradient norm before the clip
    rest: Tensor  # [K] raw lambda at which a balance of gradients rests; NaN without one


class Setup(NamedTuple):
    """What does not change between the steps of a run."""

    model: ProtoHead
    algorithm: Algorithm
    hyper: Hyper
    autocast: bool = False  # the forward pass in bfloat16


def look(
    setup: Setup, params: Tensors, buffers: Tensors, batch: Batch, lane: Lane, targets: Targets
) -> View:
    """One client's View of its batch (no K axis); the only place in training that runs the model.

    Batch-norm statistics in `buffers` move in place.
    """
    images = batch.images.flatten(0, 1)  # [V*B, channels, height, width]
    with torch.autocast(images.device.type, torch.bfloat16, enabled=setup.autocast):
        embedding = functional_call(setup.model, (params, buffers), images)
    prototypes = params["prototypes"]
    features = F.normalize(embedding.to(prototypes.dtype), dim=1)
    views = batch.images.shape[0]
    return View(
        features,
        features @ prototypes.T,
        prototypes,
        lane.anchors,
        targets.global_prototypes,
        batch.labels.repeat(views),
        batch.weight.repeat(views),
        lane.label_counts,
        params,
        targets.weights,
    )


def losses(
    setup: Setup,
    terms: tuple[Term, ...],
    params: Tensors,
    buffers: Tensors,
    batch: Batch,
    lane: Lane,
    targets: Targets,
) -> Tensor:
    """The terms of each client [K, n]. `buffers` move."""

    def of_one(params: Tensors, buffers: Tensors, sample: Batch, lane: Lane) -> Tensor:
        # no client axis in here
        view = look(setup, params, buffers, sample, lane, targets)
        return torch.stack([term(view) for term in terms])

    return over_clients(of_one, params, buffers, batch, lane)


def local_step(
    setup: Setup,
    state: ClientState,
    batch: Batch,
    lane: Lane,
    targets: Targets,
    at: Progress,
    held_out: Batch | None = None,
) -> tuple[ClientState, StepReadings]:
    """One optimiser step for each of K clients; a client whose epoch is over stays as it is.

    held_out: samples by whose loss a hypergradient moves lambda after this step.
    """
    algorithm, rule = setup.algorithm, setup.algorithm.rule
    leaves = _leaves(state, algorithm)
    params = {k: leaves.get(k, state.params[k]) for k in state.params}
    buffers = {k: v.clone() for k, v in state.buffers.items()}  # moved inside the forward pass
    terms = losses(setup, algorithm.terms, params, buffers, batch, lane, targets)
    base = terms[:, : len(algorithm.base)].sum(1)
    align = terms[:, len(algorithm.base) :].sum(1)
    used = rule.weigh(base, align, leaves.get("log_var", state.log_var), at)
    kept, rest = dict(state.kept), torch.full_like(base.detach(), torch.nan)
    pull = direct = None
    if isinstance(rule.learner, GradNorm):
        leaf = leaves["prototypes"]
        pull, rest, kept[learn.FIRST] = learn.gradnorm(
            rule.learner, base, align, leaf, used, state.kept[learn.FIRST]
        )
    if isinstance(rule.learner, Hypergradient):
        weighed, again = used.effective * align, rule.learner.horizon > 1
        grads, direct = learn.gradients_twice(used.loss, weighed, leaves, again)
        curved = (
            learn.hessian_times(grads, leaves, state.kept_under(learn.TANGENT)) if again else {}
        )
    else:
        # clients share no tensor: the gradient of the sum is each client's own gradient
        found = torch.autograd.grad(
            used.loss.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        grads = dict(zip(leaves, found, strict=True))
    with torch.no_grad():
        clipped, scale, norm = clip_each(grads, setup.hyper.max_norm)
        if algorithm.control_variates:
            clipped, kept = control.correct(clipped, state, targets.control)
        if pull is not None:
            clipped["log_var"] = pull
        moved = sgd(state, clipped, setup.hyper, at)
        if direct is not None:
            kept |= learn.tangent_step(state, direct, curved, scale, setup.hyper, at)
        moved.buffers, moved.kept = buffers, kept
    if held_out is not None and isinstance(rule.learner, Hypergradient):
        slopes = _held_out_gradient(setup, moved, held_out, lane, targets)
        moved.log_var = learn.follow(moved, slopes, rule.learner)
    if len(state) > 1:  # a lane of one is never idle
        moved = moved.where(batch.active, state)
    readings = StepReadings(
        terms.detach(), base.detach(), align.detach(), used.raw, used.effective, norm, rest
    )
    return moved, readings


def _leaves(state: ClientState, algorithm: Algorithm) -> Tensors:
    """What gradients are taken of: the parameters that learn, and the log-variances if they do."""
    fixed = set() if algorithm.rule.has_sigma_loss else {"log_var"}
    if algorithm.classifier == "anchors":
        fixed.add("prototypes")
    moved = state.moved_tensors().items()
    return {k: v.detach().requires_grad_() for k, v in moved if k not in fixed}


def _held_out_gradient(
    setup: Setup, state: ClientState, batch: Batch, lane: Lane, targets: Targets
) -> Tensors:
    """Gradient of each client's base loss on held-out samples; its batch statistics stay."""
    leaves = {k: v.detach().requires_grad_() for k, v in state.params.items()}
    buffers = {k: v.clone() for k, v in state.buffers.items()}
    terms = losses(setup, setup.algorithm.base, leaves, buffers, batch, lane, targets)
    found = torch.autograd.grad(
        terms.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))

"""local_step: THE training step, for any algorithm, any lane width and any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedcore.algorithms import Algorithm
from fedcore.algorithms.algorithm import term_name
from fedcore.batch import Batch
from fedcore.clients import control, learn
from fedcore.clients.lanes import over_clients
from fedcore.clients.optim import Hyper, clip_each, sgd
from fedcore.clients.state import ClientState, Tensors
from fedcore.models.proto_head import ProtoHead
from fedcore.objective.learners import Hypergradient
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
        return torch.stack([_value(term, view) for term in terms])

    return over_clients(of_one, params, buffers, batch, lane)


def _value(term: Term, view: View) -> Tensor:
    """The term's scalar; an error in it says which term it was."""
    try:
        value = term(view)
        if not isinstance(value, Tensor) or value.dim():
            raise TypeError(f"want a tensor without axes, got {getattr(value, 'shape', value)}")
    except Exception as error:
        error.add_note(f"in the loss term {term_name(term)} (docs/extending.md)")
        raise
    return value


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
    slopes = learn.slopes(rule.learner, state, leaves, base, align, used)
    with torch.no_grad():
        clipped, scale, norm = clip_each(slopes.grads, setup.hyper.max_norm)
        kept = slopes.kept
        if algorithm.control_variates:
            clipped, sums = control.correct(clipped, state, targets.control)
            kept = kept | sums
        if slopes.log_var is not None:
            clipped["log_var"] = slopes.log_var
        moved = sgd(state, clipped, setup.hyper, at)
        if slopes.direct is not None:
            kept = kept | learn.tangent_step(
                state, slopes.direct, slopes.curved, scale, setup.hyper, at
            )
        moved.buffers, moved.kept = buffers, kept
    if held_out is not None and isinstance(rule.learner, Hypergradient):
        gradient = _held_out_gradient(setup, moved, held_out, lane, targets)
        moved.log_var = learn.follow(moved, gradient, rule.learner)
    if len(state) > 1:  # a lane of one is never idle
        moved = moved.where(batch.active, state)
    readings = StepReadings(
        terms.detach(), base.detach(), align.detach(), used.raw, used.effective, norm, slopes.rest
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
    return learn.gradients(terms, leaves)

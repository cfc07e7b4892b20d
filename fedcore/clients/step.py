"""local_step: THE training step, for any algorithm, any lane width and any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.algorithms.algorithm import term_name
from fedcore.batch import Batch
from fedcore.clients import control, learn
from fedcore.clients.lanes import over_clients
from fedcore.clients.layout import Tensors
from fedcore.clients.optim import Hyper, clip_each, sgd
from fedcore.clients.state import ClientState
from fedcore.clients.swapped import swapped
from fedcore.models.proto_head import ProtoHead
from fedcore.objective.learners import Hypergradient
from fedcore.objective.terms import Term
from fedcore.objective.view import View
from fedcore.schedule import Progress


class Targets(NamedTuple):
    """What the server's order fixes for a round; the same for all clients."""

    anchors: Tensor  # [C, D]
    global_prototypes: Tensor  # [C, D]
    weights: Tensors  # parameters of the averaged model, or of the common start
    control: Tensor  # SCAFFOLD's c [P]; empty for the others


class Lane(NamedTuple):
    """What stays fixed during an epoch for each client of a lane."""

    label_counts: Tensor  # [K, C]
    anchors: Tensor  # [K, C, D]

    def first(self, clients: int) -> Lane:
        """The same of the first `clients` clients."""
        if clients == len(self.anchors):
            return self
        return Lane(self.label_counts[:clients], self.anchors[:clients])


class StepReadings(NamedTuple):
    """What one step computed for each client; on the device."""

    terms: Tensor  # [K, n] loss terms, base first
    base: Tensor  # [K]
    align: Tensor  # [K]
    raw: Tensor  # [K] lambda
    effective: Tensor  # [K] lambda that multiplied the align loss
    norm: Tensor  # [K] gradient norm before the clip, float64
    rest: Tensor  # [K] raw lambda at which a balance of gradients rests; NaN without one


class Setup(NamedTuple):
    """What does not change between the steps of a run."""

    model: ProtoHead
    algorithm: Algorithm
    hyper: Hyper
    autocast: bool = False  # the forward pass in bfloat16
    call: Callable[[ProtoHead, Tensors, Tensor], Tensor] = swapped
    width: int = 1  # clients of a full lane


def look(
    setup: Setup, params: Tensors, buffers: Tensors, batch: Batch, lane: Lane, targets: Targets
) -> View:
    """One client's View of its batch (no K axis); the only place in training that runs the model.

    Batch-norm statistics in `buffers` move in place.
    """
    images = batch.images.flatten(0, 1)  # [V*B, channels, height, width]
    with torch.autocast(images.device.type, torch.bfloat16, enabled=setup.autocast):
        embedding = setup.call(setup.model, params | buffers, images)
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
    """The loss terms of each client [K, n]; batch statistics in `buffers` move in place."""

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
    *,
    evaluate: Callable[..., Tensor] = losses,
) -> StepReadings:
    """One optimiser step for each of K clients, whose `state` moves in place.

    held_out: samples by whose loss a hypergradient moves lambda after this step.
    evaluate: `losses`, or the same compiled.
    """
    algorithm, hyper = setup.algorithm, setup.hyper
    rule = algorithm.rule
    leaves, params = _leaves(state, algorithm)
    terms = evaluate(setup, algorithm.terms, params, state.buffers, batch, lane, targets)
    base = terms[:, : len(algorithm.base)].sum(1)
    align = terms[:, len(algorithm.base) :].sum(1)
    log_var = state.log_var if leaves.log_var is None else leaves.log_var
    used = rule.weigh(base, align, log_var, at)
    slopes = learn.slopes(rule.learner, state, leaves, base, align, used)
    with torch.no_grad():
        grads, pull = slopes.weights, slopes.log_var
        scale, norm = clip_each(grads, pull, hyper.max_norm)
        if algorithm.control_variates:
            control.correct(grads, state, targets.control)
        if slopes.direct is not None:
            learn.tangent_step(state, slopes.direct, slopes.curved, scale, hyper, at)
        sgd(state, grads, slopes.unclipped if pull is None else pull, hyper, at, _fixed(algorithm))
    if held_out is not None and isinstance(rule.learner, Hypergradient):
        gradient = _held_out_gradient(setup, state, held_out, lane, targets)
        learn.follow(state, gradient, rule.learner)
    readings = (terms, base, align, used.raw, used.effective, norm, slopes.rest)
    return StepReadings(*(x.detach() for x in readings))


def _fixed(algorithm: Algorithm) -> tuple[str, ...]:
    """Parameters that no gradient moves."""
    return ("prototypes",) if algorithm.classifier == "anchors" else ()


def _leaves(state: ClientState, algorithm: Algorithm) -> tuple[learn.Leaves, Tensors]:
    """What gradients are taken of, and the parameters [K, ...] made of it."""
    weights = state.weights.detach().requires_grad_()
    params = state.layout.views(weights)
    leaf = params["prototypes"]
    params |= {name: params[name].detach() for name in _fixed(algorithm)}
    log_var = None
    if algorithm.rule.has_sigma_loss:
        log_var = state.log_var.detach().clone().requires_grad_()
    return learn.Leaves(weights, log_var, leaf), params


def _held_out_gradient(
    setup: Setup, state: ClientState, batch: Batch, lane: Lane, targets: Targets
) -> Tensor:
    """Gradient [K, P] of each client's base loss on held-out samples; its batch statistics stay."""
    leaves, params = _leaves(state, setup.algorithm)
    buffers = {k: v.clone() for k, v in state.buffers.items()}
    terms = losses(setup, setup.algorithm.base, params, buffers, batch, lane, targets)
    return learn.gradient(terms, leaves.weights)

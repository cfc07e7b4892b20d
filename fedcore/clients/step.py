"""local_step: THE training step, for any algorithm, any lane width and any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedcore.algorithms import Algorithm
from fedcore.batch import Batch
from fedcore.clients.lanes import over_clients
from fedcore.clients.optim import Hyper, clip_each, sgd
from fedcore.clients.state import ClientState, Tensors
from fedcore.models.proto_head import ProtoHead
from fedcore.objective.view import View
from fedcore.schedule import Progress


class Targets(NamedTuple):
    """What the server's order fixes for a round. Each [C, D]."""

    anchors: Tensor
    global_prototypes: Tensor


class StepReadings(NamedTuple):
    """What one step was made of, per client; all on the device."""

    terms: Tensor  # [K, n] loss terms, base first
    base: Tensor  # [K]
    align: Tensor  # [K]
    raw: Tensor  # [K] lambda
    effective: Tensor  # [K] lambda that multiplied the align loss
    norm: Tensor  # [K] gradient norm before the clip


def look(
    model: ProtoHead,
    params: Tensors,
    buffers: Tensors,
    batch: Batch,
    targets: Targets,
    autocast: bool,
) -> View:
    """One client's View of its batch (no K axis); the only place in training that runs the model.

    Batch-norm statistics in `buffers` move in place.
    """
    images = batch.images.flatten(0, 1)  # [V*B, channels, height, width]
    with torch.autocast(images.device.type, torch.bfloat16, enabled=autocast):
        embedding = functional_call(model, (params, buffers), images)
    prototypes = params["prototypes"]
    features = F.normalize(embedding.to(prototypes.dtype), dim=1)
    views = batch.images.shape[0]
    return View(
        features,
        features @ prototypes.T,
        prototypes,
        targets.anchors,
        targets.global_prototypes,
        batch.labels.repeat(views),
        batch.weight.repeat(views),
    )


def local_step(
    model: ProtoHead,
    algorithm: Algorithm,
    state: ClientState,
    batch: Batch,
    targets: Targets,
    at: Progress,
    hyper: Hyper,
    autocast: bool = False,
) -> tuple[ClientState, StepReadings]:
    """One optimiser step for each of K clients; a client whose epoch is over stays as it is."""
    leaves = {
        k: v.detach().requires_grad_()
        for k, v in state.moved_tensors().items()
        if k != "log_var" or algorithm.rule.learned
    }
    params = {k: leaves[k] for k in state.params}
    buffers = {k: v.clone() for k, v in state.buffers.items()}  # moved inside the forward pass

    def terms_of_one(params: Tensors, buffers: Tensors, sample: Batch) -> Tensor:
        # no client axis in here
        view = look(model, params, buffers, sample, targets, autocast)
        return torch.stack([term(view) for term in algorithm.terms])

    terms = over_clients(terms_of_one, params, buffers, batch)  # [K, n]
    base = terms[:, : len(algorithm.base)].sum(1)
    align = terms[:, len(algorithm.base) :].sum(1)
    log_var = leaves.get("log_var", state.log_var)
    weighted = algorithm.rule.weigh(base, align, log_var, at)
    # clients share no tensor: the gradient of the sum is each client's own gradient
    grads = torch.autograd.grad(
        weighted.loss.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    with torch.no_grad():
        clipped, norm = clip_each(dict(zip(leaves, grads, strict=True)), hyper.max_norm)
        moved = sgd(state, clipped, hyper, at)
        moved.buffers = buffers
        if len(state) > 1:  # a lane of one is never idle
            moved = moved.where(batch.active, state)
        readings = StepReadings(
            terms.detach(), base.detach(), align.detach(), weighted.raw, weighted.effective, norm
        )
    return moved, readings

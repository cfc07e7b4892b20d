"""How whole client models become one, with the same bits on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.clients.layout import Tensors
from fedcore.models.neurons import NeuronGroup, neuron_groups
from fedcore.models.proto_head import ProtoHead
from fedcore.registry import Registry
from fedcore.server.average import average_models
from fedcore.server.comm import Comm


class ClientModel(NamedTuple):
    """One client's model, and how much it weighs."""

    client: int
    tensors: Tensors  # parameters and buffers, each [...]
    share: float  # of the samples; shares sum to 1 over all ranks


Models = Iterable[ClientModel]
"""Some clients' models, which may be gone through several times and need not all be in memory."""

Fuse = Callable[[Comm, ProtoHead, Models, Mapping[int, float]], Tensors]
"""(comm, model, this rank's client models, shares of all clients) -> one model. Collective."""

FUSIONS: Registry[Fuse] = Registry("algorithm.fuse")


class Made:
    """Each model with a function applied, anew on every pass."""

    def __init__(
        self, models: Models, make: Callable[[ClientModel], tuple[Tensors, float]]
    ) -> None:
        self.models, self.make = models, make

    def __iter__(self) -> Iterator[tuple[Tensors, float]]:
        return map(self.make, self.models)


def _tensors_of(model: ProtoHead) -> Tensors:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def mean(comm: Comm, model: ProtoHead, models: Models, shares: Mapping[int, float]) -> Tensors:
    """Mean of the models, weighted by samples (McMahan et al. 2017). Collective."""
    return average_models(comm, Made(models, lambda m: (m.tensors, m.share)), _tensors_of(model))


def optimal_transport(
    comm: Comm, model: ProtoHead, models: Models, shares: Mapping[int, float]
) -> Tensors:
    """`mean` of the models after each one's neurons are matched to those of the largest client's.

    Layer by layer, by weights (Singh & Jaggi 2020); between layers of equal width the optimal
    transport plan of uniform masses is a permutation, found by linear assignment.
    """
    like, largest = _tensors_of(model), min(shares, key=lambda k: (-shares[k], k))
    alone = Made(models, lambda m: (m.tensors, float(m.client == largest)))
    reference = average_models(comm, alone, like)
    groups = neuron_groups(model)
    matched = [(match(m.tensors, reference, groups), m.share) for m in models]
    return average_models(comm, matched, like)


def match(tensors: Tensors, reference: Tensors, groups: Sequence[NeuronGroup]) -> Tensors:
    """The same model, its neurons reordered to be nearest to those of the reference."""
    matched = dict(tensors)
    for group in groups:  # from the input on: a layer is compared when its inputs are in order
        order = _assignment(_rows(reference, group), _rows(matched, group))
        for name, axis in group.axes:
            matched[name] = _permuted(matched[name], axis, order)
    return matched


def _rows(tensors: Tensors, group: NeuronGroup) -> Tensor:
    """All incoming weights of each neuron [n, m]."""
    parts = [tensors[name].detach() for name in group.by]
    return torch.cat([p.flatten(1) if p.dim() > 1 else p[:, None] for p in parts], 1)


def _assignment(wanted: Tensor, given: Tensor) -> Tensor:
    """Rows of `given` [n, m] in the order that is nearest to `wanted` in squared distance."""
    from scipy.optimize import linear_sum_assignment

    cost = torch.cdist(wanted.double(), given.double()).square()
    _, columns = linear_sum_assignment(cost.cpu().numpy())
    return torch.from_numpy(columns).to(given.device)


def _permuted(values: Tensor, axis: int, order: Tensor) -> Tensor:
    """Neurons reordered on an axis of n * b: after a flatten each neuron has b places in a row."""
    shape = values.shape
    blocks = values.reshape(*shape[:axis], len(order), -1, *shape[axis + 1 :])
    return blocks.index_select(axis, order).reshape(shape)


FUSIONS.add("mean", mean)
FUSIONS.add("optimal_transport", optimal_transport)

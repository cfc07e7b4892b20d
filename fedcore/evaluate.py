"""Reading out the test set: each client's model runs once per sample, for all read-outs together.

Every rank runs its own clients and adds their contributions to exact integer sums
(server/exact.py); one all-reduce finishes, with the same answer on any number of ranks. The
averaged model's share of the work is split over the ranks. Nothing here is ever used to choose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedcore.batch import TestData
from fedcore.clients.group import ClientGroup
from fedcore.clients.state import Tensors
from fedcore.models.proto_head import ProtoHead
from fedcore.registry import Registry
from fedcore.seeds import generator
from fedcore.server.comm import Comm
from fedcore.server.exact import ExactSum


class Seen(NamedTuple):
    """One client's view of a chunk of m test samples."""

    features: Tensor  # z [m, D], unit length
    logits: Tensor  # z P^T [m, C]
    noise: Tensor  # z of this client's noise image [D]


@dataclass(frozen=True)
class Ensemble:
    """A read-out that sums a contribution of each client, weighted by w_k.

    contribution: Seen -> [m, width], entries within +-2; predict: (sum, G [C, D]) -> labels [m].
    """

    about: str
    over: str  # "features": width D; "classes": width C
    contribution: Callable[[Seen], Tensor]
    predict: Callable[[Tensor, Tensor], Tensor]


READOUTS: Registry[Ensemble] = Registry("algorithm.readout")


def _nearest_prototype(total: Tensor, prototypes: Tensor) -> Tensor:
    # argmax z G^T: the length of z does not matter, so the sum need not be normalised
    return (total @ prototypes.T).argmax(1)


def _informative(seen: Seen) -> Tensor:
    """(1 - cos(f_k(x), f_k(noise))) f_k(x): a model that sees x as it sees noise has no say."""
    return seen.features * (1 - seen.features @ seen.noise)[:, None]


READOUTS.add(
    "feature_ensemble",
    Ensemble("argmax (sum_k w_k z_k) G^T", "features", lambda s: s.features, _nearest_prototype),
)
READOUTS.add(
    "iffi",
    Ensemble(
        "feature_ensemble with w_k (1 - cos(z_k(x), z_k(noise))) per sample and model",
        "features",
        _informative,
        _nearest_prototype,
    ),
)
READOUTS.add(
    "output_ensemble",
    Ensemble(
        "argmax sum_k w_k softmax(z_k P_k^T)",
        "classes",
        lambda s: s.logits.softmax(1),
        lambda total, prototypes: total.argmax(1),
    ),
)

SINGLE = ("averaged", "local_mean", "local_min", "local_max")
"""Read-outs that are no ensemble: the averaged model, and each client alone."""


class Evaluator:
    """Accuracy by read-out, the same on every rank."""

    def __init__(self, comm: Comm, model: ProtoHead, test: TestData, seed: int, chunk: int) -> None:
        self.comm, self.model, self.test, self.seed, self.chunk = comm, model, test, seed, chunk

    def __call__(
        self,
        group: ClientGroup,
        weights: dict[int, float],
        prototypes: Tensor,
        averaged: Tensors,
    ) -> dict[str, float]:
        """Test accuracy in [0, 1] by read-out.

        weights: w_k of every client of the run that has trained, summing to 1.
        prototypes: G [C, D]. averaged: the averaged model's tensors.
        """
        labels, m = self.test.labels, len(self.test.labels)
        classes, width = prototypes.shape
        sizes = {name: m * (width if r.over == "features" else classes) for name, r in READOUTS}
        ids = sorted(weights)
        sums = ExactSum(sum(sizes.values()) + len(ids) + 1, 2.0, self.comm.device)
        correct = sums.total[
            sum(sizes.values()) :
        ]  # plain counts: clients, then the averaged model
        for row, client in enumerate(group.clients):
            if client in weights:
                tensors = {k: v[row] for k, v in group.state.model_tensors().items()}
                hits = self._add_client(sums, tensors, client, weights[client], m)
                correct[ids.index(client)] = hits
        correct[-1] = self._hits_of_slice(averaged)
        total = self.comm.sum(sums.total)
        accuracy = {}
        offset = 0
        for name, readout in READOUTS:
            part = sums.value(total[offset : offset + sizes[name]]).view(m, -1)
            predicted = readout.predict(part, prototypes.to(part.device))
            accuracy[name] = float((predicted == labels.to(part.device)).sum()) / m
            offset += sizes[name]
        local = total[offset:-1].double() / m
        accuracy["averaged"] = int(total[-1]) / m
        accuracy["local_mean"] = float(local.mean())
        accuracy["local_min"], accuracy["local_max"] = float(local.min()), float(local.max())
        return accuracy

    def _features(self, tensors: Tensors, images: Tensor) -> Tensor:
        embedding = functional_call(self.model, tensors, images)
        return F.normalize(embedding.to(tensors["prototypes"].dtype), dim=1)

    @torch.no_grad()
    def _add_client(
        self,
        sums: ExactSum,
        tensors: Tensors,
        client: int,
        weight: float,
        m: int,
    ) -> Tensor:
        """Add one client's contributions to all read-outs; its number of right answers alone."""
        own = tensors["prototypes"]
        draws = generator(self.seed, client, 0, "noise image")
        noise_image = torch.randn(1, *self.test.shape, generator=draws, dtype=torch.float64)
        hits = torch.zeros((), dtype=torch.int64, device=own.device)
        self.model.eval()
        noise = self._features(tensors, noise_image.to(own.device, own.dtype))[0]
        start = 0
        for images in self.test.chunks(self.chunk):
            features = self._features(tensors, images)
            seen = Seen(features, features @ own.T, noise)
            offset = 0
            for _, readout in READOUTS:
                values = readout.contribution(seen)
                sums.add(values, weight, offset + start * values.shape[1])
                offset += m * values.shape[1]
            here = self.test.labels[start : start + len(images)].to(own.device)
            hits += (seen.logits.argmax(1) == here).sum()
            start += len(images)
        self.model.train()
        return hits

    @torch.no_grad()
    def _hits_of_slice(self, averaged: Tensors) -> Tensor:
        """Right answers of the averaged model on this rank's slice of the test set.

        Slices are whole chunks, so that every sample is in the same batch on any number of ranks.
        """
        own = averaged["prototypes"]
        hits = torch.zeros((), dtype=torch.int64, device=own.device)
        self.model.eval()
        starts = range(0, len(self.test.labels), self.chunk)[self.comm.rank :: self.comm.size]
        for start in starts:
            stop = min(start + self.chunk, len(self.test.labels))
            for images in self.test.chunks(self.chunk, start, stop):
                predicted = (self._features(averaged, images) @ own.T).argmax(1)
                hits += (predicted == self.test.labels[start:stop].to(own.device)).sum()
        self.model.train()
        return hits

"""Reading out the test set: each client's model runs once per sample, for all read-outs together.

Where clients have validation samples, each one's model runs on its own, too. Every rank runs its
own clients and adds their contributions to exact integer sums (server/exact.py); one all-reduce
finishes, with the same answer on any number of ranks. The averaged model's share of the test set is
split over the ranks. Nothing here is ever used to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedcore.batch import TestData, ValidationData
from fedcore.clients.group import ClientGroup
from fedcore.clients.layout import Tensors
from fedcore.models.proto_head import ProtoHead
from fedcore.registry import Registry
from fedcore.seeds import generator
from fedcore.server.comm import Comm
from fedcore.server.exact import ExactSum
from fedcore.telemetry.events import VALIDATION


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
    width: Callable[[int, int], int]  # (C, D) -> columns of a contribution
    contribution: Callable[[Seen], Tensor]
    predict: Callable[[Tensor, Tensor], Tensor]


READOUTS: Registry[Ensemble] = Registry("algorithm.readout")


def _nearest_prototype(total: Tensor, prototypes: Tensor) -> Tensor:
    # argmax z G^T: the length of z does not matter, so the sum need not be normalised
    return (total @ prototypes.T).argmax(1)


def _informativeness(seen: Seen) -> Tensor:
    """1 - cos(f_k(x), f_k(noise)) [m, 1]: a model that sees x as it sees noise has no say."""
    return 1 - (seen.features @ seen.noise)[:, None]


def _weighed_by_mean(total: Tensor, prototypes: Tensor) -> Tensor:
    return _nearest_prototype(total[:, :-1] * total[:, -1:], prototypes)


def _least_distance(total: Tensor, prototypes: Tensor) -> Tensor:
    """argmin |z - G_c| of the normalised sum z: 2 z G^T - |G|^2 is largest there."""
    z = F.normalize(total, dim=1)
    return (2 * z @ prototypes.T - prototypes.square().sum(1)).argmax(1)


def _of_features(seen: Seen) -> Tensor:
    return seen.features


def _of_width(classes: int, width: int) -> int:
    return width


READOUTS.add(
    "feature_ensemble",
    Ensemble("argmax (sum_k w_k z_k) G^T", _of_width, _of_features, _nearest_prototype),
)
READOUTS.add(
    "nearest_prototype",
    Ensemble(
        "argmin |z - G_c|, z the normalised sum_k w_k z_k (FedProto)",
        _of_width,
        _of_features,
        _least_distance,
    ),
)
READOUTS.add(
    "iffi",
    Ensemble(
        "feature_ensemble with w_k (1 - cos(z_k(x), z_k(noise))) per sample and model",
        _of_width,
        lambda s: s.features * _informativeness(s),
        _nearest_prototype,
    ),
)
READOUTS.add(
    "iffi_published",
    Ensemble(
        "iffi with the informativeness averaged over models: it cancels, as in feature_ensemble",
        lambda classes, width: width + 1,
        lambda s: torch.cat([s.features, _informativeness(s)], 1),
        _weighed_by_mean,
    ),
)
READOUTS.add(
    "output_ensemble",
    Ensemble(
        "argmax sum_k w_k softmax(z_k P_k^T)",
        lambda classes, width: classes,
        lambda s: s.logits.softmax(1),
        lambda total, prototypes: total.argmax(1),
    ),
)

SINGLE = ("averaged", "local_mean", "local_min", "local_max")
"""Read-outs that are no ensemble: the averaged model, and each client alone."""

VALIDATED = (f"{VALIDATION}local", f"{VALIDATION}averaged")
"""Read-outs of one model on each client's own validation samples, all samples counting alike: the
client's own model, and the averaged one."""


class Evaluation(NamedTuple):
    """What a model, or many, got right: shares in [0, 1]."""

    accuracy: dict[str, float]  # by read-out
    validation: dict[int, float]  # each client's own model on its own validation samples


class Tally:
    """Everything a test run adds up, in one integer buffer, so that one all-reduce is enough.

    First the sums of the ensembles, read-out by read-out, then plain counts of right answers: of
    each client alone, of the averaged model, and of the first of `VALIDATED` on the validation
    samples of each client that has some.
    """

    def __init__(
        self,
        m: int,
        prototypes: Tensor,
        clients: list[int],
        device: torch.device,
        aside: Mapping[int, int],  # validation samples of each client that has some
        models: int,  # how many of `VALIDATED`
    ) -> None:
        classes, width = prototypes.shape
        self.m, self.prototypes = m, prototypes.to(device)
        self.places: dict[Callable[[Seen], Tensor], slice] = {}  # read-outs may share a sum
        size = 0
        for _, readout in READOUTS:
            if readout.contribution not in self.places:
                length = m * readout.width(classes, width)
                self.places[readout.contribution] = slice(size, size + length)
                size += length
        self._alone = {client: size + row for row, client in enumerate(clients)}
        self._averaged = size + len(clients)
        self._aside = {k: self._averaged + 1 + models * row for row, k in enumerate(aside)}
        self.aside, self.models = aside, models
        self.sums = ExactSum(self._averaged + 1 + models * len(aside), 2.0, device)

    def add(self, seen: Seen, weight: float, start: int) -> None:
        """One client's contributions for the samples from `start` on."""
        for contribution, place in self.places.items():
            values = contribution(seen)
            self.sums.add(values, weight, place.start + start * values.shape[1])

    def count_client(self, client: int, hits: Tensor) -> None:
        """Right answers of a client alone."""
        self.sums.total[self._alone[client]] = hits

    def count_averaged(self, hits: Tensor) -> None:
        """Right answers of the averaged model on this rank's share of the samples."""
        self.sums.total[self._averaged] = hits

    def count_validation(self, client: int, hits: Tensor) -> None:
        """Right answers [models] on a client's validation samples."""
        at = self._aside[client]
        self.sums.total[at : at + self.models] = hits

    def evaluation(self, total: Tensor, labels: Tensor) -> Evaluation:
        """What the integers of all ranks say."""
        on_own, by_client = self._validation(total[self._averaged + 1 :])
        return Evaluation(self._accuracy(total, labels) | on_own, by_client)

    def _accuracy(self, total: Tensor, labels: Tensor) -> dict[str, float]:
        """Share of the test samples by read-out."""
        found = {}
        for name, readout in READOUTS:
            part = self.sums.value(total[self.places[readout.contribution]]).view(self.m, -1)
            right = readout.predict(part, self.prototypes) == labels.to(part.device)
            found[name] = int(right.sum()) / self.m
        alone = total[self._averaged - len(self._alone) : self._averaged].double() / self.m
        return found | {
            "averaged": int(total[self._averaged]) / self.m,
            "local_mean": float(alone.mean()),
            "local_min": float(alone.min()),
            "local_max": float(alone.max()),
        }

    def _validation(self, right: Tensor) -> tuple[dict[str, float], dict[int, float]]:
        """Share of all validation samples by read-out, and of each client's by its own model."""
        if not self.aside:
            return {}, {}
        columns = right.view(-1, self.models).T.tolist()
        whole = sum(self.aside.values())
        by_readout = {name: sum(c) / whole for name, c in zip(VALIDATED, columns, strict=False)}
        own = zip(self.aside.items(), columns[0], strict=True)
        return by_readout, {client: hits / n for (client, n), hits in own}


class Evaluator:
    """Accuracy by read-out, the same on every rank."""

    def __init__(
        self,
        comm: Comm,
        model: ProtoHead,
        test: TestData,
        seed: int,
        chunk: int,
        validation: ValidationData | None = None,
    ) -> None:
        self.comm, self.model, self.test, self.seed, self.chunk = comm, model, test, seed, chunk
        self.validation = validation

    @torch.no_grad()
    def __call__(
        self,
        group: ClientGroup,
        weights: dict[int, float],
        prototypes: Tensor,
        averaged: Tensors,
    ) -> Evaluation:
        """Test accuracy by read-out, and accuracy on the validation samples.

        weights: w_k of every client of the run that has trained, summing to 1.
        prototypes: G [C, D]. averaged: the averaged model's tensors.
        """
        labels, aside = self.test.labels, self._aside(weights)
        # an average that is neither trained nor reported is not looked at there
        shared = [averaged] if "averaged" in (group.algorithm.mode, group.algorithm.readout) else []
        clients, models = sorted(weights), 1 + len(shared)
        tally = Tally(len(labels), prototypes, clients, self.comm.device, aside, models)
        self.model.eval()
        try:
            for row, client in enumerate(group.clients):
                tensors = {k: v[row] for k, v in group.state.model_tensors().items()}
                if client in weights:
                    self._add_client(tally, tensors, client, weights[client])
                if client in aside:
                    self._validate(tally, client, [tensors, *shared])
            tally.count_averaged(self._hits_of_slice(averaged))
        finally:
            self.model.train()
        return tally.evaluation(self.comm.sum(tally.sums.total), labels)

    def _aside(self, weights: Mapping[int, float]) -> dict[int, int]:
        """How many validation samples each client has that has some and has trained."""
        samples = self.validation.samples if self.validation else {}
        return {k: samples[k] for k in sorted(weights) if k in samples}

    def _features(self, tensors: Tensors, images: Tensor) -> Tensor:
        embedding = functional_call(self.model, tensors, images)
        return F.normalize(embedding.to(tensors["prototypes"].dtype), dim=1)

    def _add_client(self, tally: Tally, tensors: Tensors, client: int, weight: float) -> None:
        own = tensors["prototypes"]
        noise = self._features(tensors, self._noise_image(client).to(own.device, own.dtype))[0]
        hits = torch.zeros((), dtype=torch.int64, device=own.device)
        start = 0
        for images in self.test.chunks(self.chunk):
            features = self._features(tensors, images)
            seen = Seen(features, features @ own.T, noise)
            tally.add(seen, weight, start)
            hits += (seen.logits.argmax(1) == self._labels(start, len(images), own)).sum()
            start += len(images)
        tally.count_client(client, hits)

    def _validate(self, tally: Tally, client: int, models: Sequence[Tensors]) -> None:
        assert self.validation is not None, "some client has validation samples"
        hits = self._hits(models, self.validation.chunks(client, self.chunk))
        tally.count_validation(client, hits)

    def _noise_image(self, client: int) -> Tensor:
        """Gaussian noise as network input [1, ...], drawn once per (seed, client)."""
        draws = generator(self.seed, client, 0, "noise image")
        return torch.randn(1, *self.test.shape, generator=draws, dtype=torch.float64)

    def _labels(self, start: int, count: int, like: Tensor) -> Tensor:
        return self.test.labels[start : start + count].to(like.device)

    def _hits_of_slice(self, averaged: Tensors) -> Tensor:
        """Right answers of the averaged model on this rank's slice of the test set.

        Slices are whole chunks, so that every sample is in the same batch on any number of ranks.
        """
        starts = range(0, len(self.test.labels), self.chunk)[self.comm.rank :: self.comm.size]
        samples = (
            (images, self.test.labels[start : start + self.chunk])
            for start in starts
            for images in self.test.chunks(self.chunk, start, start + self.chunk)
        )
        return self._hits([averaged], samples)[0]

    def _hits(self, models: Sequence[Tensors], samples: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Right answers [len(models)] of argmax z P^T, each model by its own prototypes."""
        like = models[0]["prototypes"]
        hits = torch.zeros(len(models), dtype=torch.int64, device=like.device)
        for images, labels in samples:
            scores = [self._features(m, images) @ m["prototypes"].T for m in models]
            hits += (torch.stack(scores).argmax(2) == labels.to(like.device)).sum(1)
        return hits

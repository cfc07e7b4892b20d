"""Accuracy by read-out on the test set: each client's model runs once per sample for all of them.

Clients are evaluated lane by lane; where they have validation samples, a lane's models run on
these, too. Every rank runs its own clients and adds their contributions to exact integers
(fedcore/tally.py); one all-reduce finishes, with the same answer on any number of ranks. The
averaged model's share of the test set is split over the ranks. Nothing here is ever used to choose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedcore.batch import TestData, ValidationData
from fedcore.clients.group import ClientGroup
from fedcore.clients.lanes import over_clients
from fedcore.clients.state import Tensors
from fedcore.models.proto_head import ProtoHead
from fedcore.readouts import VALIDATED, Seen
from fedcore.seeds import generator
from fedcore.server.comm import Comm
from fedcore.server.consensus import square_distances
from fedcore.tally import Evaluation, Tally

IMAGES = 4096
"""At most so many images go through a lane's models at once, together."""

BLOCK = 2**18
"""About so many numbers are added at once: several chunks' if they are small, since then the many
short operations of the read-outs would take longer than the models."""

NOBODY = -1  # the label of filling


class Evaluator:
    """Accuracy by read-out, the same on every rank."""

    def __init__(
        self,
        comm: Comm,
        model: ProtoHead,
        test: TestData,
        seed: int,
        chunk: int,  # images in one forward pass of one model
        validation: ValidationData | None = None,
    ) -> None:
        self.comm, self.model, self.test, self.seed, self.chunk = comm, model, test, seed, chunk
        self.validation = validation
        # a lane's models at once; on CPUs one by one is faster (bench/evaluate.py)
        self.at_once = comm.device.type != "cpu"
        self.labels = test.labels.to(comm.device)
        self.parameters = [name for name, _ in model.named_parameters()]

    @torch.no_grad()
    def __call__(
        self,
        group: ClientGroup,
        weights: Mapping[int, float],
        prototypes: Tensor,
        averaged: Tensors,
    ) -> Evaluation:
        """Test accuracy by read-out, accuracy on the validation samples, and the models' variance.

        weights: w_k of every client of the run that has trained, summing to 1.
        prototypes: G [C, D]. averaged: the averaged model's tensors. Of a group that does not keep
        its clients' models only the averaged one is looked at.
        """
        averaged = {k: v[None] for k, v in averaged.items()}  # a lane of one
        kept = weights if group.keeps_models else {}
        # an average that is neither trained nor reported is not looked at on validation samples
        is_used = "averaged" in (group.algorithm.mode, group.algorithm.readout)
        validated = [name for name, used in zip(VALIDATED, (kept, is_used), strict=True) if used]
        tally = Tally(self.labels, prototypes, kept, self._aside(weights), validated)
        self.model.eval()
        try:
            for ids, models in self._lanes(group, weights):
                right_aside = self._validate(tally, ids, models, averaged)
                if models:
                    right = self._test(tally, ids, models)
                    distances = square_distances(models, averaged, self.parameters)
                    tally.add_clients(ids, right, distances, right_aside)
            tally.averaged[0] = self._right_of_slice(averaged)
        finally:
            self.model.train()
        return tally.evaluation(self.comm.sum(tally.total()))

    def _lanes(
        self, group: ClientGroup, clients: Collection[int]
    ) -> Iterator[tuple[list[int], Tensors]]:
        """Those of this rank's clients that are among `clients`, and their models; no models where
        the group does not keep them."""
        lanes: Iterable[tuple[list[int], Tensors]]
        if group.keeps_models:
            lanes = group.models(clients)
        else:
            lanes = (([k for k in lane if k in clients], {}) for lane in group.lanes)
        for ids, models in lanes:
            if self.at_once:
                yield ids, models
                continue
            for row, client in enumerate(ids):
                yield [client], {name: v[row : row + 1] for name, v in models.items()}

    def _aside(self, weights: Mapping[int, float]) -> dict[int, int]:
        """How many validation samples each client has that has some and has trained."""
        samples = self.validation.samples if self.validation else {}
        return {k: samples[k] for k in sorted(weights) if k in samples}

    def _features(
        self, tensors: Tensors, own: Sequence[Tensor], shared: Iterable[Tensor] = ()
    ) -> Tensor:
        """z [m, D] of one model, chunk by chunk: of its own images, then of those of all models."""
        chunks = chain(own, shared)
        embeddings = [functional_call(self.model, tensors, images) for images in chunks]
        return F.normalize(torch.cat(embeddings).to(tensors["prototypes"].dtype), dim=1)

    def _scores(self, tensors: Tensors, chunks: Iterable[Tensor]) -> Tensor:
        """z P^T [m, C] of one model; each sample's is the same whichever other chunks there are."""
        prototypes = tensors["prototypes"]
        return torch.cat([self._features(tensors, [x]) @ prototypes.T for x in chunks])

    def _size(self, clients: int) -> int:
        """Images in a chunk, so that those of a lane stay bounded."""
        return max(1, min(self.chunk, max(self.chunk, IMAGES) // clients))

    def _test(self, tally: Tally, ids: Sequence[int], models: Tensors) -> Tensor:
        """Right answers [K] of each model alone; its contributions go to the read-outs' sums."""
        own, size = models["prototypes"], self._size(len(ids))
        shares = torch.tensor([tally.weights[k] for k in ids], dtype=torch.float64)
        shares = shares.to(own.device, non_blocking=True)
        right = torch.zeros(len(ids), dtype=torch.int64, device=own.device)
        together = max(1, BLOCK // (len(ids) * size * tally.width))
        chunks, start, noise = self.test.chunks(size), 0, None
        while start < len(self.labels):
            some = partial(self._features, shared=islice(chunks, together))
            if noise is None:
                features = over_clients(some, models, [self._noise_images(ids, own)])
                noise, features = features[:, 0], features[:, 1:]
            else:
                features = over_clients(some, models, [])
            seen = Seen(features, over_clients(_logits, features, own), noise)
            tally.add(seen, shares, start)
            labels = self.labels[start : start + features.shape[1]]
            right += (seen.logits.argmax(2) == labels).sum(1)
            start += len(labels)
        return right

    def _noise_images(self, clients: Sequence[int], like: Tensor) -> Tensor:
        """[K, 1, ...]: each is a chunk of its own, since one more image in a pass would round the
        others differently."""
        images = torch.stack([self._noise_image(k) for k in clients]).to(like.dtype)
        return images.to(like.device, non_blocking=True)

    def _noise_image(self, client: int) -> Tensor:
        """Gaussian noise as network input [1, ...], drawn at the address (seed, client)."""
        draws = generator(self.seed, client, 0, "noise image")
        return torch.randn(1, *self.test.shape, generator=draws, dtype=torch.float64)

    def _validate(
        self, tally: Tally, ids: Sequence[int], models: Tensors, averaged: Tensors
    ) -> Tensor:
        """Right answers [K] of each model on its client's own validation samples; those of the
        averaged model are counted, too."""
        right = torch.zeros(len(ids), dtype=torch.int64, device=self.labels.device)
        rows = [row for row, client in enumerate(ids) if client in tally.aside]
        if not rows:
            return right
        at = torch.tensor(rows).to(right.device, non_blocking=True)
        own = models if len(rows) == len(ids) else {k: v[at] for k, v in models.items()}
        for images, labels in self._aside_chunks([ids[row] for row in rows]):
            if VALIDATED[0] in tally.validated:
                right[at] += self._right(own, images, labels)
            if VALIDATED[1] in tally.validated:
                all_of_them = images.flatten(0, 1)[None], labels.flatten()[None]
                tally.averaged[1:] += self._right(averaged, *all_of_them)
        return right

    def _aside_chunks(self, ids: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Validation images [K, m, ...] and labels [K, m] of a lane, filled up to the longest."""
        assert self.validation is not None, "some client has validation samples"
        size = self._size(len(ids))
        for parts in zip_longest(*(self.validation.chunks(k, size) for k in ids)):
            yield _filled(parts)

    def _right(self, models: Tensors, images: Tensor, labels: Tensor) -> Tensor:
        """Right answers [K] of argmax z P^T, each model on its own images by its own prototypes."""
        scores = over_clients(self._scores, models, [images])
        return (scores.argmax(2) == labels.to(scores.device)).sum(1)

    def _right_of_slice(self, averaged: Tensors) -> Tensor | int:
        """Right answers [] of the averaged model on this rank's slice of the test set.

        Slices are whole chunks, so that every sample is in the same batch on any number of ranks.
        """
        size = self.chunk
        starts = range(0, len(self.labels), size)[self.comm.rank :: self.comm.size]
        if not starts:
            return 0
        chunks = (images for i in starts for images in self.test.chunks(size, i, i + size))
        scores = over_clients(partial(self._scores, chunks=chunks), averaged)[0]
        labels = torch.cat([self.labels[i : i + size] for i in starts])
        return (scores.argmax(1) == labels).sum()


def _logits(features: Tensor, prototypes: Tensor) -> Tensor:
    """z P^T [m, C] of one client."""
    return features @ prototypes.T


def _filled(parts: Sequence[tuple[Tensor, Tensor] | None]) -> tuple[Tensor, Tensor]:
    """Images [K, m, ...] and labels [K, m] of K clients, of which some have fewer, or no more."""
    if len(parts) == 1 and parts[0]:
        return parts[0][0][None], parts[0][1][None]
    there = [(row, *part) for row, part in enumerate(parts) if part]
    longest = max((images for _, images, _ in there), key=len)
    images = longest.new_zeros(len(parts), *longest.shape)
    labels = there[0][2].new_full((len(parts), len(longest)), NOBODY)
    for row, own, those in there:
        images[row, : len(own)], labels[row, : len(own)] = own, those
    return images, labels

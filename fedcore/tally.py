"""Everything that an evaluation adds up, in one integer buffer: one all-reduce, one copy home.

Exact, so that the order of clients, lanes and ranks changes nothing (server/exact.py): each
client's contribution to a sum is rounded once to a 64-bit integer; counts are integers anyway; and
a number that one client alone has travels by its bits, to which the other ranks add zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.clients.lanes import over_clients
from fedcore.readouts import LOCAL, READOUTS, VALIDATED, Part, Seen, all_parts
from fedcore.server.consensus import model_variance
from fedcore.server.exact import ExactSum


class Evaluation(NamedTuple):
    """What a model, or many, got right: shares in [0, 1]."""

    accuracy: dict[str, float]  # by read-out
    validation: dict[int, float]  # each client's own model on its own validation samples
    variance: float | None  # of client models around the averaged one; None without client models


class Tally:
    """What an evaluation counts and sums, on this rank.

    Sums of the read-outs' parts by test sample; right answers of the averaged model; and of each
    client its right answers on the test samples, its distance from the averaged model, and its
    right answers on its validation samples, if some client has any.
    """

    def __init__(
        self,
        labels: Tensor,  # of the test samples [M], on the device
        prototypes: Tensor,  # G [C, D]
        weights: Mapping[int, float],  # of every client of the run whose model is looked at
        aside: Mapping[int, int],  # validation samples of each client that has some
        validated: Sequence[str],  # those of `VALIDATED` that are looked at
    ) -> None:
        self.labels, self.weights = labels, weights
        self.aside, self.validated = aside, validated
        self.prototypes = prototypes.to(labels.device)
        self.columns: dict[Part, slice] = {}
        self.width = 0  # of all parts together
        for part in all_parts() if weights else ():
            end = self.width + part.width(*prototypes.shape)
            self.columns[part], self.width = slice(self.width, end), end
        self.row = {client: row for row, client in enumerate(sorted(weights))}
        self._lanes: list[tuple[list[int], Tensor]] = []  # rows, and their part of the table
        self._summed = len(labels) * self.width
        self._numbers = 3 if aside else 2  # of each client
        size = self._summed + 2 + len(weights) * self._numbers
        self.sums = ExactSum(size, 2.0, labels.device)
        self.averaged = self.sums.total[self._summed :][:2]  # right: test, and validation samples

    def add(self, seen: Seen, shares: Tensor, start: int) -> None:
        """Add what K clients contribute to the samples from `start` on.

        seen: each [K, m, ...]; shares [K]: w_k.
        """
        values = over_clients(self._contributions, seen)
        self.sums.add_lane(values, shares, start * self.width)

    def _contributions(self, seen: Seen) -> Tensor:
        """All parts of one client side by side [m, width]."""
        return torch.cat([part.of(seen) for part in self.columns], 1)

    def add_clients(
        self, clients: Sequence[int], right: Tensor, distances: Tensor, right_aside: Tensor
    ) -> None:
        """Add numbers [K] of each client alone.

        right: right answers on the test samples; distances: from the averaged model, float64;
        right_aside: right answers on its own validation samples.
        """
        table = torch.stack([right, distances.view(torch.int64), right_aside], 1)
        self._lanes.append(([self.row[k] for k in clients], table[:, : self._numbers]))

    def total(self) -> Tensor:
        """All sums and counts of this rank, as one tensor of int64."""
        if self._lanes:
            rows = torch.tensor([row for rows, _ in self._lanes for row in rows])
            table = self.sums.total[self._summed + 2 :].view(-1, self._numbers)
            table[rows.to(table.device)] = torch.cat([part for _, part in self._lanes])
        return self.sums.total

    def evaluation(self, total: Tensor) -> Evaluation:
        """The evaluation that the summed integers of all ranks stand for."""
        m, right = len(self.labels), self._right(total[: self._summed])
        found = torch.cat([*right.values(), total[self._summed :]]).cpu()  # sync: the only one
        ensembles, averaged, flat = torch.split(found, [len(right), 2, len(found) - len(right) - 2])
        accuracy = {name: int(hits) / m for name, hits in zip(right, ensembles, strict=True)}
        accuracy["averaged"] = int(averaged[0]) / m
        columns = flat.view(-1, self._numbers).T.contiguous()
        own, variance = [0] * len(self.row), None
        if self.row:
            accuracy |= self._alone(columns[0])
            distances = columns[1].view(torch.float64).tolist()
            variance = model_variance(distances, [self.weights[k] for k in self.row])
        if self.row and self.aside:
            own = columns[2].tolist()
        accuracy |= self._validation(sum(own), int(averaged[1]))
        by_client = dict(zip(self.row, own, strict=True))
        validation = {k: by_client[k] / n for k, n in self.aside.items() if self.row}
        return Evaluation(accuracy, validation, variance)

    def _right(self, sums: Tensor) -> dict[str, Tensor]:
        """Test samples that each ensemble gets right [1]."""
        if not self.columns:
            return {}
        whole = self.sums.value(sums).view(len(self.labels), -1)
        right = {}
        for name, readout in READOUTS:
            parts = [whole[:, self.columns[part]] for part in readout.parts]
            found = readout.predict(parts, self.prototypes) == self.labels
            right[name] = found.sum(0, keepdim=True)
        return right

    def _alone(self, right: Tensor) -> dict[str, float]:
        """Shares of the test samples that clients get right by themselves."""
        alone = right.double() / len(self.labels)
        values = (alone.mean(), alone.min(), alone.max())
        return {name: float(value) for name, value in zip(LOCAL, values, strict=True)}

    def _validation(self, own: int, averaged: int) -> dict[str, float]:
        """Share of all validation samples by read-out."""
        hits = dict(zip(VALIDATED, (own, averaged), strict=True))
        whole = sum(self.aside.values())
        return {name: hits[name] / whole for name in self.validated if whole}

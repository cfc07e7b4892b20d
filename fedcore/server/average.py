"""The weighted mean of models over all ranks, with the same bits on any number of them.

`ModelFold` adds models up as they come, on a scale that is known before the round; `average_models`
takes models that are all there. Both need 16 bytes a number beside the models (a fold with batch
statistics 24), and 16 more while the sum is turned back into floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedcore.clients.readings import magnitude
from fedcore.clients.state import ClientState
from fedcore.server.comm import Comm
from fedcore.server.exact import ExactRow, ExactSum

Tensors = Mapping[str, Tensor]


GROWTH = 64.0
"""The mean is exact while no parameter becomes so many times the largest one of the round's start.
Beyond that it is rounded in the order of the lanes, as any sum of floats."""

EXPLOSION = 1024 * GROWTH
"""With this growth a client counts as diverged: the sum would run over."""

STATISTICS = 2.0**16
"""The same as `GROWTH` for each batch statistic, from its largest number or from 1; it explodes at
1,024 times that, too."""

COUNTS = 2.0**36
"""Integers of a model, such as a batch norm's number of batches, stay below this."""


class ModelFold:
    """sum_k share_k model_k of a round, lane by lane, in integers: the same bits in any order.

    shares: of every client of the round, summing to 1. start: the one model [1, ...] from which all
    clients of the round begin, the same on all ranks, and with it the scale: no rank needs to know
    how large the others' numbers have become, and one all-reduce is enough.
    """

    def __init__(self, start: ClientState, shares: Mapping[int, float]) -> None:
        self.shares, self.like = shares, start
        weights, *statistics = _numbers(start, 0)
        # each statistic on a scale of its own: they may be far apart
        bounds = [GROWTH * magnitude(weights[None])]
        bounds += [STATISTICS * magnitude(v.view(1, -1)).clamp(min=1) for v in statistics]
        self.limits: Sequence[Tensor] = [bound[0] * EXPLOSION / GROWTH for bound in bounds]
        sizes = [v.numel() for v in (weights, *statistics)]
        rows = [bound.expand(size) for bound, size in zip(bounds, sizes, strict=True)]
        self._numbers = ExactRow(torch.cat(rows) if statistics else rows[0])
        counts = sum(v.numel() for v in _counts(start, 0))
        self._counts = ExactRow(torch.full_like(bounds[0], COUNTS).expand(counts))
        self._before: Tensor | None = None

    def add(self, clients: Sequence[int], part: ClientState) -> None:
        """Add the models of these clients, whose round is over. part: their state, K first."""
        for row, client in enumerate(clients):  # one at a time: a row in float64 is large
            self._numbers.add(_numbers(part, row), self.shares[client])
            self._counts.add(_counts(part, row), self.shares[client])

    def go_on_from(self, total: Tensor) -> None:
        """Go on from the `total` [n] of before a stop."""
        self._before = total

    @property
    def total(self) -> Tensor:
        """All that was added so far, as int64 [n], to be summed over ranks."""
        total = torch.cat([self._numbers.total, self._counts.total])
        return total if self._before is None else total + self._before.to(total.device)

    def models_mean(self, total: Tensor, share: float) -> dict[str, Tensor]:
        """Mean of the models that `total` [n] sums up, by name, each [...].

        share: the sum of their clients' shares.
        """
        state = self.like.take(torch.zeros(1, dtype=torch.int64))
        numbers, counts = _numbers(state, 0), _counts(state, 0)
        cut = sum(v.numel() for v in numbers)
        for exact, part, targets in (
            (self._numbers, total[:cut], numbers),
            (self._counts, total[cut:], counts),
        ):
            mean = exact.value(part) / share
            pieces = torch.split(mean, [target.numel() for target in targets])
            for target, piece in zip(targets, pieces, strict=True):
                shaped = piece.view(target.shape)
                target.copy_(shaped if target.is_floating_point() else shaped.round())
        return {name: value[0] for name, value in state.model_tensors().items()}


def _numbers(state: ClientState, row: int) -> list[Tensor]:
    """A client's parameters and batch statistics; views."""
    floats = [v[row] for v in state.buffers.values() if v.is_floating_point()]
    return [state.weights[row], *floats]


def _counts(state: ClientState, row: int) -> list[Tensor]:
    """A client's integers; views."""
    return [v[row] for v in state.buffers.values() if not v.is_floating_point()]


def average_models(
    comm: Comm, models: Iterable[tuple[Tensors, float]], like: Tensors
) -> dict[str, Tensor]:
    """Weighted mean of client models over all ranks, the same bits on any number of ranks.

    models: (tensors, weight) of this rank's clients, weights summing to 1 over all ranks; gone
    through twice. like: tensors that give names, shapes and types. One MAX for the scale, one exact
    integer SUM.
    """
    bound = torch.zeros((), dtype=torch.float64, device=comm.device)
    for tensors, _ in models:
        for name in like:
            bound = torch.maximum(bound, tensors[name].detach().abs().max().to(torch.float64))
    bound = comm.max(bound[None])
    total = ExactSum(sum(v.numel() for v in like.values()), float(bound), comm.device)
    for tensors, weight in models:
        offset = 0
        for name, value in like.items():
            total.add(tensors[name].detach(), weight, offset)
            offset += value.numel()
    return _unflat(total.value(comm.sum(total.total)), like)


def _unflat(flat: Tensor, like: Tensors) -> dict[str, Tensor]:
    parts = torch.split(flat, [v.numel() for v in like.values()])
    result = {}
    for (name, value), part in zip(like.items(), parts, strict=True):
        shaped = part.view(value.shape)
        result[name] = (shaped if value.is_floating_point() else shaped.round()).to(value.dtype)
    return result

"""The weighted mean of models over all ranks, with the same bits on any number of them.

`ModelFold` adds models up as they come, on a scale that is known before the round; `average_models`
takes models that are all there. Both need 8 bytes a number beside the models, and 16 while the sum
is turned back into floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedcore.clients.readings import largest
from fedcore.clients.state import ClientState
from fedcore.server.comm import Comm
from fedcore.server.exact import ExactSum

Tensors = Mapping[str, Tensor]


HEADROOM = 1024.0
"""How many times larger than the largest number of the common start one may become in a round."""

COUNTS = 2.0**40
"""Integers of a model, such as a batch norm's number of batches, stay below this."""


class ModelFold:
    """sum_k share_k model_k of a round, lane by lane: integers, so that any order gives the same.

    shares: of every client of the round, summing to 1. All ranks have the same `start`, one model
    from which all clients of the round begin, and with it the same scale: no rank needs to know
    how large the others' numbers have become, and one all-reduce is enough.
    """

    def __init__(self, start: ClientState, shares: Mapping[int, float]) -> None:
        self.shares, self.like = shares, start
        device = start.log_var.device
        self.limit = HEADROOM * largest(start)[0]  # []
        floats = start.weights.shape[1] + sum(v.numel() for v in self._buffers(start, True))
        counts = sum(v.numel() for v in self._buffers(start, False))
        self.total = torch.zeros(floats + counts, dtype=torch.int64, device=device)
        self._floats = ExactSum(floats, self.limit, device, self.total[:floats])
        self._counts = ExactSum(counts, COUNTS, device, self.total[floats:])

    @staticmethod
    def _buffers(state: ClientState, floating: bool) -> list[Tensor]:
        return [v for v in state.buffers.values() if v.is_floating_point() == floating]

    def add(self, clients: Sequence[int], part: ClientState) -> None:
        """These clients are through."""
        for row, client in enumerate(clients):  # one at a time: a row in float64 is large
            for exact, values in (
                (self._floats, [part.weights, *self._buffers(part, True)]),
                (self._counts, self._buffers(part, False)),
            ):
                at = 0
                for each in values:
                    exact.add(each[row], self.shares[client], at)
                    at += each[row].numel()

    def models_mean(self, total: Tensor, share: float) -> dict[str, Tensor]:
        """The mean of those models that are in `total`, of clients whose shares sum to `share`."""
        state, cut = self.like.take(torch.zeros(1, dtype=torch.int64)), len(self._floats.total)
        parts = (
            (self._floats.value(total[:cut]), [state.weights, *self._buffers(state, True)]),
            (self._counts.value(total[cut:]), self._buffers(state, False)),
        )
        for found, targets in parts:
            mean = found / share
            pieces = torch.split(mean, [target.numel() for target in targets])
            for target, piece in zip(targets, pieces, strict=True):
                shaped = piece.view(target.shape)
                target.copy_(shaped if target.is_floating_point() else shaped.round())
        return {name: value[0] for name, value in state.model_tensors().items()}


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

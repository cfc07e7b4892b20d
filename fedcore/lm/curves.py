"""Losses of all clients, gathered once a round, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.errors import LossDiverged
from fedcore.lm.turns import Turn
from fedcore.server.comm import Comm
from fedcore.telemetry.events import LMClientEvent


class Means(NamedTuple):
    """Means over the rounds since the last line."""

    loss: float  # over steps and clients
    norm: float
    steps: int  # of a client of all rounds
    batches: int  # of all clients


class Curves:
    """Loss and gradient norm of each client's steps since the last line."""

    def __init__(self, comm: Comm, slots: int) -> None:
        self.comm, self.slots = comm, slots  # slots: most clients that any rank owns
        self._rounds: list[Tensor] = []  # each [M, H, 2], in the order of client ids
        self.newest: list[LMClientEvent] = []  # of the last round

    def __bool__(self) -> bool:
        return bool(self._rounds)

    def add(self, done: Sequence[Turn], steps: range, lr: Callable[[int], float]) -> None:
        """Add the turns that this rank's clients made in a round. Collective: one gather.

        Raises `LossDiverged` on every rank, naming the first step and client not finite.
        """
        rows = torch.full((self.slots, 2 + 2 * len(steps)), -1.0, dtype=torch.float64)
        rows = rows.to(self.comm.device)  # ranks own different numbers: the rest is of client -1
        for row, turn in zip(rows, done, strict=False):
            row[0], row[1] = turn.client, turn.drift
            row[2:] = torch.cat([turn.losses, turn.norms])
        table = self.comm.gather(rows).cpu()  # sync: once a round
        table = table[table[:, 0] >= 0]
        table = table[table[:, 0].argsort()]
        curves = table[:, 2:].reshape(len(table), 2, -1).transpose(1, 2)
        _check_finite(table, curves, steps, lr)
        self._rounds.append(curves)
        self.newest = [
            LMClientEvent(steps.stop, int(row[0]), float(curve[:, 0].mean()), float(row[1]))
            for row, curve in zip(table, curves, strict=True)
        ]

    def close(self) -> Means:
        """The means since the last line; the next line begins at zero."""
        means = torch.cat([curves.mean(0) for curves in self._rounds])  # [steps, 2]
        batches = sum(curves.shape[0] * curves.shape[1] for curves in self._rounds)
        self._rounds = []
        loss, norm = means.mean(0).tolist()
        return Means(loss, norm, len(means), batches)


def _check_finite(table: Tensor, curves: Tensor, steps: range, lr: Callable[[int], float]) -> None:
    """A change of the weights that is not finite counts against the last step."""
    bad = ~curves.isfinite().all(2)  # [M, H]
    bad[:, -1] |= ~table[:, 1].isfinite()
    if not bad.any():
        return
    at, row = min((int(b.long().argmax()), r) for r, b in enumerate(bad) if b.any())
    loss, norm = curves[row, at].tolist()
    raise LossDiverged(steps[at] + 1, loss, norm, lr(steps[at]), int(table[row, 0]))

"""ServerCollective: the server's part of a round, run by every rank; there is no server process."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.clients.layout import Tensors
from fedcore.clients.order import Order, Upload
from fedcore.clients.readings import READINGS
from fedcore.clients.step import Targets
from fedcore.errors import CollectiveError, ConfigError, Diverged
from fedcore.schedule import progress
from fedcore.server.combine import COMBINES
from fedcore.server.comm import Comm
from fedcore.server.consensus import prototype_std
from fedcore.server.participants import participants


@dataclass
class GlobalState:
    """What the server knows between rounds; the same on every rank, bit for bit."""

    prototypes: Tensor  # G [C, D] float64
    weights: Tensors | None = None  # averaged model, in averaged mode after a round
    control: Tensor = field(default_factory=lambda: torch.zeros(0))  # SCAFFOLD's c [P]
    first_spread: float = 0.0  # inter-client prototype std of the first round
    prototype_std: float = 0.0  # of the last round


class Collected:
    """All uploads of a round in client-id order, on the CPU."""

    def __init__(self, table: Tensor, classes: int, width: int) -> None:
        head, rest = table[:, : 1 + classes], table[:, 1 + classes :]
        self.clients = head[:, 0].to(torch.int64)  # [N]
        self.counts = head[:, 1:].to(torch.int64)  # [N, C]
        self.prototypes = rest[:, : classes * width].reshape(-1, classes, width)
        readings = rest[:, classes * width :]
        self.columns = dict(zip(READINGS, readings.unbind(1), strict=False))
        self.terms = readings[:, len(READINGS) :]  # [N, n]


class ServerCollective:
    """Broadcasts the order of a round, and folds the uploads."""

    def __init__(
        self,
        comm: Comm,
        algorithm: Algorithm,
        anchors: Tensor,
        *,
        clients: Sequence[int],  # all that have samples, in id order
        slots: int,  # most clients that any rank owns
        rounds: int,
        per_round: int | None,
        seed: int,
        start: Tensors,  # parameters that every client starts from
        row: int = 0,  # P, for control variates
    ) -> None:
        self.comm, self.algorithm, self.anchors = comm, algorithm, anchors
        self.clients, self.slots, self.rounds = list(clients), slots, rounds
        self.per_round, self.seed = per_round, seed
        self.start = {k: v.detach().clone() for k, v in start.items()}
        self.like = self.start["prototypes"]  # dtype and device of what clients receive
        settings = dict(algorithm.combine_settings)
        self.combine = functools.partial(COMBINES.get(algorithm.combine), **settings)
        self.state = GlobalState(torch.zeros_like(anchors))
        if algorithm.control_variates:
            self.state.control = self.like.new_zeros(row)

    def order(self, round: int) -> Order:
        """One broadcast from rank 0: round, progress, s(p), spread, anchors, global prototypes.

        Averaged weights are not sent again: every rank holds the same bits of them.
        """
        state = self.state
        spread = state.prototype_std / state.first_spread if state.first_spread else 1.0
        at = progress(round, self.rounds, 0, 1, spread, like=self.anchors)
        factor = float(self.algorithm.rule.factor(at))
        head = torch.tensor([round, round / self.rounds, factor, spread], dtype=torch.float64)
        sent = torch.cat([head, self.anchors.flatten(), state.prototypes.flatten()])
        got = self.comm.broadcast(sent).cpu()
        if int(got[0]) != round:
            reason = f"this rank is in round {round}, rank 0 in round {int(got[0])}"
            raise CollectiveError("order", self.comm.rank, reason)
        anchors, prototypes = got[4:].view(2, *self.anchors.shape)
        progress_by_round, factor, spread = got[1:4].tolist()
        return Order(
            round,
            progress_by_round,
            factor,
            spread,
            Targets(
                self._as_sent(anchors),
                self._as_sent(prototypes),
                state.weights or self.start,
                state.control,
            ),
            state.weights,
            frozenset(participants(self.clients, self.per_round, self.seed, round)),
        )

    def _as_sent(self, values: Tensor) -> Tensor:
        return values.to(self.like.device, self.like.dtype)

    def collect(self, upload: Upload, round: int) -> Collected:
        """One gather of all uploads, folded in client-id order into the global prototypes.

        Raises `Diverged` on every rank if a client's loss or parameters are not finite.
        """
        classes, width = self.anchors.shape
        columns = [
            upload.clients[:, None].to(self.like.device),
            upload.label_counts,
            upload.prototypes.flatten(1),
            upload.readings,
        ]
        size = sum(part.shape[1] for part in columns)
        # ranks own different numbers of clients: fill up with rows of client id -1
        padded = upload.readings.new_full((self.slots, size), -1)  # float64
        at = 0
        for part in columns:  # in place: of ten thousand clients there need not be two copies
            padded[: len(part), at : at + part.shape[1]] = part
            at += part.shape[1]
        table = self.comm.gather(padded).cpu()  # sync: once per round
        del padded, columns  # of ten thousand clients each is large
        order = table[:, 0].argsort()
        order = order[table[order, 0] >= 0]
        if not len(order):
            want, way_out = "a client that fits into memory", "a smaller clients.batch_size"
            raise ConfigError("clients.out_of_memory", "skip", want, way_out)
        got = Collected(table[order], classes, width)
        del table
        self._check_finite(got, round)
        state = self.state
        state.prototypes = self.combine(got.prototypes, got.counts, state.prototypes, self.anchors)
        holders = got.counts if self.algorithm.upload == "mean_features" else None
        state.prototype_std = prototype_std(got.prototypes, holders)
        state.first_spread = state.first_spread or state.prototype_std
        return got

    def _check_finite(self, got: Collected, round: int) -> None:
        for row in (got.columns["finite"] != 1).nonzero().flatten().tolist()[:1]:
            columns = {k: float(v[row]) for k, v in got.columns.items()}
            raise Diverged(
                int(got.clients[row]),
                round,
                columns["lambda_effective"],
                columns["base"],
                columns["align"],
            )

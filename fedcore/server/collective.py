"""ServerCollective: the server's part of a round, run by every rank; there is no server process."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.algorithms.server_rules import stepped
from fedcore.clients.layout import Tensors
from fedcore.clients.order import Order, Upload
from fedcore.clients.readings import READINGS, columns_of
from fedcore.clients.step import Targets
from fedcore.errors import CollectiveError, ConfigError, Diverged
from fedcore.schedule import progress
from fedcore.server.combine import COMBINES, Held
from fedcore.server.comm import Comm
from fedcore.server.consensus import Spread
from fedcore.server.participants import participants
from fedcore.server.state import GlobalState
from fedcore.server.uploads import Piece, pieces
from fedcore.settings import check_settings


class Collected:
    """What the round's clients reported, in client-id order, on the CPU."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Tensor, Tensor]] = []
        self.between, self.between_unit = Spread(), Spread(least=2)  # prototypes; their directions

    def add(self, piece: Piece, everyone: bool) -> None:
        """Take some more clients' uploads.

        everyone: prototypes of classes that a client does not hold count in the spread, too.
        """
        held = piece.counts > 0
        self._pieces.append((piece.clients, piece.readings))
        self.between.add(piece.prototypes, torch.ones_like(held) if everyone else held)
        self.between_unit.add(F.normalize(piece.prototypes, dim=2), held)

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @functools.cached_property
    def clients(self) -> Tensor:
        """Ids of the clients [N], int64."""
        return torch.cat([clients for clients, _ in self._pieces])

    @functools.cached_property
    def readings(self) -> Tensor:
        """What each client reported [N, len(READINGS) + terms], float64."""
        return torch.cat([readings for _, readings in self._pieces])

    @functools.cached_property
    def columns(self) -> dict[str, Tensor]:
        """The readings by name (`READINGS`), each [N]."""
        return columns_of(self.readings)

    @property
    def terms(self) -> Tensor:
        """Loss terms of each client [N, terms]."""
        return self.readings[:, len(READINGS) :]


class ServerCollective:
    """Broadcasts the order of a round, and folds the uploads."""

    def __init__(
        self,
        comm: Comm,
        algorithm: Algorithm,
        anchors: Tensor,
        *,
        clients: Sequence[int],  # all that have samples
        rounds: int,
        per_round: int | None,
        seed: int,
        start: Tensors,  # parameters that every client starts from
        row: int = 0,  # P, for control variates
    ) -> None:
        self.comm, self.algorithm, self.anchors = comm, algorithm, anchors
        self.clients, self.rounds = sorted(clients), rounds
        self.per_round, self.seed = per_round, seed
        self.start = {k: v.detach().clone() for k, v in start.items()}
        self.like = self.start["prototypes"]  # dtype and device of what clients receive
        rule, given = COMBINES.get(algorithm.combine), dict(algorithm.combine_settings)
        taken = check_settings(rule, given, "algorithm.combine_settings")
        self.combine = functools.partial(rule, **taken)
        self.state = GlobalState(torch.zeros_like(anchors))
        if algorithm.control_variates:
            self.state.control = self.like.new_zeros(row)

    def order(self, round: int) -> Order:
        """The order of a round, by one broadcast from rank 0. Collective.

        Broadcast are round, progress, s(p), spread, anchors and global prototypes; averaged
        weights are not sent again, since every rank holds the same bits of them. Raises
        `CollectiveError` if this rank is in another round than rank 0.
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

    def collect(self, upload: Upload, order: Order) -> Collected:
        """What all clients reported; folds their uploads, in id order, into the global prototypes.

        Collective. Raises `Diverged` on every rank if a client's loss or parameters are not finite,
        `ConfigError` if no client of the round fitted into memory.
        """
        got, state = Collected(), self.state
        clients = self._uploads(upload, order, got)
        state.prototypes = self.combine(clients, state.prototypes, self.anchors)
        for _ in clients:  # what it did not look at
            continue
        state.prototype_std = got.between.value()
        state.first_spread = state.first_spread or state.prototype_std
        return got

    def take(self, mean: Tensors) -> None:
        """The next round begins from the mean of this one's clients, or from a step by way of it.

        No collective: all ranks hold the same bits of the mean, the model before it, the moments.
        """
        state = self.state
        before = {name: (state.weights or self.start)[name] for name in self.start}
        rule = self.algorithm.server
        state.weights, state.moments = stepped(rule, before, mean, state.moments)

    def _uploads(self, upload: Upload, order: Order, got: Collected) -> Iterator[Held]:
        """What each client holds; the rest is noted on the way."""
        everyone = self.algorithm.upload != "mean_features"  # else there is nothing to compare
        for piece in pieces(self.comm, upload, order.participants):
            self._check_finite(piece, order.round)
            got.add(piece, everyone)
            yield Held(piece.prototypes, piece.counts)
        if not got:
            want, way_out = "a client that fits into memory", "a smaller clients.batch_size"
            raise ConfigError("clients.out_of_memory", "skip", want, way_out)

    def _check_finite(self, piece: Piece, round: int) -> None:
        columns = columns_of(piece.readings)
        for row in (columns["finite"] != 1).nonzero().flatten().tolist()[:1]:
            raise Diverged(
                int(piece.clients[row]),
                round,
                *(float(columns[name][row]) for name in ("lambda_effective", "base", "align")),
            )

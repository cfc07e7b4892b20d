"""ClientGroup: the clients of one rank, and their part of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.batch import TrainData
from fedcore.clients.optim import Hyper
from fedcore.clients.state import ClientState, Tensors
from fedcore.clients.step import StepReadings, Targets, local_step
from fedcore.models.proto_head import ProtoHead
from fedcore.schedule import progress

Ticker = Callable[[int], None]
"""Told the number of samples after each step."""


class Order(NamedTuple):
    """Server to clients, at the start of a round."""

    round: int
    progress: float  # share of all rounds done
    factor: float  # s(p) at the start of the round
    spread: float  # client-prototype std over its first-round value
    targets: Targets  # anchors and global prototypes, each [C, D]
    weights: Tensors | None  # averaged parameters and buffers; None = client models persist
    participants: frozenset[int]  # the clients of this round


class Upload(NamedTuple):
    """Clients to server, at the end of a round; K clients that took part."""

    clients: Tensor  # [K] int64
    prototypes: Tensor  # [K, C, D]
    label_counts: Tensor  # [K, C]
    readings: Tensor  # [K, len(READINGS) + n] per client, see `Reading columns`


# Reading columns: what a client reports of a round, then its n loss terms.
READINGS = ("base", "align", "lambda_raw", "lambda_effective", "local", "other", "norm", "finite")


class ClientGroup:
    """K clients with persistent state; those of a lane train at once. There is one code path."""

    def __init__(
        self,
        lanes: Sequence[Sequence[int]],
        data: TrainData,
        model: ProtoHead,
        algorithm: Algorithm,
        hyper: Hyper,
        *,
        rounds: int,
        epochs: int,
        autocast: bool = False,
    ) -> None:
        self.lanes = [list(lane) for lane in lanes]
        self.clients = sorted(k for lane in self.lanes for k in lane)
        self.data, self.model, self.algorithm, self.hyper = data, model, algorithm, hyper
        self.rounds, self.epochs, self.autocast = rounds, epochs, autocast
        self.label_counts = self._stack([data.label_counts(k) for k in self.clients])  # [K, C]
        first = algorithm.rule.first_log_var(self.label_counts)
        like = model.prototypes
        self.state = ClientState.start(
            dict(model.named_parameters()),
            dict(model.named_buffers()),
            first.to(like.device, like.dtype),
        )

    def _stack(self, counts: list[Tensor]) -> Tensor:
        classes = self.model.prototypes.shape[0]
        return torch.stack(counts) if counts else torch.zeros(0, classes, dtype=torch.int64)

    def train(self, order: Order, tick: Ticker = lambda samples: None) -> Upload:
        """All local epochs of this round for the participants of this rank."""
        if order.weights is not None:
            self.load(order.weights)
        if not self.state.memory:
            self.state.forget_momentum()
        rows = [i for i, k in enumerate(self.clients) if k in order.participants]
        readings = [self._train_lane(lane, order, tick) for lane in self._rows_of_lanes(set(rows))]
        if not self.hyper.carry_momentum:  # neither held nor saved between rounds
            self.state.memory = {}
        return self._upload(rows, readings)

    def load(self, weights: Tensors) -> None:
        """Overwrite every client's model with `weights` (each [...], no client axis)."""
        for name, value in self.state.model_tensors().items():
            value.copy_(weights[name].expand_as(value))

    def _rows_of_lanes(self, taking_part: set[int]) -> list[list[int]]:
        """Rows of each lane that take part; the same lanes on any number of ranks."""
        row = {client: i for i, client in enumerate(self.clients)}
        lanes = [[row[k] for k in lane if row[k] in taking_part] for lane in self.lanes]
        return [lane for lane in lanes if lane]

    def _train_lane(self, lane: list[int], order: Order, tick: Ticker) -> tuple[list[int], Tensor]:
        where = torch.tensor(lane)
        part = self.state.take(where)
        ids = [self.clients[i] for i in lane]
        sizes = [self.data.samples(k) for k in ids]
        for epoch in range(self.epochs):
            at = progress(
                order.round, self.rounds, epoch, self.epochs, order.spread, like=part.log_var
            )
            total = _Total()
            for number, batch in enumerate(self.data.epoch(ids, order.round, epoch)):
                part, step = local_step(
                    self.model,
                    self.algorithm,
                    part,
                    batch,
                    order.targets,
                    at,
                    self.hyper,
                    self.autocast,
                )
                total.add(step, batch.active)
                rows = batch.labels.shape[1]
                tick(sum(min(rows, max(0, n - number * rows)) for n in sizes))
        self.state.put(where, part)
        return lane, total.readings(part)

    def _upload(self, rows: list[int], readings: list[tuple[list[int], Tensor]]) -> Upload:
        prototypes = self.state.params["prototypes"]
        width = len(READINGS) + len(self.algorithm.terms)
        table = prototypes.new_zeros(len(self.clients), width)
        for lane, values in readings:
            table[torch.tensor(lane)] = values
        chosen = torch.tensor(rows, dtype=torch.int64)
        return Upload(
            torch.tensor([self.clients[i] for i in rows], dtype=torch.int64),
            prototypes[chosen],
            self.label_counts[chosen],
            table[chosen],
        )


class _Total:
    """Readings of one local epoch: means of the losses, the last step's lambda. No sync in here."""

    def __init__(self) -> None:
        self.steps: Tensor | None = None

    def add(self, step: StepReadings, active: Tensor) -> None:
        on = active.to(step.terms.dtype)
        if self.steps is None:
            self.steps, self.terms = on, step.terms * on[:, None]
            self.base, self.align, self.last = step.base * on, step.align * on, step
            return
        self.steps = self.steps + on
        self.terms = self.terms + step.terms * on[:, None]
        self.base, self.align = self.base + step.base * on, self.align + step.align * on
        keep = [
            torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, old)
            for new, old in zip(step, self.last, strict=True)
        ]
        self.last = StepReadings(*keep)

    def readings(self, state: ClientState) -> Tensor:
        """[K, len(READINGS) + n] in the order of READINGS, then the terms."""
        assert self.steps is not None  # a client with samples has at least one step
        finite = torch.isfinite(self.base) & torch.isfinite(self.last.norm)
        for tensor in state.model_tensors().values():
            if tensor.is_floating_point():
                finite = finite & torch.isfinite(tensor).flatten(1).all(1)
        steps, last = self.steps, self.last
        columns = [
            self.base / steps,
            self.align / steps,
            last.raw,
            last.effective,
            *state.log_var.unbind(1),
            last.norm,
            finite.to(last.norm.dtype),
        ]
        return torch.cat([torch.stack(columns, 1), self.terms / steps[:, None]], 1)

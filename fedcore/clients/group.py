"""ClientGroup: the clients of one rank, and their part of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.batch import Batch, TrainData
from fedcore.clients import control, learn
from fedcore.clients.lanes import over_clients
from fedcore.clients.optim import Hyper, over
from fedcore.clients.readings import READINGS, Totals
from fedcore.clients.state import ClientState, Tensors
from fedcore.clients.step import Lane, Setup, Targets, local_step, look
from fedcore.models.proto_head import ProtoHead
from fedcore.objective.anchors import ANCHORS
from fedcore.objective.learners import GradNorm, Hypergradient
from fedcore.schedule import Progress, progress

Ticker = Callable[[int], None]
"""Told the number of samples after each step."""


class Order(NamedTuple):
    """Server to clients, at the start of a round."""

    round: int
    progress: float  # share of all rounds done
    factor: float  # s(p) at the start of the round
    spread: float  # client-prototype std over its first-round value
    targets: Targets
    weights: Tensors | None  # averaged parameters and buffers; None = client models persist
    participants: frozenset[int]  # the clients of this round


class Upload(NamedTuple):
    """Clients to server, at the end of a round; K clients that took part."""

    clients: Tensor  # [K] int64
    prototypes: Tensor  # [K, C, D]; or mean features per class, as the algorithm says
    label_counts: Tensor  # [K, C]
    readings: Tensor  # [K, len(READINGS) + n] per client, the columns READINGS, then n loss terms


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
        self.setup = Setup(model, algorithm, hyper, autocast)
        self.rounds, self.epochs = rounds, epochs
        self.label_counts = self._stack([data.label_counts(k) for k in self.clients])  # [K, C]
        first = algorithm.rule.first_log_var(self.label_counts)
        like = model.prototypes
        self.state = ClientState.start(
            dict(model.named_parameters()),
            dict(model.named_buffers()),
            first.to(like.device, like.dtype),
        )
        if algorithm.control_variates:
            self.state.keep(control.OWN, self.state.params)
        if isinstance(algorithm.rule.learner, GradNorm):
            self.state.kept[learn.FIRST] = torch.zeros_like(self.state.log_var)

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
        results = [self._train_lane(lane, order, tick) for lane in self._rows_of_lanes(set(rows))]
        if not self.hyper.carry_momentum:  # neither held nor saved between rounds
            self.state.memory = {}
        return self._upload(rows, results)

    def load(self, weights: Tensors) -> None:
        """Overwrite every client's model with `weights` (each [...], no client axis)."""
        for name, value in self.state.model_tensors().items():
            value.copy_(weights[name].expand_as(value))

    def _rows_of_lanes(self, taking_part: set[int]) -> list[list[int]]:
        """Rows of each lane that take part; the same lanes on any number of ranks."""
        row = {client: i for i, client in enumerate(self.clients)}
        lanes = [[row[k] for k in lane if row[k] in taking_part] for lane in self.lanes]
        return [lane for lane in lanes if lane]

    def _train_lane(self, lane: list[int], order: Order, tick: Ticker) -> _LaneResult:
        where = torch.tensor(lane)
        part = self.state.take(where)
        before, ids = part, [self.clients[i] for i in lane]
        if self.algorithm.control_variates:
            control.begin_round(part)
        for epoch in range(self.epochs):
            at = progress(
                order.round, self.rounds, epoch, self.epochs, order.spread, like=part.log_var
            )
            fixed = self._fixed(where, before, order, at)
            part, total = self._epoch(ids, part, fixed, order, epoch, at, tick)
        if self.algorithm.control_variates:
            control.end_round(part, before)
        means = None
        if self.algorithm.upload == "mean_features":
            means = self._mean_features(ids, part, fixed, order)
        part.drop("round")
        self.state.put(where, part)
        return _LaneResult(lane, total.readings(part, self.algorithm), means)

    def _fixed(self, lane: Tensor, start: ClientState, order: Order, at: Progress) -> Lane:
        """The lane's label counts, and its anchors: the same for all, or each client's own path."""
        counts = self.label_counts[lane].to(start.log_var.device)
        anchors, name = order.targets.anchors, self.algorithm.anchor
        if name is not None:
            anchors = ANCHORS.get(name).target(anchors, start.params["prototypes"], at.local)
        return Lane(counts, anchors.expand(len(start), *order.targets.anchors.shape))

    def _epoch(
        self,
        ids: list[int],
        part: ClientState,
        fixed: Lane,
        order: Order,
        epoch: int,
        at: Progress,
        tick: Ticker,
    ) -> tuple[ClientState, Totals]:
        """One local epoch of a lane."""
        sizes, total = [self.data.trained(k) for k in ids], Totals()
        learner = self.algorithm.rule.learner
        forward = isinstance(learner, Hypergradient)
        horizon = learner.horizon if isinstance(learner, Hypergradient) else 1
        for number, batch in enumerate(self.data.epoch(ids, order.round, epoch)):
            held_out = None
            if forward and number % horizon == 0:
                learn.begin_window(part)
            if forward and (number + 1) % horizon == 0:
                held_out = self.data.held_out(ids, order.round, epoch, number)
            part, step = local_step(self.setup, part, batch, fixed, order.targets, at, held_out)
            total.add(step, batch.active)
            rows = batch.labels.shape[1]
            tick(sum(min(rows, max(0, n - number * rows)) for n in sizes))
        return part, total

    @torch.no_grad()
    def _mean_features(
        self, ids: list[int], part: ClientState, fixed: Lane, order: Order
    ) -> Tensor:
        """Mean of z over each client's samples (views of one more epoch) per class: [K, C, D].

        A class the client does not hold has 0.
        """

        def sums(params: Tensors, buffers: Tensors, sample: Batch, lane: Lane) -> Tensor:
            view = look(self.setup, params, buffers, sample, lane, order.targets)
            rows = F.one_hot(view.labels, len(view.prototypes)).to(view.features.dtype)
            rows = rows * view.weight[:, None]
            return torch.cat([rows.T @ view.features, rows.sum(0)[:, None]], 1)

        total = F.pad(torch.zeros_like(part.params["prototypes"]), (0, 1))  # the last: how many
        self.model.eval()
        try:
            for batch in self.data.epoch(ids, order.round, self.epochs):
                found = over_clients(sums, part.params, part.buffers, batch, fixed)
                total += found * over(batch.active, found)
        finally:
            self.model.train()
        return total[:, :, :-1] / total[:, :, -1:].clamp(min=1)

    def _upload(self, rows: list[int], results: list[_LaneResult]) -> Upload:
        prototypes = self.state.params["prototypes"]
        width = len(READINGS) + len(self.algorithm.terms)
        table = prototypes.new_zeros(len(self.clients), width, dtype=torch.float64)
        if self.algorithm.upload == "mean_features":
            prototypes = torch.zeros_like(prototypes)
        for lane, readings, means in results:
            table[torch.tensor(lane)] = readings
            if means is not None:
                prototypes[torch.tensor(lane)] = means
        chosen = torch.tensor(rows, dtype=torch.int64)
        return Upload(
            torch.tensor([self.clients[i] for i in rows], dtype=torch.int64),
            prototypes[chosen],
            self.label_counts[chosen],
            table[chosen],
        )


class _LaneResult(NamedTuple):
    rows: list[int]  # of the group's state
    readings: Tensor  # [K, len(READINGS) + n]
    mean_features: Tensor | None  # [K, C, D]

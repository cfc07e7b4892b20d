"""ClientGroup: the clients of one rank, and their part of a round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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
from fedcore.clients.room import Answer, Room, is_out_of_memory
from fedcore.clients.state import ClientState, Tensors
from fedcore.clients.step import Lane, Setup, Targets, local_step, look
from fedcore.clients.within import DONE, TO_DO, LaneRound, Within
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
        out_of_memory: Answer = "fail",
    ) -> None:
        self.lanes = [list(lane) for lane in lanes]
        self.clients = sorted(k for lane in self.lanes for k in lane)
        self.data, self.model, self.algorithm, self.hyper = data, model, algorithm, hyper
        self.setup = Setup(model, algorithm, hyper, autocast)
        self.rounds, self.epochs, self.room = rounds, epochs, Room(out_of_memory)
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
        self.within: Within | None = None  # of the round that is under way
        self.keeps_models = True
        if isinstance(algorithm.rule.learner, GradNorm):
            self.state.kept[learn.FIRST] = torch.zeros_like(self.state.log_var)

    def _stack(self, counts: list[Tensor]) -> Tensor:
        classes = self.model.prototypes.shape[0]
        return torch.stack(counts) if counts else torch.zeros(0, classes, dtype=torch.int64)

    def train(self, order: Order, tick: Ticker = lambda samples: None) -> Upload:
        """All local epochs of this round for the participants of this rank."""
        self.advance(order, tick)
        return self.finish(order)

    def advance(
        self,
        order: Order,
        tick: Ticker = lambda samples: None,
        pause: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Go on with the round; whether all of it is done.

        pause: asked before each step; once it says so, False is returned and `within` holds what
        is done so far. The next call goes on from there.
        """
        if self.within is None:
            self.within = self._begin(order)
        while lane := self._next_lane(self.within, self._taking_part(order)):
            try:
                if not self._go_on(self.within, lane, order, tick, pause):
                    return False
                continue
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                why = str(error)
            # outside of the handler: the error holds on to the tensors of the step
            self.room.make(self.within, lane, [self.clients[i] for i in lane.rows], why)
        return True

    @property
    def has_begun(self) -> bool:
        """Whether a client has trained in the round that is under way."""
        work = self.within
        return work is not None and (bool(work.done.any()) or any(x.has_begun for x in work.lanes))

    def finish(self, order: Order) -> Upload:
        """What came of the round, once all of it is done."""
        work, self.within = self.within, None
        assert work is not None, "advance comes first"
        if not self.hyper.carry_momentum:  # neither held nor saved between rounds
            self.state.memory = {}
        return self._upload([i for i in self._taking_part(order) if work.done[i] == DONE], work)

    def _taking_part(self, order: Order) -> list[int]:
        """The rows of this rank's participants."""
        return [i for i, k in enumerate(self.clients) if k in order.participants]

    def _begin(self, order: Order) -> Within:
        """Nothing of the round is done."""
        if order.weights is not None:
            self.load(order.weights)
        if not self.state.memory:
            self.state.forget_momentum()
        return self.nothing_done()

    def nothing_done(self) -> Within:
        """The work of a round in which no client has trained."""
        prototypes, width = self.state.params["prototypes"], len(READINGS)
        table = prototypes.new_zeros(
            len(self.clients), width + len(self.algorithm.terms), dtype=torch.float64
        )
        means = torch.zeros_like(prototypes) if self.algorithm.upload == "mean_features" else None
        return Within(torch.full((len(self.clients),), TO_DO), table, means)

    def go_on_from(self, work: Tensors, under_way: Sequence[int], lanes: Tensors) -> None:
        """Be in the middle of a round: what `Within.tensors` (rows of `clients`) and
        `Within.under_way` gave, on whichever ranks. The state is filled already."""
        self.within = self.nothing_done()
        self.within.fill(work)
        self.within.take(self.clients, under_way, lanes, self.state)

    def models(self, clients: Collection[int]) -> Iterator[tuple[list[int], Tensors]]:
        """The models of this rank's clients that are among `clients`, lane by lane: ids [k], and
        parameters and buffers, each [k, ...] on the device. In a fixed order."""
        row = {client: i for i, client in enumerate(self.clients)}
        for lane in self.lanes:
            if ids := [k for k in lane if k in clients]:
                rows = torch.tensor([row[k] for k in ids])
                yield ids, {k: v[rows] for k, v in self.state.model_tensors().items()}

    def load(self, weights: Tensors) -> None:
        """Overwrite every client's model with `weights` (each [...], no client axis)."""
        for name, value in self.state.model_tensors().items():
            value.copy_(weights[name].expand_as(value))

    def _next_lane(self, work: Within, taking_part: list[int]) -> LaneRound | None:
        """One that is under way, else the next with clients to do, else None.

        Lanes are the same on any number of ranks.
        """
        if work.lanes:
            return work.lanes[0]
        row, to_do = {client: i for i, client in enumerate(self.clients)}, set(taking_part)
        for lane in self.lanes:
            left = work.left([row[k] for k in lane if row[k] in to_do])
            if left:
                return self._enter(work, left[: self.room.width])
        return None

    def _enter(self, work: Within, rows: list[int]) -> LaneRound:
        """A lane of these rows, at the start of the round."""
        lane = LaneRound(rows, self.state.take(torch.tensor(rows)))
        if self.algorithm.control_variates:
            control.begin_round(lane.part)
        work.lanes.append(lane)
        return lane

    def _go_on(
        self,
        work: Within,
        lane: LaneRound,
        order: Order,
        tick: Ticker,
        pause: Callable[[], bool],
    ) -> bool:
        """Train a lane until the round is over for it; False if it paused before that."""
        ids, rows = [self.clients[i] for i in lane.rows], torch.tensor(lane.rows)
        for epoch in range(lane.epoch, self.epochs):
            like = lane.part.log_var
            at = progress(order.round, self.rounds, epoch, self.epochs, order.spread, like=like)
            fixed = self._fixed(rows, order, at)
            if not self._epoch(ids, lane, fixed, order, at, tick, pause):
                return False
            if epoch + 1 < self.epochs:
                lane.epoch, lane.step = epoch + 1, 0
        if self.algorithm.control_variates:
            control.end_round(lane.part, self.state.steps[rows])
        means = None
        if self.algorithm.upload == "mean_features":
            means = self._mean_features(ids, lane.part, fixed, order)
        lane.part.drop("round")
        self.state.put(rows, lane.part)
        work.finish(lane, lane.totals.readings(lane.part, self.algorithm), means)
        return True

    def _fixed(self, rows: Tensor, order: Order, at: Progress) -> Lane:
        """A lane's label counts, and its anchors: the same for all, or each client's own path.

        While a lane is under way, the group's state is still that of the round's start.
        """
        start = self.state.params["prototypes"][rows]
        counts = self.label_counts[rows].to(start.device)
        anchors, name = order.targets.anchors, self.algorithm.anchor
        if name is not None:
            anchors = ANCHORS.get(name).target(anchors, start, at.local)
        return Lane(counts, anchors.expand(len(rows), *order.targets.anchors.shape))

    def _epoch(
        self,
        ids: list[int],
        lane: LaneRound,
        fixed: Lane,
        order: Order,
        at: Progress,
        tick: Ticker,
        pause: Callable[[], bool],
    ) -> bool:
        """What is left of one local epoch of a lane; False if it paused before the end."""
        sizes, learner = [self.data.trained(k) for k in ids], self.algorithm.rule.learner
        horizon = learner.horizon if isinstance(learner, Hypergradient) else 0
        epoch, batches = lane.epoch, self.data.epoch(ids, order.round, lane.epoch, lane.step)
        for number, batch in enumerate(batches, lane.step):
            if pause():
                return False
            held_out = None
            if horizon and number % horizon == 0:
                learn.begin_window(lane.part)
            if horizon and (number + 1) % horizon == 0:
                held_out = self.data.held_out(ids, order.round, epoch, number)
            lane.part, step = local_step(
                self.setup, lane.part, batch, fixed, order.targets, at, held_out
            )
            lane.totals = lane.totals if number else Totals()
            lane.totals.add(step, batch.active)
            lane.step = number + 1
            rows = batch.labels.shape[1]
            tick(sum(min(rows, max(0, n - number * rows)) for n in sizes))
        return True

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

    def _upload(self, rows: list[int], work: Within) -> Upload:
        prototypes = self.state.params["prototypes"] if work.means is None else work.means
        chosen = torch.tensor(rows, dtype=torch.int64)
        return Upload(
            torch.tensor([self.clients[i] for i in rows], dtype=torch.int64),
            prototypes[chosen],
            self.label_counts[chosen],
            work.table[chosen],
        )

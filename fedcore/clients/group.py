"""ClientGroup: the clients of one rank, and their part of a round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.batch import Batch, TrainData, sent
from fedcore.clients import control, learn
from fedcore.clients.features import mean_features
from fedcore.clients.launch import Eager, Launch, Teller
from fedcore.clients.layout import Layout, Tensors
from fedcore.clients.optim import Hyper
from fedcore.clients.order import Fold, Order, Ticker, Upload
from fedcore.clients.readings import Totals, readings, record_width
from fedcore.clients.room import Answer, Room, is_out_of_memory
from fedcore.clients.state import ClientState
from fedcore.clients.step import Lane, Setup
from fedcore.clients.store import Store, on_device
from fedcore.clients.within import DONE, TO_DO, LaneRound, Within
from fedcore.models.proto_head import ProtoHead
from fedcore.objective.anchors import ANCHORS
from fedcore.objective.learners import GradNorm, Hypergradient
from fedcore.schedule import Progress, progress


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
        channels_last: bool = False,
        keep_models: bool = True,
        store: Callable[[ClientState, torch.device], Store] = on_device,
        launch: Callable[[Setup, Teller], Launch] = Eager,
        width: int | None = None,  # of a lane; None = `lanes` are those
    ) -> None:
        self.lanes = [list(lane) for lane in lanes]
        self.width = width or max(map(len, self.lanes), default=1)
        self.clients = sorted(k for lane in self.lanes for k in lane)
        self._row = {client: i for i, client in enumerate(self.clients)}
        self.data, self.model, self.algorithm, self.hyper = data, model, algorithm, hyper
        self.setup = Setup(model, algorithm, hyper, autocast, width=self.width)
        self.rounds, self.epochs, self.room = rounds, epochs, Room(out_of_memory)
        # by way of `room`, whose list of notes is replaced when they are told
        self.launch = launch(self.setup, lambda words: self.room.notes.append(words))
        self.device = model.prototypes.device
        counts = self._stack([data.label_counts(k) for k in self.clients])
        one = ClientState.start(
            dict(model.named_parameters()),
            dict(model.named_buffers()),
            torch.zeros(1, 2, dtype=model.prototypes.dtype, device=self.device),
            channels_last,
        )
        self._first, self.keeps_models = one, keep_models  # the start of every client
        self.store = store(self._at_start(one, counts), self.device)
        self.label_counts = counts.to(self.device)  # [K, C]
        self.within: Within | None = None  # of the round that is under way
        self.fold: Fold | None = None  # of its models, if they are averaged
        self._upcoming: list[int] = []  # rows of the next lane
        self._start: tuple[int, ClientState] | None = None  # of which round, and what it gave

    def _stack(self, counts: list[Tensor]) -> Tensor:
        classes = self.model.prototypes.shape[0]
        return torch.stack(counts) if counts else torch.zeros(0, classes, dtype=torch.int64)

    def _at_start(self, one: ClientState, counts: Tensor) -> ClientState:
        """The clients before the first round: what is kept of each."""
        state = one.take(torch.zeros(1, dtype=torch.int64))
        if not self.keeps_models:
            state = state.without_model()
        if self.algorithm.control_variates:
            state.keep(control.OWN)
        if self.hyper.carry_momentum:
            state.forget_momentum()
        if isinstance(self.algorithm.rule.learner, GradNorm):
            state.kept[learn.FIRST] = torch.zeros_like(state.log_var)
        state = state.repeated(len(counts))
        state.log_var = self.algorithm.rule.first_log_var(counts).to(state.log_var)
        return state

    @property
    def layout(self) -> Layout:
        """How the parameters of a client lie in its row."""
        return self._first.layout

    @property
    def state(self) -> ClientState:
        """All clients of this rank, at rest."""
        return self.store.state

    def train(self, order: Order, tick: Ticker = lambda samples: None) -> Upload:
        """This rank's upload after all local epochs of the round.

        tick: told the number of samples after each step.
        """
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
        is done so far. The next call goes on from there. Raises `ConfigError` for a client that
        does not fit into memory, unless clients.out_of_memory has another answer.
        """
        if self.within is None:
            self.within = self.nothing_done()
        work = self.within
        queue = self._queue(work, order)
        while rows := self._next_rows(work, queue):
            try:
                if not self._go_on(work, rows, queue, order, tick, pause):
                    return False
                continue
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                why = str(error)
            # outside of the handler: the error holds on to the tensors of the step
            self.launch.forget()
            beside = self.store.let_go()
            self.room.make(work, rows, [self.clients[i] for i in rows], why, beside=beside)
            queue = self._queue(work, order)
        return True

    @property
    def has_begun(self) -> bool:
        """Whether a client has trained in the round that is under way."""
        work = self.within
        return work is not None and (bool(work.done.any()) or any(x.has_begun for x in work.lanes))

    def finish(self, order: Order) -> Upload:
        """This rank's upload, once all of the round is done."""
        work, self.within, self._start = self.within, None, None
        assert work is not None, "advance comes first"
        rows = (work.done == DONE).nonzero().flatten()
        here = sent(rows, self.device)
        self.store.settle()
        uploads = work.uploads

        def prototypes(places: Tensor) -> Tensor:
            if uploads is None:
                return self.store.prototypes(rows[places])
            return uploads[sent(rows[places], uploads.device)]

        return Upload(
            torch.tensor(self.clients, dtype=torch.int64)[rows],
            prototypes,
            self.label_counts[here],
            readings(work.table[here], self.algorithm),
        )

    def nothing_done(self) -> Within:
        """The work of a round in which no client has trained."""
        clients, like = len(self.clients), self.model.prototypes
        width = record_width(len(self.algorithm.terms))
        table = like.new_zeros(clients, width, dtype=torch.float64)
        uploads = None
        if self.algorithm.upload == "mean_features" or not self.keeps_models:
            uploads = like.detach().new_zeros(clients, *like.shape)
        return Within(torch.full((clients,), TO_DO), table, uploads)

    def go_on_from(self, work: Tensors, under_way: Sequence[int], lanes: Tensors) -> None:
        """Be in the middle of a round, as `Within.tensors` and `Within.under_way` left it.

        work: each [K, ...], rows of `clients`; under_way: ids [k] of the clients in `lanes`, each
        [k, ...], on whichever ranks they were. The state is filled already.
        """
        self.within = self.nothing_done()
        self.within.fill(work)
        self.within.take(self.clients, under_way, lanes, self._first)

    def models(self, clients: Collection[int]) -> Iterator[tuple[list[int], Tensors]]:
        """Models of this rank's clients among `clients`, lane by lane, in a fixed order.

        Yields ids [k], and parameters and buffers by name, each [k, ...] on the device.
        """
        for ids, part in self.parts(clients):
            yield ids, part.model_tensors()

    def parts(self, clients: Collection[int]) -> Iterator[tuple[list[int], ClientState]]:
        """The same clients, lane by lane, with everything that is kept of them."""
        lanes, width = list[list[int]](), self.room.width or self.width
        for lane in self.lanes:
            ids = [k for k in lane if k in clients]
            lanes += [ids[i : i + width] for i in range(0, len(ids), width)]
        rows = [torch.tensor([self._row[k] for k in ids]) for ids in lanes]
        for number, ids in enumerate(lanes):
            part = self.store.take(rows[number])
            if number + 1 < len(lanes):
                self.store.ahead(rows[number + 1])
            yield ids, part

    def _queue(self, work: Within, order: Order) -> deque[list[int]]:
        """Rows of the lanes that no one has begun, the longest client of each first.

        Lanes are the same on any number of ranks.
        """
        taken = {row for lane in work.lanes for row in lane.rows}
        done, queue = work.done.tolist(), deque[list[int]]()
        for lane in self.lanes:
            rows = [self._row[k] for k in lane if k in order.participants]
            left = [row for row in rows if done[row] == TO_DO and row not in taken]
            left.sort(key=lambda row: -self.data.steps(self.clients[row]))
            queue += [left[i : i + self.width] for i in range(0, len(left), self.width)]
        return queue

    def _next_rows(self, work: Within, queue: deque[list[int]]) -> list[int]:
        """Of a lane that is under way, else of the next of the queue; none if all is done."""
        if work.lanes:
            return work.lanes[0].rows
        return self._popped(queue) if queue else []

    def _lane(
        self, work: Within, rows: list[int], queue: deque[list[int]], order: Order
    ) -> LaneRound:
        """The lane of these rows, from where it is; the one after it is announced."""
        if work.lanes:
            return work.lanes[0]
        own = self.algorithm.mode != "averaged"  # they begin from their own models
        part = self.store.take(torch.tensor(rows), own)
        self._upcoming = queue[0][: self.room.width] if queue else []
        if self._upcoming and not self.room.alone:
            self.store.ahead(torch.tensor(self._upcoming), own)
        work.lanes.append(LaneRound(rows, self._begun(part, order)))
        return work.lanes[0]

    def _popped(self, queue: deque[list[int]]) -> list[int]:
        """The next lane, which fits into memory; what does not is left in the queue."""
        rows = queue.popleft()
        if rest := rows[self.room.width or len(rows) :]:
            queue.appendleft(rest)
        return rows[: self.room.width]

    def _announce(self, lane: LaneRound, order: Order) -> None:
        """The epoch after this one, of the same lane or of the next: it may be read meanwhile."""
        if lane.epoch + 1 < self.epochs:
            self.data.ahead(self._ids(lane), order.round, lane.epoch + 1)
        elif self._upcoming:
            self.data.ahead([self.clients[i] for i in self._upcoming], order.round, 0)

    def _begun(self, part: ClientState, order: Order) -> ClientState:
        """The clients of a lane at the start of the round."""
        start = self.start_of(order)
        if start is not None:
            part.take_model(start)
        if self.algorithm.control_variates:
            control.begin_round(part)
        return part

    def start_of(self, order: Order) -> ClientState | None:
        """The one model [1, ...] that all start the round from; None if each has its own."""
        if self.algorithm.mode != "averaged":
            return None
        if self._start is None or self._start[0] != order.round:
            start = self._first
            if order.weights is not None:
                start = start.take(torch.zeros(1, dtype=torch.int64))
                start.load(order.weights)
            self._start = (order.round, start)
        return self._start[1]

    def _go_on(
        self,
        work: Within,
        rows: list[int],
        queue: deque[list[int]],
        order: Order,
        tick: Ticker,
        pause: Callable[[], bool],
    ) -> bool:
        """Train a lane until the round is over for it; False if it paused before that."""
        lane = self._lane(work, rows, queue, order)  # not in `advance`, which would hold on to it
        lane.part = self.launch.adopt(lane.part)
        for epoch in range(lane.epoch, self.epochs):
            like = self.model.prototypes
            at = progress(order.round, self.rounds, epoch, self.epochs, order.spread, like=like)
            fixed = self._fixed(lane.rows, order, at)
            if not self._epoch(lane, fixed, order, at, tick, pause):
                return False
            if epoch + 1 < self.epochs:
                lane.epoch, lane.step = epoch + 1, 0
        lane.part = self.launch.release(lane.part)
        self._end(work, lane, fixed, order)
        return True

    def _end(self, work: Within, lane: LaneRound, fixed: Lane, order: Order) -> None:
        """The round is over for a lane: its upload, its models, its readings, and its rest."""
        ids, rows, part = self._ids(lane), torch.tensor(lane.rows), lane.part
        if self.algorithm.control_variates:
            steps = torch.tensor([self.epochs * self.data.steps(k) for k in ids])
            control.end_round(part, sent(steps, self.device))
        upload = part.params["prototypes"]
        if self.algorithm.upload == "mean_features":
            views = self.data.epoch(ids, order.round, self.epochs)  # of one more epoch
            upload = mean_features(self.setup, part, fixed, order.targets, views)
        part.drop("round")
        limits = None if self.fold is None else self.fold.limits
        record = lane.totals.record(part, limits)
        if self.fold is not None:
            self.fold.add(ids, part)
        # from here on nothing of size is made on the device: what does not fit did not happen
        work.finish(lane, record, upload)
        self.store.put(rows, part)

    def _ids(self, lane: LaneRound) -> list[int]:
        return [self.clients[i] for i in lane.rows]

    def _fixed(self, rows: list[int], order: Order, at: Progress) -> Lane:
        """A lane's label counts, and its anchors: the same for all, or each client's own path."""
        counts = self.label_counts[sent(torch.tensor(rows), self.device)]
        anchors, name = order.targets.anchors, self.algorithm.anchor
        if name is not None:
            anchors = ANCHORS.get(name).target(
                anchors, self._first_prototypes(rows, order), at.local
            )
        return Lane(counts, anchors.expand(len(rows), *order.targets.anchors.shape))

    def _first_prototypes(self, rows: list[int], order: Order) -> Tensor:
        """Prototypes [k, C, D] at the start of the round."""
        start = self.start_of(order)
        if start is not None:
            one = start.params["prototypes"]
            return one.expand(len(rows), *one.shape[1:])
        return self.store.prototypes(torch.tensor(rows))

    def _epoch(
        self,
        lane: LaneRound,
        fixed: Lane,
        order: Order,
        at: Progress,
        tick: Ticker,
        pause: Callable[[], bool],
    ) -> bool:
        """What is left of one local epoch of a lane; False if it paused before the end."""
        ids, first = self._ids(lane), lane.step
        sizes = [self.data.trained(k) for k in ids]
        for number, batch in enumerate(self.data.epoch(ids, order.round, lane.epoch, first), first):
            if pause():
                return False
            if number == first:
                self._announce(lane, order)
            working, rows = batch.labels.shape  # the others' epoch is over
            held_out = self._held_out(lane, ids[:working], order)
            part, own = lane.part.first(working), fixed.first(working)
            step = self.launch(part, batch, own, order.targets, at, held_out)
            lane.totals = lane.totals if number else Totals()
            lane.totals.add(step)
            lane.step = number + 1
            tick(sum(min(rows, max(0, n - number * rows)) for n in sizes[:working]))
        return True

    def _held_out(self, lane: LaneRound, ids: list[int], order: Order) -> Batch | None:
        """What a hypergradient looks at after the lane's next step, if that ends a window."""
        learner = self.algorithm.rule.learner
        if not isinstance(learner, Hypergradient):
            return None
        if lane.step % learner.horizon == 0:
            learn.begin_window(lane.part)
        if (lane.step + 1) % learner.horizon:
            return None
        return self.data.held_out(ids, order.round, lane.epoch, lane.step)

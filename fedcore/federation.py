"""Federation: the round loop. Every rank runs it; two records travel, Order and Upload."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedcore import round_events
from fedcore.batch import held_out_of
from fedcore.checkpoint import Checkpoint
from fedcore.checkpoint_writer import Checkpoints, Contents, Rows
from fedcore.clients.group import ClientGroup
from fedcore.clients.layout import Tensors
from fedcore.clients.order import Order, Upload
from fedcore.config import RunConfig
from fedcore.errors import Stopped
from fedcore.evaluate import Evaluator
from fedcore.models_of import ControlsOf, ModelsOf, digest
from fedcore.saving import Saving
from fedcore.schedule import progress
from fedcore.server import consensus
from fedcore.server.average import ModelFold, average_models
from fedcore.server.collective import Collected, ServerCollective
from fedcore.server.comm import Comm, agree
from fedcore.server.fusion import FUSIONS
from fedcore.server.pause import Pauses, Wish
from fedcore.tally import Evaluation
from fedcore.telemetry.events import ClientEvent, ResumeEvent, RoundEvent, WarningEvent
from fedcore.telemetry.telemetry import Telemetry


@dataclass
class Outcome:
    """What summary.json reports; the same on every rank, and up to date after each round."""

    rounds: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)
    test_accuracy: float | None = None
    best_test_accuracy: float | None = None
    lambda_effective: dict[str, float] = field(default_factory=dict)
    prototypes_sha256: str | None = None
    parameters_sha256: str | None = None
    samples: int = 0
    bytes_communicated: int = 0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dict(vars(self))


@dataclass
class Spent:
    """What the round under way has cost this rank, in all attempts at it."""

    phases: dict[str, float] = field(default_factory=dict)  # seconds
    traffic: int = 0  # bytes that it handed in


class Federation:
    """One federated run on this rank's clients, together with the other ranks."""

    def __init__(
        self,
        config: RunConfig,
        comm: Comm,
        group: ClientGroup,
        server: ServerCollective,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        telemetry: Telemetry,
        *,
        samples: Sequence[int],  # of every client of the run, in id order
        pauses: Pauses,
        identity: dict[str, Any],  # stored with each checkpoint, to know the run again
    ) -> None:
        self.config, self.comm, self.group, self.server = config, comm, group, server
        self.evaluator, self.telemetry, self.pauses = evaluator, telemetry, pauses
        self.saving = Saving(checkpoints, telemetry, pauses, self._warn)
        self.samples, self.identity = list(samples), identity
        share = group.algorithm.held_out
        self.trained = [n - held_out_of(n, share) for n in self.samples]  # in one local epoch
        self.outcome = Outcome()
        self._spent = Spent()
        self._layout = group.layout
        self._fold: ModelFold | None = None  # of the models of the round under way
        self._folded: Tensor | None = None  # by lanes that were through before a stop
        self._pauses_taken = 0  # in the round that is under way
        self._trained: set[int] = set()
        self._variance: float | None = None
        self._evaluated = False  # the newest round
        self._told = False  # that lambda has exploded
        comm.watcher = self._watch

    def run(self) -> Outcome:
        """All remaining rounds. Raises `Stopped` after a checkpoint when asked to stop."""
        with self.saving:
            for round in range(self.outcome.rounds, self.config.rounds):
                self._round(round)
                if (round + 1) % self.config.checkpoint.every == 0 and not self._last(round):
                    with self._phase("checkpoint"):
                        self.saving.start(self._contents, round + 1)
                self.saving.settle(0)
            with self._phase("checkpoint"):
                self.saving.finish(self._contents, self.config.rounds)  # else its result is lost
            self._sign()
        return self.outcome

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint: the run then equals one that was never stopped."""
        checkpoint.load_into(self.group.state, self.group.clients)
        facts, state = checkpoint.facts, self.server.state
        state.fill(checkpoint.shared("server"), self._layout, self.group.device)
        state.first_spread, state.prototype_std = facts["first_spread"], facts["prototype_std"]
        self.outcome, self._trained = Outcome(**facts["outcome"]), set(facts["trained"])
        if facts["within"]:
            self._resume_within(checkpoint, facts["within"])
        if checkpoint.folder.parent == self.saving.checkpoints.folder:
            self.saving.found(self.outcome.rounds, self._pauses_taken)
        self.telemetry.write([ResumeEvent(self.outcome.rounds, str(checkpoint.folder))])

    def _resume_within(self, checkpoint: Checkpoint, facts: dict[str, Any]) -> None:
        """The same for what is done of the round that was under way."""
        clients = self.group.clients
        self._pauses_taken, self._spent = facts["pauses"], Spent(**facts["spent"])
        mine = set(clients)
        under_way = [k for k in checkpoint.clients_in("lanes") if k in mine]
        lanes = checkpoint.own(under_way, "lanes")
        self.group.go_on_from(checkpoint.own(clients, "round"), under_way, lanes)
        folded = [k for k in checkpoint.clients_in("fold") if k in mine]
        self._folded = checkpoint.own(folded, "fold").get("total")

    def _round(self, round: int) -> None:
        with self._phase("order"):
            order = self.server.order(round)
        self.group.fold = self._fold = self._begin_fold(order)
        upload = self._train(order)
        with self._phase("collect"):
            got = self.server.collect(upload, order)
            took_part = frozenset(got.clients.tolist())
            self._trained |= took_part
            self._average(took_part)
        found = None
        if (round + 1) % self.config.evaluate.every == 0 or self._last(round):
            with self._phase("evaluate"):
                found = self._evaluate()
        self._account(took_part)
        self.outcome.rounds = round + 1  # and only now: a rank may be lost on the way
        if found is not None:
            self._take(found.accuracy)
        self._evaluated = found is not None
        self._report(round, order.spread, got, found.validation if found else {})
        self._spent, self._pauses_taken = Spent(), 0

    def _train(self, order: Order) -> Upload:
        """This rank's part of the round, with the pauses that all ranks make in it."""
        while True:
            done, error = False, None
            with self._timed("train"):
                try:
                    done = self.group.advance(order, self.telemetry.trained, self.pauses.wanted)
                except Exception as met:
                    error, self.pauses.alarm = met, True
            mine = Wish.GO_ON if done or error else self.pauses.wish()
            with self._timed("collect"):  # where the faster ranks wait
                facts = (error is not None, self.group.has_begun, bool(self.group.room.notes))
                wish, (failed, begun, noted) = self.pauses.agree(self.comm, mine, *facts)
            if failed:
                agree(self.comm, error)
            if noted:
                self._tell_notes()
            if wish is Wish.GO_ON and done:
                self.telemetry.phase("train", self._spent.phases["train"])
                return self.group.finish(order)
            self._pause(order.round, wish, begun)

    def _tell_notes(self) -> None:
        """Warn of what did not fit into any rank's memory. Collective."""
        notes, self.group.room.notes = self.group.room.notes, []
        for rank, said in enumerate(self.comm.gather_json(notes)):
            for words in said:
                self._warn(f"rank {rank}: {words}")

    def _pause(self, round: int, wish: Wish, begun: bool) -> None:
        """A checkpoint before the next step. Raises `Stopped` if that was the wish.

        begun: some client has trained in this round.
        """
        if begun:
            self._pauses_taken += 1
        if wish is Wish.SAVE:
            with self._timed("checkpoint"):
                self.saving.start(self._contents, round, self._pauses_taken)
        if wish is Wish.STOP:
            self.saving.finish(self._contents, round, self._pauses_taken)
            latest = str(self.saving.checkpoints.folder / "latest")
            raise Stopped(round, latest, within=begun)

    def _begin_fold(self, order: Order) -> ModelFold | None:
        """What adds up this round's models, with what was added before a stop; None if nothing."""
        start = self.group.start_of(order)
        if start is None or self.group.algorithm.fuse != "mean":
            return None
        fold = ModelFold(start, self._shares(order.participants))
        if self._folded is not None:
            fold.go_on_from(self._folded.sum(0))
            self._folded = None
        return fold

    def _average(self, clients: frozenset[int]) -> None:
        """What the server keeps of whole models, in the modes in which it does."""
        algorithm, state, fold = self.group.algorithm, self.server.state, self._fold
        if fold is not None:
            share = math.fsum(fold.shares[k] for k in clients)
            self.server.take(fold.models_mean(self.comm.sum(fold.total), share))
            self.group.fold = self._fold = None
        elif algorithm.mode == "averaged":
            self.server.take(self._fuse(clients))
        if algorithm.control_variates:  # c is the mean of all c_k, at every time
            controls = ControlsOf(self.group, self._shares(self.server.clients))
            like = {"control": state.control}
            state.control = average_models(self.comm, controls, like)["control"]

    def _fuse(self, clients: Collection[int]) -> Tensors:
        """One model of all of `clients`, as the algorithm says."""
        fuse, shares = FUSIONS.get(self.group.algorithm.fuse), self._shares(clients)
        return fuse(self.comm, self.group.model, ModelsOf(self.group, shares), shares)

    def _shares(self, clients: Collection[int]) -> dict[int, float]:
        total = sum(self.samples[k] for k in clients)
        return {k: self.samples[k] / total for k in clients}

    def _evaluate(self) -> Evaluation:
        """Accuracy of all clients that have trained so far."""
        averaged = self.server.state.weights or self._fuse(self._trained)
        found = self.evaluator(
            self.group, self._shares(self._trained), self.server.state.prototypes, averaged
        )
        self._variance = found.variance
        return found

    def _take(self, accuracy: dict[str, float]) -> None:
        """It is that of the finished round."""
        main = accuracy[self.group.algorithm.readout]
        self.outcome.accuracy, self.outcome.test_accuracy = accuracy, main
        self.outcome.best_test_accuracy = max(main, self.outcome.best_test_accuracy or 0.0)

    def _report(
        self, round: int, spread: float, got: Collected, validation: Mapping[int, float]
    ) -> None:
        algorithm, clients = self.group.algorithm, self.config.clients
        epochs, rounds = clients.local_epochs, self.config.rounds
        at = progress(round, rounds, epochs - 1, epochs, spread, like=self.server.anchors)
        events = round_events.of_clients(algorithm, got, self.samples, validation, round, at)
        exploded = round_events.exploded(algorithm.rule, events)
        self._tell_explosion(exploded)
        used = torch.tensor([e.lambda_effective for e in events], dtype=torch.float64)
        self.outcome.lambda_effective = {
            "min": float(used.min()),
            "median": float(used.quantile(0.5)),
            "max": float(used.max()),
        }
        trained = sum(self.trained[k] for k in got.clients.tolist()) * epochs
        evaluated = "evaluate" in self._spent.phases
        summary = RoundEvent(
            round=round,
            rounds=self.config.rounds,
            progress=(round + 1) / self.config.rounds,
            annealing_factor=events[0].annealing_factor,
            accuracy=dict(self.outcome.accuracy) if evaluated else {},
            prototype_std=self.server.state.prototype_std,
            unit_prototype_std=got.between_unit.value(),
            global_prototype_std=consensus.global_prototype_std(self.server.state.prototypes),
            model_variance=self._variance if evaluated else None,
            lambda_exploded=len(exploded),
            seconds=dict(self._spent.phases),
            samples_per_second=trained
            / max(self._spent.phases["train"] + self._spent.phases["collect"], 1e-9),
            bytes_communicated=self._spent.traffic * self.comm.size,
        )
        self.telemetry.write([*events, summary], own=set(self.group.clients))

    def _tell_explosion(self, exploded: Sequence[ClientEvent]) -> None:
        """A warning when the first lambda is above its limit, and not every round after."""
        if exploded and not self._told:
            self._warn(round_events.explosion(self.group.algorithm.rule, exploded))
            self._told = True

    def _account(self, clients: frozenset[int]) -> None:
        """Add this round to the totals of the run."""
        out, spent = self.outcome, self._spent
        out.samples += sum(self.trained[k] for k in clients) * self.config.clients.local_epochs
        out.bytes_communicated += spent.traffic * self.comm.size
        for phase, seconds in spent.phases.items():
            out.wall_seconds += seconds
            out.phase_seconds[phase] = out.phase_seconds.get(phase, 0.0) + seconds

    def _contents(self) -> Contents:
        """What a checkpoint keeps of this rank: between two rounds, or in the middle of one."""
        state, group = self.server.state, self.group
        tensors = {**state.tensors(self._layout), "anchors": self.server.anchors}
        own = {"clients": Rows(group.clients, group.state.tensors())}
        within = None
        if group.within is not None and self._pauses_taken:
            within = {"pauses": self._pauses_taken, "spent": vars(self._spent)}
            own["round"] = Rows(group.clients, group.within.tensors())
            own["lanes"] = Rows(*group.within.under_way(group.clients))
            if self._fold is not None and group.clients:  # a sum of this rank's, named by a client
                own["fold"] = Rows(group.clients[:1], {"total": self._fold.total[None]})
        facts = {
            "width": self.config.clients.width,
            "config": self.identity,
            "model": {
                "name": self.config.model.name,
                "shape": list(self.evaluator.test.shape),
                "classes": state.prototypes.shape[0],
                "feature_dim": state.prototypes.shape[1],
            },
            "first_spread": state.first_spread,
            "prototype_std": state.prototype_std,
            "outcome": self.outcome.facts(),
            "trained": sorted(self._trained),
            "round": self.outcome.rounds,
            "within": within,
        }
        score = None if within or not self._evaluated else self.outcome.test_accuracy
        shared = {"server": tensors} if self.comm.rank == 0 else {}
        return Contents(shared=shared, facts=facts, own=own, score=score)

    def _warn(self, words: str) -> None:
        self.telemetry.write([WarningEvent(self.outcome.rounds, words)])

    def _sign(self) -> None:
        """SHA-256 of prototypes and parameters in client-id order: equal on any number of ranks."""
        out, names = self.outcome, dict(self.group.model.state_dict())
        mine = {
            client: (
                digest([tensors["prototypes"][row]] if tensors else []),
                digest([v[row] for v in tensors.values()]),
            )
            for clients, tensors in self.group.models(set(self.group.clients))
            for row, client in enumerate(clients)
        }
        everyone = {int(k): v for part in self.comm.gather_json(mine) for k, v in part.items()}
        server = self.server.state
        prototypes = [digest([server.prototypes])] + [everyone[k][0] for k in sorted(everyone)]
        # in the model's order: a checkpoint may give them back in another one
        held = server.weights or {}
        parameters = [digest([held[k] for k in names if k in held])]
        parameters += [everyone[k][1] for k in sorted(everyone)]
        out.prototypes_sha256 = hashlib.sha256("".join(prototypes).encode()).hexdigest()
        out.parameters_sha256 = hashlib.sha256("".join(parameters).encode()).hexdigest()

    def _last(self, round: int) -> bool:
        return round + 1 == self.config.rounds

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Time spent inside counts as that phase of the round."""
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self._spent.phases[name] = self._spent.phases.get(name, 0.0) + seconds

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """The same, and the phase is then over."""
        with self._timed(name):
            yield
        self.telemetry.phase(name, self._spent.phases[name])

    def _watch(self, operation: str, size: int, seconds: float) -> None:
        self._spent.traffic += size
        self.telemetry.traffic(operation, size, seconds)

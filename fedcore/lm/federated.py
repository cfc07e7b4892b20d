"""LMFederation: clients train a language model on text of their own, the server averages.

Every rank is the server: all hold the same global weights, bit for bit, on any number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedcore.checkpoint import Checkpoint
from fedcore.lm.curves import Curves
from fedcore.lm.ledger import Ledger, LMOutcome
from fedcore.lm.measure import sizes
from fedcore.lm.monitors import Measured, Monitor
from fedcore.lm.outer import Outer
from fedcore.lm.turns import Turns
from fedcore.server.average import average_models
from fedcore.server.participants import participants
from fedcore.telemetry.events import LMResumeEvent

LEFT = "left"  # of the initialisation: a number that goes through the rounds as a weight does


class LMFederation:
    """One language model trained by clients, which the ranks share out. Steps are a client's."""

    def __init__(
        self,
        turns: Turns,
        clients: Sequence[int],  # of all ranks, that have text
        monitor: Monitor,
        ledger: Ledger,
    ) -> None:
        assert ledger.lm.federated is not None
        self.turns, self.clients, self.monitor = turns, list(clients), monitor
        self.ledger, self.lm, self.comm = ledger, ledger.lm, ledger.comm
        self.engine, self.rates = turns.engine, turns.rates
        self.settings = ledger.lm.federated
        self.outcome: LMOutcome = ledger.outcome
        self.outcome.parameters = sum(self.rates.numel.values())
        self.server = Outer(turns.weights(), {})
        self.left = Outer({LEFT: _scalar(1.0)}, {})
        self.decayed = [n for g in self.rates.groups if g["name"] != "no_decay" for n in g["names"]]
        self._seen = dict.fromkeys(self.clients, 0)  # steps each has trained
        self._done, self._began = 0, 0.0
        self.curves = Curves(self.comm, -(-len(self.clients) // self.comm.size))

    def run(self) -> LMOutcome:
        """All remaining rounds. Raises `Stopped` after a checkpoint when asked to stop."""
        if self._done == 0:
            self._read(0, None)
        self._began = time.monotonic()
        while self._done < self.lm.steps:
            if self.ledger.anyone_asked():
                self._line(None)
                self._save(last=True)
                raise self.ledger.stopped(self._done)
            self._round()
        return self.outcome

    def _round(self) -> None:
        """The next round, and what is due after it."""
        first, before = self._done, self.server.weights
        length = self.settings.local_steps
        steps = range(first, min(first + length, self.lm.steps))
        seed, share = self.ledger.config.seed, self.settings.per_round
        chosen = participants(self.clients, share, seed, first // length)
        self._train(chosen, steps)
        self._done = steps.stop
        if self._due(self.lm.monitor.every, first):
            self._line(list(before.values()))
        elif self._due(self.lm.log_every, first):
            self._line(None)
        self._after(first)

    def _train(self, chosen: Sequence[int], steps: range) -> None:
        """Let these clients train and move the global weights. Collective."""
        weights = self.server.weights
        own = [k for k in chosen if k in self.turns.data]
        done = [self.turns.train(k, weights, steps, self._seen[k]) for k in own]
        self.curves.add(done, steps, lambda step: self.rates.at(step)[0])
        changes = [(turn.change, 1 / len(chosen)) for turn in done]
        mean = average_models(self.comm, changes, weights)
        gradient = {name: -change for name, change in mean.items()}
        self.server = self.server.step(self.settings.outer, gradient, self.decayed)
        self.turns.place(self.server.weights)
        self._count(chosen, steps)
        trained = len(own) * len(steps) * self.lm.batch_size * self.lm.model.context
        self.ledger.telemetry.tokens(trained)

    def _count(self, chosen: Sequence[int], steps: range) -> None:
        """Whose steps these were, and how much they left of the initialisation."""
        for client in chosen:
            self._seen[client] += len(steps)
        left = kept = self.left.weights[LEFT]
        for step in steps:
            eta, lam = self.rates.at(step)
            kept = kept * (1 - eta * lam)
        self.left = self.left.step(self.settings.outer, {LEFT: left - kept}, (LEFT,))

    def _due(self, every: int, since: int) -> bool:
        return self.ledger.is_due(every, self._done, since)

    def _after(self, since: int) -> None:
        """Evaluation and checkpoint, at the first end of a round at which they are due."""
        config = self.ledger.config
        evaluates = self._due(config.evaluate.every, since)
        saves = self._due(config.checkpoint.every, since)
        if not (evaluates or saves):
            return
        self._line(None)  # a checkpoint knows of no open window
        if evaluates:
            self.ledger.evaluate(self.engine, self._done)
        if saves:
            self._save(last=self._done == self.lm.steps)
        self._began = time.monotonic()

    def _line(self, before: Sequence[Tensor] | None) -> None:
        """One line about the rounds since the last one, and one for each client of the newest.

        before: global weights before the newest round, if the weights are to be measured.
        Collective.
        """
        if not self.curves:
            return
        means = self.curves.close()
        tokens = means.batches * self.lm.batch_size * self.lm.model.context
        seconds = self.ledger.pace((time.monotonic() - self._began) / means.steps) * means.steps
        weights = None if before is None else self._read(self._done, before)
        rates = self.rates.at(self._done - 1)
        self.ledger.line(self._done, (means.loss, means.norm), rates, tokens, seconds, weights)
        self.ledger.telemetry.write(self.curves.newest, self.turns.data)
        self._began = time.monotonic()

    def _read(self, done: int, before: Sequence[Tensor] | None) -> dict[str, Any]:
        """What the monitor makes of the global weights, as fields of a line.

        The update ratio is of a round's change.
        """
        numel = self.rates.numel
        found = sizes(self.engine, self.comm, [*numel.values()], before)
        rms = dict(zip(numel, found.rms, strict=True))
        change = dict(zip(numel, found.change, strict=True))
        reading = self.monitor.read(Measured(done, rms, change, numel))
        self.ledger.warn(done, reading.alerts)
        self.rates.control(done, rms)
        return reading.fields() | {"initialisation_left": float(self.left.weights[LEFT])}

    def _save(self, *, last: bool) -> None:
        """A checkpoint of the state between two rounds, unless there is one. Collective."""
        done = self._done
        if self.ledger.saved == done:
            return
        with self.ledger.phase("checkpoint"):
            memory = self.turns.memory()
        if done == self.lm.steps:
            self.ledger.sign(self.server.weights)
        facts = {
            "seen": [self._seen[k] for k in self.clients],
            "left": [{k: v.item() for k, v in part.items()} for part in self.left],
            "monitor": self.monitor.state,
            "controller": self.rates.state(),
        }
        shared = {"model": self.server.weights, "outer": self.server.momentum}
        self.ledger.save(done, shared, facts, [*self.turns.data], memory, last=last)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint: on any number of ranks the run equals one never stopped."""
        facts = checkpoint.facts
        weights, momentum = self._home(checkpoint.shared("model")), checkpoint.shared("outer")
        self.server = Outer(weights, self._home(momentum))
        if self.turns.carry:
            self.turns.load(checkpoint.own([*self.turns.data]), weights)
        self.turns.place(weights)
        self.left = Outer(*({k: _scalar(v) for k, v in part.items()} for part in facts["left"]))
        self._seen = dict(zip(self.clients, facts["seen"], strict=True))
        self.monitor.state = facts["monitor"]
        self.rates.load(facts["controller"])
        vars(self.outcome).update(facts["outcome"])
        self._done = self.outcome.steps
        if checkpoint.folder.parent == self.ledger.checkpoints.folder:
            self.ledger.saved = self._done
        self.ledger.telemetry.write([LMResumeEvent(self._done, str(checkpoint.folder))])

    def _home(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In the order, on the device and in the type of the weights; none stays none."""
        like = self.server.weights
        return {name: tensors[name].to(like[name]) for name in like if tensors}


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)

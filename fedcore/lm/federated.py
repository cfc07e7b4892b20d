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
from fedcore.checkpoint_writer import Contents, Rows
from fedcore.lm.curves import Curves
from fedcore.lm.engine import shares
from fedcore.lm.ledger import Ledger, LMOutcome
from fedcore.lm.measure import sizes
from fedcore.lm.monitors import Measured, Monitor
from fedcore.lm.outer import Outer
from fedcore.lm.turns import Turn, Turns
from fedcore.server.average import average_models
from fedcore.server.participants import participants
from fedcore.server.pause import Wish
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
        self._turns: dict[int, Turn] = {}  # done in the round that is under way
        self._pauses = 0  # taken in it
        self.curves = Curves(self.comm, -(-len(self.clients) // self.comm.size))

    def run(self) -> LMOutcome:
        """All remaining rounds. Raises `Stopped` after a checkpoint when asked to stop."""
        with self.ledger.saving:
            if self._done == 0:
                self._read(0, None)
            self._began = time.monotonic()
            while self._done < self.lm.steps:
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
        self._done, self._pauses = steps.stop, 0
        if self._due(self.lm.monitor.every, first):
            self._line(list(before.values()))
        elif self._due(self.lm.log_every, first):
            self._line(None)
        self._after(first)

    def _train(self, chosen: Sequence[int], steps: range) -> None:
        """Let these clients train and move the global weights. Collective."""
        weights = self.server.weights
        done = self._turns_of([k for k in chosen if k in self.turns.data], steps)
        self.curves.add(done, steps, lambda step: self.rates.at(step)[0])
        changes = [(turn.change, 1 / len(chosen)) for turn in done]
        mean = average_models(self.comm, changes, weights)
        gradient = {name: -change for name, change in mean.items()}
        self.server = self.server.step(self.settings.outer, gradient, self.decayed)
        self.turns.place(self.server.weights)
        self._count(chosen, steps)
        trained = len(done) * len(steps) * self.lm.batch_size * self.lm.model.context
        self.ledger.telemetry.tokens(trained)

    def _turns_of(self, own: Sequence[int], steps: range) -> list[Turn]:
        """These clients' turns, with the pauses that all ranks make in them."""
        pauses = self.ledger.pauses
        while True:
            done = self._advance(own, steps)
            begun = bool(self._turns) or self.turns.has_begun
            mine = Wish.GO_ON if done else pauses.wish()
            wish, (begun,) = pauses.agree(self.comm, mine, begun)
            if wish is Wish.GO_ON and done:
                turns, self._turns = self._turns, {}
                return [turns[k] for k in own]
            if wish is not Wish.GO_ON:
                self._pause(wish, begun, len(steps))

    def _advance(self, own: Sequence[int], steps: range) -> bool:
        """Go on with the turns; False if one paused."""
        for client in own:
            if client not in self._turns:
                seen, wanted = self._seen[client], self.ledger.pauses.wanted
                turn = self.turns.train(client, self.server.weights, steps, seen, wanted)
                if turn is None:
                    return False
                self._turns[client] = turn
        return True

    def _pause(self, wish: Wish, begun: bool, length: int) -> None:
        """A checkpoint before the next step. Raises `Stopped` if that was the wish.

        begun: some client has trained in this round, of so many steps.
        """
        self._line(None)  # a checkpoint knows of no open window
        self._pauses += begun
        self._save(last=wish is Wish.STOP, length=length if begun else 0)
        if wish is Wish.STOP:
            raise self.ledger.stopped(self._done, within=begun)

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

    def _save(self, *, last: bool, length: int = 0) -> None:
        """A checkpoint, unless there is one. Collective.

        length: steps of the round that is under way; 0 = the state is between two rounds.
        """
        done = self._done
        if self.ledger.saving.has(done, self._pauses):
            return
        if done == self.lm.steps:
            self.ledger.sign(self.server.weights)
        with self.ledger.phase("checkpoint"):
            contents = self._contents(length)
            self.ledger.save(done, contents, last=last, part=self._pauses)

    def _contents(self, length: int) -> Contents:
        facts: dict[str, Any] = {
            "seen": [self._seen[k] for k in self.clients],
            "left": [{k: v.item() for k, v in part.items()} for part in self.left],
            "monitor": self.monitor.state,
            "controller": self.rates.state(),
            "within": {"pauses": self._pauses} if length else None,
        }
        own = {"clients": Rows(*self.turns.memory())}
        if length:
            own["turns"] = _stacked(self._turns)
            own["halves"] = Rows(*self.turns.halves(length))
        kept = {"model": self.server.weights, "outer": self.server.momentum}
        shared = {stem: self._share(tensors) for stem, tensors in kept.items()}
        return Contents(shared=shared, facts=facts, own=own)

    def _share(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What this rank stores of what all ranks have."""
        names = list(tensors)
        chosen = shares([v.numel() for v in tensors.values()], self.comm.size)[self.comm.rank]
        return {names[i]: tensors[names[i]] for i in chosen}

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint: on any number of ranks the run equals one never stopped."""
        facts = checkpoint.facts
        weights = self._home(checkpoint.shared("model"))
        momentum = checkpoint.shared("outer", optional=True)
        self.server = Outer(weights, self._home(momentum))
        trained = [k for k in checkpoint.clients_in("clients") if k in self.turns.data]
        self.turns.load(trained, checkpoint.own(trained), weights)
        self.turns.place(weights)
        self.left = Outer(*({k: _scalar(v) for k, v in part.items()} for part in facts["left"]))
        self._seen = dict(zip(self.clients, facts["seen"], strict=True))
        self.monitor.state = facts["monitor"]
        self.rates.load(facts["controller"])
        vars(self.outcome).update(facts["outcome"])
        self._done = self.outcome.steps
        if facts["within"]:
            self._pauses = facts["within"]["pauses"]
            self._resume_within(checkpoint)
        if checkpoint.folder.parent == self.ledger.saving.checkpoints.folder:
            self.ledger.saving.found(self._done, self._pauses)
        self.ledger.telemetry.write([LMResumeEvent(self._done, str(checkpoint.folder))])

    def _resume_within(self, checkpoint: Checkpoint) -> None:
        """The same for the turns that are over and those that paused."""

        def mine(kind: str) -> list[int]:
            return [k for k in checkpoint.clients_in(kind) if k in self.turns.data]

        done, paused = mine("turns"), mine("halves")
        self._turns = _unstacked(done, checkpoint.own(done, "turns"), self.server.weights)
        halves = checkpoint.own(paused, "halves")
        self.turns.load_halves(paused, halves, self.server.weights)
        self.turns.place(self.server.weights)

    def _home(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In the order, on the device and in the type of the weights; none stays none."""
        like = self.server.weights
        return {name: tensors[name].to(like[name]) for name in like if tensors}


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


CHANGE = "change/"


def _stacked(turns: Mapping[int, Turn]) -> Rows:
    """Turns for a checkpoint, each tensor [k, ...]."""
    rows = [
        {CHANGE + k: v for k, v in turn.change.items()}
        | {"losses": turn.losses, "norms": turn.norms, "drift": turn.drift}
        for turn in turns.values()
    ]
    named = {name: torch.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    return Rows([*turns], named)


def _unstacked(
    clients: Sequence[int], tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> dict[int, Turn]:
    """What `_stacked` gave; changes in the order, on the device and in the type of `like`."""
    found = {}
    for row, client in enumerate(clients):
        own = {k: v[row] for k, v in tensors.items()}
        change = {name: own[CHANGE + name].to(value) for name, value in like.items()}
        device = next(iter(change.values())).device
        curves = (own[k].to(device) for k in ("losses", "norms", "drift"))
        found[client] = Turn(client, change, *curves)
    return found

"""LMRun: the step loop of a language model. It knows engines only by their protocol."""

from __future__ import annotations

import time

from fedcore.batch import TokenData
from fedcore.checkpoint import Checkpoint
from fedcore.checkpoint_writer import Contents
from fedcore.lm.engine import Engine, EngineState
from fedcore.lm.ledger import Ledger, LMOutcome
from fedcore.lm.measure import Sizes, Window, copies, sizes
from fedcore.lm.monitors import Measured, Monitor, Reading
from fedcore.lm.rates import GroupRates
from fedcore.server.comm import foreign_collectives
from fedcore.server.pause import Wish
from fedcore.telemetry.events import LMResumeEvent


class LMRun:
    """One language model trained by all ranks together."""

    def __init__(
        self,
        engine: Engine,
        data: TokenData,
        rates: GroupRates,
        monitor: Monitor,
        ledger: Ledger,
    ) -> None:
        self.engine, self.data, self.rates, self.monitor = engine, data, rates, monitor
        self.ledger, self.lm, self.comm = ledger, ledger.lm, ledger.comm
        self.outcome: LMOutcome = ledger.outcome
        self.outcome.parameters = sum(rates.numel.values())
        self._window, self._began = Window(), 0.0

    def run(self) -> LMOutcome:
        """All remaining steps. Raises `Stopped` after a checkpoint when asked to stop."""
        with self.ledger.saving, foreign_collectives("training", self.comm.rank):
            return self._run()

    def _run(self) -> LMOutcome:
        if self.outcome.steps == 0:
            self._read(0, sizes(self.engine, self.comm, [*self.rates.numel.values()]))
        self._began = time.monotonic()
        for step in range(self.outcome.steps, self.lm.steps):
            wish = self.ledger.wish(step)
            if wish is not Wish.GO_ON:
                self._line(step, None)  # a checkpoint knows of no open window
                self._save(step, last=wish is Wish.STOP)
            if wish is Wish.STOP:
                raise self.ledger.stopped(step)
            self._step(step)
        return self.outcome

    def _step(self, step: int) -> None:
        """Optimiser step number `step`, and what is due after it."""
        done = step + 1
        before = copies(self.engine) if self._measures(done) else None
        self.rates.write(self.engine, step)
        first = self.comm.rank * self._own
        rows = self.data.batch(step, self.lm.batch_size, range(first, first + self._own))
        loss = self.engine.gradients(rows.to(self.comm.device, non_blocking=True))
        norm = self.engine.step()
        self._window.add(loss, norm, self.rates.at(step)[0])
        if before is not None:
            now = sizes(self.engine, self.comm, [*self.rates.numel.values()], before)
            self._line(done, now)
        elif self.ledger.is_due(self.lm.log_every, done):
            self._line(done, None)
        self._after(done)

    @property
    def _own(self) -> int:
        """Sequences of this rank in a step."""
        return self.lm.batch_size // self.comm.size

    def _measures(self, done: int) -> bool:
        return self.ledger.is_due(self.lm.monitor.every, done)

    def _after(self, done: int) -> None:
        """Evaluation and checkpoint, if due."""
        config, ledger = self.ledger.config, self.ledger
        evaluates = ledger.is_due(config.evaluate.every, done)
        saves = ledger.is_due(config.checkpoint.every, done)
        if not (evaluates or saves):
            return
        self._line(done, None)  # a checkpoint knows of no open window
        if evaluates:
            ledger.evaluate(self.engine, done)
        if saves:
            self._save(done, last=done == self.lm.steps)
        self._began = time.monotonic()

    def _line(self, done: int, measured: Sizes | None) -> None:
        """Close the window: one line about the steps since the last one. Collective."""
        steps = len(self._window)
        if not steps:
            return
        means = self._window.close(self.comm, done)
        seconds = self.ledger.pace((time.monotonic() - self._began) / steps) * steps
        tokens = steps * self.lm.batch_size * self.lm.model.context
        self.ledger.telemetry.tokens(tokens // self.comm.size)
        weights = self._read(done, measured).fields() if measured else None
        self.ledger.line(done, means, self.rates.at(done - 1), tokens, seconds, weights)
        self._began = time.monotonic()

    def _read(self, done: int, measured: Sizes) -> Reading:
        """What the monitor makes of a measurement; its alerts are told, the controller answers."""
        numel = self.rates.numel
        rms = dict(zip(numel, measured.rms, strict=True))
        change = dict(zip(numel, measured.change, strict=True))
        reading = self.monitor.read(Measured(done, rms, change, numel))
        self.ledger.warn(done, reading.alerts)
        self.rates.control(done, rms)
        return reading

    def _save(self, done: int, *, last: bool) -> None:
        """A checkpoint of the state after `done` steps, unless there is one. Collective."""
        if self.ledger.saving.has(done):
            return
        with self.ledger.phase("checkpoint"):
            self._write(done, last)

    def _write(self, done: int, last: bool) -> None:
        state = self.engine.state()
        if done == self.lm.steps:
            self.ledger.sign(state.weights)
        facts = {
            "scalars": state.scalars,
            "monitor": self.monitor.state,
            "controller": self.rates.state(),
        }
        shared = {"model": state.weights, "optimizer": state.memory}
        self.ledger.save(done, Contents(shared=shared, facts=facts, fresh=True), last=last)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint: with the same ranks the run then equals one never stopped."""
        facts = checkpoint.facts
        weights, memory = checkpoint.shared("model"), checkpoint.shared("optimizer", optional=True)
        self.engine.load(EngineState(weights, memory, facts["scalars"]))
        self.monitor.state = facts["monitor"]
        self.rates.load(facts["controller"])
        vars(self.outcome).update(facts["outcome"])
        if checkpoint.folder.parent == self.ledger.saving.checkpoints.folder:
            self.ledger.saving.found(self.outcome.steps)
        folder = str(checkpoint.folder)
        self.ledger.telemetry.write([LMResumeEvent(self.outcome.steps, folder)])

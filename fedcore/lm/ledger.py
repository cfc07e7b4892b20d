"""What a language-model run keeps beside training: time, lines, evaluations, checkpoints, stops."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedcore.batch import TokenData
from fedcore.checkpoint import Checkpoints, Tensors
from fedcore.config import RunConfig
from fedcore.errors import Stopped, StorageError
from fedcore.lm.engine import Engine
from fedcore.lm.measure import held_out_loss
from fedcore.server.comm import Comm, on_any
from fedcore.telemetry.events import LMEvalEvent, LMStepEvent, LMWarningEvent
from fedcore.telemetry.telemetry import Telemetry

LISTEN = 2.0  # seconds between two looks whether a stop was asked for

NOTHING_MEASURED: dict[str, Any] = {
    "weight_rms": {},
    "weight_rms_predicted": {},
    "update_ratio": {},
    "layer_rms": {},
    "memory_steps": {},
    "initialisation_left": None,
}


@dataclass
class LMOutcome:
    """What summary.json reports; the same on every rank, and up to date at each line."""

    steps: int = 0
    tokens: int = 0
    parameters: int = 0
    final_loss: float | None = None
    final_eval_loss: float | None = None
    best_eval_loss: float | None = None
    perplexity: float | None = None
    bits_per_byte: float | None = None
    parameters_sha256: str | None = None
    bytes_communicated: int = 0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """The fields as JSON values, with the speed over the whole run."""
        seconds = self.phase_seconds.get("train", 0.0)
        return dict(vars(self)) | {"tokens_per_second": self.tokens / seconds if seconds else 0.0}


class Ledger:
    """The books of one run on this rank. Methods that say so are collective."""

    def __init__(
        self,
        config: RunConfig,
        comm: Comm,
        data: TokenData,
        checkpoints: Checkpoints,
        telemetry: Telemetry,
        stopping: Callable[[], bool],
        identity: dict[str, Any],  # stored with each checkpoint, to know the run again
    ) -> None:
        assert config.lm is not None
        self.config, self.lm, self.comm, self.data = config, config.lm, comm, data
        self.checkpoints, self.telemetry = checkpoints, telemetry
        self.stopping, self.identity = stopping, identity
        self.outcome = LMOutcome()
        self._every = 1  # steps between two looks for a stop
        self.saved = -1  # step of the newest checkpoint
        comm.watcher = self._watch

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time spent inside counts as that phase."""
        began = time.monotonic()
        yield
        self.spent(name, time.monotonic() - began)

    def spent(self, name: str, seconds: float) -> None:
        """So many seconds of a phase are over."""
        out = self.outcome
        out.phase_seconds[name] = out.phase_seconds.get(name, 0.0) + seconds
        out.wall_seconds += seconds
        self.telemetry.phase(name, seconds)

    def _watch(self, operation: str, size: int, seconds: float) -> None:
        self.outcome.bytes_communicated += size * self.comm.size
        self.telemetry.traffic(operation, size, seconds)

    def pace(self, seconds: float) -> float:
        """The slowest rank's seconds a step; looks for a stop are spaced by it. Collective."""
        slowest = self.comm.max(torch.tensor([seconds], dtype=torch.float64)).item()
        self._every = max(1, min(self.lm.log_every, int(LISTEN / max(slowest, 1e-9))))
        return float(slowest)

    def asked_to_stop(self, step: int) -> bool:
        """Whether any rank was asked to, if it is time to look. Collective."""
        return step % self._every == 0 and self.anyone_asked()

    def anyone_asked(self) -> bool:
        """Whether any rank was asked to stop. Collective."""
        return on_any(self.comm, self.stopping())  # sync: every few seconds

    def stopped(self, step: int) -> Stopped:
        """The error that ends a run which was asked to stop."""
        return Stopped(step, str(self.checkpoints.folder / "latest"), "step")

    def warn(self, step: int, words: Sequence[str]) -> None:
        """Tell these sentences."""
        self.telemetry.write([LMWarningEvent(step, w) for w in words])

    def evaluate(self, engine: Engine, step: int) -> None:
        """Loss on held-out text: on all of it at the end of the run. Collective."""
        windows = self.data.held_out()
        wanted = self.lm.eval_batches * self.lm.batch_size
        if step < self.lm.steps and len(windows) > wanted:  # spread over the text, always the same
            windows = windows[torch.linspace(0, len(windows) - 1, wanted).long()]
        with self.phase("evaluate"):
            size = max(1, self.lm.batch_size // (self.comm.size * self.lm.accumulate))
            loss = held_out_loss(engine, self.comm, windows, size)
        out = self.outcome
        out.final_eval_loss, out.perplexity = loss, math.exp(min(loss, 700.0))
        out.best_eval_loss = min(loss, out.best_eval_loss or math.inf)
        out.bits_per_byte = loss / math.log(2) / self.data.bytes_per_token
        tokens = windows.shape[0] * (windows.shape[1] - 1)
        event = LMEvalEvent(step, loss, out.perplexity, out.bits_per_byte, tokens)
        self.telemetry.write([event])

    def is_due(self, every: int, step: int, since: int | None = None) -> bool:
        """Whether something done every so many steps is due after `step` of them.

        since: the last step at which it could be done; the one before unless given.
        """
        last = step - 1 if since is None else since
        return step // every > last // every or step == self.lm.steps

    def line(
        self,
        done: int,
        means: tuple[float, float],  # loss, gradient norm
        rates: tuple[float, float],  # eta, lam of the last step
        tokens: int,  # trained on by all ranks since the last line
        seconds: float,
        weights: Mapping[str, Any] | None,  # what was measured of them
    ) -> None:
        """One line about the steps since the last one."""
        self.outcome.steps, self.outcome.final_loss = done, means[0]
        self.outcome.tokens += tokens
        self.spent("train", seconds)
        event = LMStepEvent(
            step=done,
            steps=self.lm.steps,
            loss=means[0],
            learning_rate=rates[0],
            weight_decay=rates[1],
            gradient_norm=means[1],
            tokens=self.outcome.tokens,
            tokens_per_second=tokens / max(seconds, 1e-9),
            **(NOTHING_MEASURED if weights is None else weights),
        )
        self.telemetry.write([event])

    def save(
        self,
        step: int,
        shared: Mapping[str, Tensors],
        facts: dict[str, Any],
        clients: Sequence[int] = (),
        own: Tensors | None = None,
        *,
        last: bool,  # the run ends with it: without it all since the one before would be lost
    ) -> None:
        """A checkpoint; collective. If it cannot be written that is told, and older ones stay.

        Raises `StorageError` on every rank for the last one.
        """
        facts = facts | {
            "config": self.identity,
            "run": self.config.plain(),
            "vocab_size": self.data.vocab_size,
            "outcome": vars(self.outcome),
        }
        began = time.monotonic()
        try:
            self.checkpoints.save(step, shared, facts, clients, own)
        except StorageError as error:
            if last:
                raise
            self.telemetry.checkpoint_failed()
            words = (
                f"no checkpoint of step {step}: {error}. The run goes on; older ones, if any, stay"
            )
            return self.warn(step, [words])
        self.saved = step
        self.telemetry.checkpointed(time.monotonic() - began)
        return None

    def sign(self, weights: Tensors) -> None:
        """SHA-256 of rank 0's weights, by name, for all ranks. Collective."""
        whole = hashlib.sha256()
        for name in sorted(weights):
            value: Tensor = weights[name].detach().cpu().contiguous()
            whole.update(name.encode() + value.numpy().tobytes())
        self.outcome.parameters_sha256 = self.comm.gather_json(whole.hexdigest())[0]

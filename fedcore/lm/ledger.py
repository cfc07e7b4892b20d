"""What a language-model run keeps beside training: time, lines, evaluations, checkpoints, stops."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedcore.batch import TokenData
from fedcore.checkpoint_writer import Checkpoints, Contents, Tensors
from fedcore.config import RunConfig
from fedcore.errors import Stopped
from fedcore.lm.engine import Engine
from fedcore.lm.measure import held_out_loss
from fedcore.saving import Saving
from fedcore.server.comm import Comm
from fedcore.server.pause import Pauses, Wish
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
        pauses: Pauses,
        identity: dict[str, Any],  # stored with each checkpoint, to know the run again
    ) -> None:
        assert config.lm is not None
        self.config, self.lm, self.comm, self.data = config, config.lm, comm, data
        self.telemetry, self.pauses, self.identity = telemetry, pauses, identity
        self.saving = Saving(checkpoints, telemetry, pauses, self._warn)
        self.outcome = LMOutcome()
        self._every = 1  # steps between two looks for a pause
        self._evaluated = -1  # the last step at which that was done
        comm.watcher = self._watch

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A context whose duration counts as that phase."""
        began = time.monotonic()
        yield
        self.spent(name, time.monotonic() - began)

    def spent(self, name: str, seconds: float) -> None:
        """Count so many seconds as that phase."""
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

    def wish(self, step: int) -> Wish:
        """What all ranks do before a step, if it is time to look. Collective."""
        return self.anyones_wish() if step % self._every == 0 else Wish.GO_ON

    def anyones_wish(self) -> Wish:
        """What all ranks do now: the greatest wish of any. Collective."""
        return self.pauses.agree(self.comm, self.pauses.wish())[0]  # sync: every few seconds

    def stopped(self, step: int, within: bool = False) -> Stopped:
        """The error that ends a run which was asked to stop; within: in the round after `step`."""
        return Stopped(step, str(self.saving.checkpoints.folder / "latest"), "step", within)

    def warn(self, step: int, words: Sequence[str]) -> None:
        """Tell these sentences as warnings of that step."""
        self.telemetry.write([LMWarningEvent(step, w) for w in words])

    def _warn(self, words: str) -> None:
        self.warn(self.outcome.steps, [words])

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
        self._evaluated = step
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
        """Write one line about the steps since the last one."""
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

    def save(self, step: int, contents: Contents, *, last: bool, part: int = 0) -> None:
        """Write a checkpoint; if it cannot be, a warning says so and older ones stay. Collective.

        last: the run ends with it: without it all since the one before would be lost, so that
        `StorageError` is raised on every rank.
        """
        score = None
        if self._evaluated == step and self.outcome.final_eval_loss is not None and not part:
            score = -self.outcome.final_eval_loss
        whole = replace(contents, facts=self._facts() | contents.facts, score=score)
        write = self.saving.finish if last else self.saving.start
        write(lambda: whole, step, part)

    def _facts(self) -> dict[str, Any]:
        return {
            "config": self.identity,
            "run": self.config.plain(),
            "vocab_size": self.data.vocab_size,
            "outcome": dict(vars(self.outcome)),
            "step": self.outcome.steps,
        }

    def sign(self, weights: Tensors) -> None:
        """SHA-256 over that of each tensor, by name. weights: this rank's share. Collective."""
        mine = {}
        for name, weight in weights.items():
            value: Tensor = weight.detach().cpu().contiguous()
            mine[name] = hashlib.sha256(value.numpy().tobytes()).hexdigest()
        each = {k: v for share in self.comm.gather_json(mine) for k, v in share.items()}
        whole = "".join(name + each[name] for name in sorted(each))
        self.outcome.parameters_sha256 = hashlib.sha256(whole.encode()).hexdigest()

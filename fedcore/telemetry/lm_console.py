"""What rank 0 shows of a language-model run: a bar on a terminal, sparse lines in a log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TextIO

from fedcore.telemetry.console import LINES
from fedcore.telemetry.events import (
    Event,
    LMEvalEvent,
    LMResumeEvent,
    LMStepEvent,
    LMWarningEvent,
    WarningEvent,
)
from fedcore.telemetry.screen import Screen

COUNTED = "step {task.completed:,.0f}/{task.total:,.0f}"


class LMConsole:
    """Shows steps, evaluations and warnings on `stream` (standard output if None)."""

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self.steps = steps
        self._next = 0  # step from which on a log has its next line
        self._screen = Screen(stream, "training", steps, COUNTED)

    def write(self, events: Sequence[Event]) -> None:
        """Show these events, each in a line."""
        for event in events:
            if isinstance(event, LMStepEvent):
                self._step(event)
            elif isinstance(event, LMEvalEvent):
                self._screen.say(eval_line(event, self.steps))
            elif isinstance(event, LMResumeEvent):
                self._screen.say(f"going on after step {event.step} from {event.checkpoint}")
            elif isinstance(event, LMWarningEvent | WarningEvent):
                self._screen.say(f"warning: {event.message}")

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._screen.close()

    def _step(self, event: LMStepEvent) -> None:
        if self._screen.has_bar:
            words = f"loss {event.loss:.4f}  {event.tokens_per_second:,.0f} tokens/s"
            self._screen.advance(event.step, words)
        elif event.step >= self._next or event.step == self.steps:
            self._next = event.step + math.ceil(self.steps / LINES)
            self._screen.say(step_line(event))


def step_line(event: LMStepEvent) -> str:
    """Steps in words: loss, rates, gradient norm, speed."""
    width = len(str(event.steps))
    return (
        f"step {event.step:>{width}}/{event.steps}  loss {event.loss:.4f}  "
        f"lr {event.learning_rate:.3g}  wd {event.weight_decay:.3g}  "
        f"gradient {event.gradient_norm:.3g}  {event.tokens_per_second:,.0f} tokens/s"
    )


def eval_line(event: LMEvalEvent, steps: int) -> str:
    """An evaluation in words."""
    width = len(str(steps))
    return (
        f"step {event.step:>{width}}/{steps}  held-out loss {event.loss:.4f}  "
        f"perplexity {event.perplexity:.2f}  {event.bits_per_byte:.3f} bits/byte"
    )

"""Does a log show a language model's run in sparse lines, and everything of note?"""

from __future__ import annotations

import io

from fedcore.telemetry.console import LINES
from fedcore.telemetry.events import LMResumeEvent, LMWarningEvent
from fedcore.telemetry.lm_console import LMConsole
from tests.unit.telemetry.made_up import eval_event, step_event


def test_a_long_run_is_about_twenty_lines_with_the_last() -> None:
    out = io.StringIO()
    sink = LMConsole(10_000, out)
    for step in range(10, 10_001, 10):
        sink.write([step_event(step, 10_000)])
    lines = out.getvalue().splitlines()
    assert LINES <= len(lines) <= LINES + 2
    assert lines[-1].startswith("step 10000/10000  loss 2.5000  lr 0.001  wd 0.1")


def test_what_happens_once_is_always_told() -> None:
    out = io.StringIO()
    sink = LMConsole(400, out)
    events = [LMResumeEvent(7, "step_00000007"), LMWarningEvent(9, "[bold] is no markup")]
    sink.write([*events, eval_event()])
    assert out.getvalue().splitlines() == [
        "going on after step 7 from step_00000007",
        "warning: [bold] is no markup",
        "step 100/400  held-out loss 2.5000  perplexity 12.18  3.607 bits/byte",
    ]

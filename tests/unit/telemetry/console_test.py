"""Is a log sparse and free of control characters, and does a terminal get its bar?"""

from __future__ import annotations

import io

import pytest

from fedcore.telemetry.console import ConsoleSink, final_table, shown
from fedcore.telemetry.events import ResumeEvent, WarningEvent
from tests.unit.telemetry.made_up import client_event, round_event


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(rounds: int, stream: io.StringIO) -> str:
    sink = ConsoleSink(rounds, "v14", "feature_ensemble", stream)
    for round in range(rounds):
        sink.write([*(client_event(k, round) for k in range(3)), round_event(round, rounds)])
    sink.close()
    return stream.getvalue()


@pytest.fixture
def colour_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")


@pytest.mark.usefixtures("colour_forced")
def test_a_log_has_no_control_characters() -> None:
    stream = io.StringIO()
    printed(5, stream)
    final_table({"feature_ensemble": 0.9, "averaged": 0.5}, "feature_ensemble", "v14", stream)
    assert all(c == "\n" or c.isprintable() for c in stream.getvalue())


def test_a_line_says_what_matters() -> None:
    (line,) = printed(1, io.StringIO()).splitlines()
    assert line == (
        "round 1/1  accuracy 0.9000  lambda 1 / 2 / 3  base 1.5000  align 0.2500  1,234 samples/s"
    )


def test_round_without_evaluation_or_clients_has_a_line() -> None:
    stream = io.StringIO()
    ConsoleSink(3, "v14", "feature_ensemble", stream).write([round_event(0, 3, accuracy={})])
    assert "accuracy -" in stream.getvalue()


@pytest.mark.parametrize("rounds", [1, 7, 20])
def test_short_runs_show_every_round(rounds: int) -> None:
    assert len(printed(rounds, io.StringIO()).splitlines()) == rounds


@pytest.mark.parametrize("rounds", [21, 100, 199, 1000])
def test_long_runs_show_about_twenty(rounds: int) -> None:
    seen = [r for r in range(rounds) if shown(r, rounds)]
    assert seen[0] == 0
    assert seen[-1] == rounds - 1
    assert 10 <= len(seen) <= 22


def test_warnings_and_resumption_are_shown_at_once() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(9, "v14", "feature_ensemble", stream)
    sink.write([WarningEvent(0, "[bold] is no markup"), ResumeEvent(4, "round_00004")])
    assert stream.getvalue().splitlines() == [
        "warning: [bold] is no markup",
        "going on with round 5 from round_00004",
    ]


def test_a_terminal_gets_a_bar_and_keeps_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = printed(3, Terminal())
    assert "3/3" in text
    assert "round 2/3" in text
    assert "\x1b[?25l" not in text  # hides the cursor; os._exit would leave it so


def test_final_table_puts_the_best_first_and_marks_the_reported() -> None:
    stream = io.StringIO()
    final_table({"averaged": 0.5, "feature_ensemble": 0.9}, "averaged", "v14 on digits", stream)
    text = stream.getvalue()
    assert text.index("feature_ensemble") < text.index("averaged *")
    assert "v14 on digits" in text


def test_final_table_has_no_test_accuracy_of_other_samples() -> None:
    stream = io.StringIO()
    final_table({"averaged": 0.5, "validation_local": 0.75}, "averaged", "v14", stream)
    table, _, below = stream.getvalue().partition("└")
    assert "validation_local" not in table
    assert "validation_local 0.7500" in below

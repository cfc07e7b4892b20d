"""Does `fedcore watch` show what the file says, while it grows, and end with the run?"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.telemetry.events import (
    Event,
    LMClientEvent,
    LMResumeEvent,
    ResumeEvent,
    WarningEvent,
)
from launcher import watch
from launcher.commands import app
from launcher.watch_federated import FederatedWatch
from launcher.watch_lm import LMWatch
from launcher.watch_parts import clock, sparkline
from launcher.watch_run import ListFollower, RunFollower, follower
from tests.unit.telemetry.console_test import Terminal
from tests.unit.telemetry.made_up import (
    client_event,
    eval_event,
    odd_records,
    round_event,
    step_event,
    whole_run,
)


def write(run: Path, events: Sequence[Event], config: dict | None = None) -> Path:
    """A run directory with these lines after those that are there."""
    run.mkdir(exist_ok=True, parents=True)
    if config is not None:
        (run / "config.yaml").write_text(RunConfig.of(config).dump())
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(e.record()) + "\n" for e in events)
    return run


def end(run: Path, status: str = "completed", **more: object) -> None:
    facts = {"status": status, "exit_code": 0, "message": "", "rounds": 3, **more}
    (run / "summary.json").write_text(json.dumps(facts))


def shown(path: Path, width: int = 100, height: int = 200) -> str:
    """One picture."""
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    followed = follower(path, watch.picture_of)
    followed.update()
    console.print(watch.picture(followed, console, height))
    return console.export_text()


FEDERATED = {"rounds": 30, "clients": {"count": 8}, "algorithm": {"name": "v12"}}
LM = {"lm": {"steps": 400}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "mine", whole_run(8, 30)[: 9 * 12], FEDERATED)


def test_a_picture_says_what_the_last_round_said(run: Path) -> None:
    text = shown(run)
    last = whole_run(8, 30)[9 * 12 - 1]
    assert "mine  running" in text
    assert "round 12/30" in text
    assert "v12 on mnist5k" in text
    assert f"{last.accuracy['feature_ensemble']:.4f}" in text
    assert text.index("feature_ensemble") < text.index("averaged")  # the reported one is first
    assert all(f"\n{' ' * 5}{k} " in text for k in range(8))
    assert "▁" in text
    assert "█" in text


def test_it_reads_on_where_it_stopped(run: Path) -> None:
    followed = RunFollower(run, watch.picture_of)
    followed.update()
    write(run, whole_run(8, 30)[9 * 12 : 9 * 14])
    lines = (run / "metrics.jsonl").read_bytes()
    half = json.dumps(round_event(14, 30).record()).encode()
    (run / "metrics.jsonl").write_bytes(lines + half[:50])
    followed.update()
    view = followed.taker
    assert isinstance(view, FederatedWatch)
    assert view.pace.done == 14
    assert len(view.accuracy["averaged"]) == 14
    (run / "metrics.jsonl").write_bytes(lines + half + b"\n")
    followed.update()
    assert view.pace.done == 15


def test_torn_foreign_and_empty_lines_are_passed_over(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "client", "ti\n\n[]\n{"event": "sneeze"}\n{"event": "round"}\n')
    assert "round 12/30" in shown(run)


@pytest.mark.parametrize("record", odd_records())
def test_lines_with_fields_of_other_types_are_passed_over(
    record: dict[str, Any], run: Path
) -> None:
    end(run)
    before, log = shown(run), logged(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    assert shown(run).splitlines()[:3] == before.splitlines()[:3]
    assert logged(run) == log


def test_a_run_without_rounds_and_configuration_still_has_its_lines(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [client_event(0), replace(round_event(1), rounds=0)])
    end(run)
    assert "round 2/0" in logged(run)


def logged(run: Path) -> str:
    """The lines of a run that is over."""
    stream = io.StringIO()
    watch.lines(run, stream, 0.01)
    return stream.getvalue()


def test_values_that_are_not_known_are_dashes(tmp_path: Path) -> None:
    nan = float("nan")
    events = [client_event(k, lambda_equilibrium=nan, lambda_effective=nan) for k in range(3)]
    last = round_event(accuracy={}, model_variance=None, prototype_std=nan)
    text = shown(write(tmp_path / "run", [*events, last], FEDERATED))
    assert "model variance -" in text
    assert "prototype std -" in text
    assert "lambda equilibrium" not in text


def test_a_run_set_aside_and_begun_anew_is_shown_anew(run: Path) -> None:
    followed = RunFollower(run, watch.picture_of)
    followed.update()
    run.rename(run.with_name("mine.1"))
    followed.update()
    write(run, [client_event(0), round_event(0, 5)], {**FEDERATED, "rounds": 5})
    followed.update()
    view = followed.taker
    assert isinstance(view, FederatedWatch)
    assert (view.pace.done, view.pace.total, len(view.clients)) == (1, 5, 1)


def test_a_resumed_run_forgets_what_it_does_again(run: Path) -> None:
    write(run, [ResumeEvent(6, "round_00006"), *whole_run(8, 30)[9 * 6 : 9 * 8]])
    followed = RunFollower(run, watch.picture_of)
    followed.update()
    view = followed.taker
    assert isinstance(view, FederatedWatch)
    assert view.pace.done == 8
    assert [*view.accuracy["averaged"]] == [*range(8)]
    assert "resumed 1 x" in shown(run)


def test_many_clients_are_a_spread_and_the_foremost(tmp_path: Path) -> None:
    events = [client_event(k) for k in range(10_000)]
    text = shown(write(tmp_path / "run", [*events, round_event()], FEDERATED))
    assert "10,000 clients" in text
    assert "client 9999 10,000" in text
    assert len(text.splitlines()) < 30


def test_names_from_the_file_are_neither_markup_nor_control_characters(tmp_path: Path) -> None:
    events = [
        WarningEvent(0, "[bold red]no\x1b[2J markup[/]"),
        round_event(accuracy={"[blink]odd\x1b[2J": 0.5}, seconds={"[u]phase": 1.0}),
    ]
    text = shown(write(tmp_path / "[red]run", events, FEDERATED))
    assert all(words in text for words in ("[bold red]no", "[blink]odd", "[u]phase", "[red]run"))
    assert all(c == "\n" or c.isprintable() for c in text)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("height", [3, 10, 24])
def test_a_picture_fits_the_terminal(run: Path, width: int, height: int) -> None:
    write(run, [WarningEvent(11, "a long warning " * 9)])
    lines = shown(run, width, height).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 5)
    assert any("round 12/30" in line for line in lines)


def test_a_silent_run_says_for_how_long(tmp_path: Path) -> None:
    events = [round_event(t, 9, time=time.time() - 100 - t) for t in (1, 0)]
    assert "no line for 100 s" in shown(write(tmp_path / "run", events, FEDERATED))


def test_time_left_is_taken_from_the_last_lines(tmp_path: Path) -> None:
    events = [round_event(t, 30, time=time.time() - 60 + 10 * t) for t in range(6)]
    assert "4:00 left" in shown(write(tmp_path / "run", events, FEDERATED))


def test_a_language_model_has_its_own_picture(tmp_path: Path) -> None:
    events = [step_event(50), eval_event(50), step_event(100, loss=2.25), eval_event(100)]
    events += [LMClientEvent(100, k, 2.0 + k, 0.5) for k in range(3)]
    text = shown(write(tmp_path / "run", events, LM))
    assert "step 100/400" in text
    assert "2.2500" in text
    assert "12.18" in text
    assert "1.25" in text  # RMS over its prediction
    assert "T3 10,000" in text
    assert "client 2 4.0000" in text


def test_a_resumed_language_model_keeps_what_its_checkpoint_had(tmp_path: Path) -> None:
    view = LMWatch()
    again = [step_event(100), step_event(150), LMResumeEvent(100, "step_100"), step_event(140)]
    for event in again:
        view.take(event)
    assert [*view.courses["loss"]] == [100, 140]


def test_a_run_of_another_version_is_shown_from_its_lines(run: Path) -> None:
    (run / "config.yaml").write_text("no_such_key: 1\n")
    assert "round 12/30" in shown(run)
    (run / "metrics.jsonl").unlink()
    write(run, [WarningEvent(0, "of either kind"), step_event(100)])
    assert "step 100/400" in shown(run)


def test_no_terminal_gets_the_lines_of_a_log(run: Path) -> None:
    end(run)
    stream = io.StringIO()
    watch.main(run, stream, 0.1, once=False)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("mine: v12 on mnist5k")
    assert lines[1].startswith("round  1/30  accuracy 0.1686  lambda ")
    assert lines[-1] == "mine: completed (exit code 0), 3 rounds"
    assert all(c == "\n" or c.isprintable() for c in stream.getvalue())


def test_a_log_says_once_when_nothing_comes_for_long(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SILENT", 0.2)
    stream = io.StringIO()
    thread = threading.Thread(target=watch.main, args=(run, stream, 0.05, False))
    thread.start()
    time.sleep(0.5)
    end(run)
    thread.join(5)
    lines = stream.getvalue().splitlines()
    assert sum("it takes long, or was killed" in line for line in lines) == 1


def test_a_run_is_awaited_followed_and_ends(tmp_path: Path) -> None:
    run, stream = tmp_path / "run", io.StringIO()
    run.mkdir()
    thread = threading.Thread(target=watch.main, args=(run, stream, 0.1, False))
    thread.start()
    time.sleep(0.15)
    for round in range(3):
        write(run, [client_event(0, round), round_event(round, 3)], {**FEDERATED, "rounds": 3})
        time.sleep(0.15)
    end(run, "stopped", exit_code=75, message="stopped on request")
    thread.join(5)
    assert not thread.is_alive()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("waiting for ")
    assert [line[:9] for line in lines[2:5]] == ["round 1/3", "round 2/3", "round 3/3"]
    assert lines[-1] == "run: stopped (exit code 75), 3 rounds, stopped on request"


def test_a_terminal_keeps_the_last_picture(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    end(run)
    stream = Terminal()
    watch.main(run, stream, 0.1, once=False)
    assert "round 12/30" in stream.getvalue()
    assert stream.getvalue().endswith("mine: completed (exit code 0), 3 rounds\n")


def test_ctrl_c_ends_it_in_peace(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.watch.time.sleep", pressed)
    done = CliRunner().invoke(app, ["watch", str(run)])
    assert done.exit_code == 0
    assert done.output.endswith("mine: running\n")


def test_a_misspelt_run_is_answered_with_the_like(run: Path) -> None:
    with pytest.raises(ConfigError, match="Try mine"):
        watch.main(run.with_name("mime"), io.StringIO(), 1.0, once=True)


def suite(tmp_path: Path, *names: str) -> Path:
    rows = [{"name": name} for name in names]
    (tmp_path / "suite.json").write_text(json.dumps({"runs": rows}))
    return tmp_path


def test_a_list_shows_the_run_that_is_on(tmp_path: Path) -> None:
    end(write(tmp_path / "one", [round_event(2, 3)], FEDERATED))
    write(tmp_path / "two", [round_event(0, 3)], FEDERATED)
    text = shown(suite(tmp_path, "one", "two", "three"))
    assert "two  running" in text
    assert "1 of 3 runs over" in text
    assert "round 1/3" in text
    assert "waiting" in text


def test_a_list_ends_with_its_last_run(tmp_path: Path) -> None:
    write(tmp_path / "one", [round_event(2, 3)], FEDERATED)
    followed = follower(suite(tmp_path, "one", "two"), watch.picture_of)
    assert isinstance(followed, ListFollower)
    followed.update()
    end(tmp_path / "one")
    followed.update()
    assert not followed.is_over()
    end(write(tmp_path / "two", [round_event(2, 3)], FEDERATED), "diverged", exit_code=4)
    followed.update()
    assert followed.is_over()
    assert watch.end_of(followed).endswith("1 completed, 1 diverged")


def test_a_folder_of_runs_is_followed_as_a_list(tmp_path: Path) -> None:
    end(write(tmp_path / "one", [round_event(2, 3)], FEDERATED), "stopped")
    followed = follower(tmp_path, watch.picture_of)
    followed.update()
    assert followed.is_over()  # nothing begins without another command


def test_a_sparkline_is_the_course_from_low_to_high() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([0, float("nan"), 7], 3) == "▁ █"
    assert sparkline([float("nan")], 3) == sparkline([], 3) == ""
    assert len(sparkline([5.0] * 100, 20)) == 20


def test_a_duration_is_hours_minutes_seconds() -> None:
    assert [clock(s) for s in (0, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]

"""Does the page stay whole whatever is in the files?"""

from __future__ import annotations

import json
import math
import os
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.errors import ConfigError, StorageError
from fedcore.telemetry.events import WarningEvent
from fedcore.telemetry.history import History
from launcher.commands import app
from launcher.page import write_page
from launcher.report import geometry
from launcher.report.notices import notices
from launcher.report.report import report
from launcher.report.series import series
from launcher.report.stored import Stored
from launcher.rundir import RunDir
from tests.unit.report.pages import Page, keep_checkpoint, stored, words
from tests.unit.telemetry.made_up import (
    client_event,
    eval_event,
    odd_records,
    round_event,
    step_event,
    whole_run,
)

pytestmark = pytest.mark.broad

# -- odd files


def test_a_name_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    name = "a<b>&\"'$x$ </script> ü"
    parent = tmp_path / name.partition("</")[0]
    folder = stored(parent / "script> ü", [client_event(0, 0), round_event(0, 1)])
    no_text = os.fsdecode(b"caf\xe9")
    other = stored(tmp_path / no_text / "script> ü", [client_event(0, 0), round_event(0, 1)])
    found = Page(report([folder, other], tmp_path / "out"))
    assert found.file == tmp_path / "out" / "index.html"
    names = [run["name"] for run in found.data["runs"]]
    assert names == [f"{parent.name}/script> ü", f"{no_text}/script> ü"]
    assert found.tags.count("script") == 1
    assert "b" not in found.tags[: found.tags.index("h1")]
    assert names[0] in found.text


def test_what_is_missing_is_told_and_left_out(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [client_event(0, 0), round_event(0, 1)])
    text = Page(report([folder])).text
    assert "still going on, or was killed" in text
    assert "config.yaml of run is missing" in text
    assert "environment.json of run is missing" in text
    assert "No geometry of run: there is no checkpoint" in text
    assert "No map of classes for run" in text


def test_lines_that_lack_nearly_everything_still_make_a_page(tmp_path: Path) -> None:
    odd = {
        "bare": [{"event": "client", "round": 0, "client": 3}, {"event": "client"}],
        "rounds": [{"event": "round", "round": 1, "accuracy": {}, "lambda_exploded": 2}],
        "null": [{**client_event(0, 0).record(), "base_loss": None, "lambda_raw": None}],
        "lm": [{"event": "lm_step", "step": 5}, {"event": "lm_eval", "step": 5, "loss": 3.0}],
        "unplaced": [{"event": "round", "round": "x"}, round_event(0).record()],
    }
    for name, records in odd.items():
        (tmp_path / name).mkdir()
        text = "\n".join(map(json.dumps, records))
        (tmp_path / name / "metrics.jsonl").write_bytes(text.encode() + b"\n3\n\xff{")
        (tmp_path / name / "config.yaml").write_text("rounds: [1")
        (tmp_path / name / "clients.json").write_text('{"label_counts": [[1, 2], [3]]}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Page(report([tmp_path / name for name in odd], tmp_path / "page.html"))
    assert [run["name"] for run in found.data["runs"]] == [*odd]
    assert "nan" not in found.text.lower().split()
    # runs of both kinds have a part of the page each
    assert found.text.index("Federated runs") < found.text.index("Language models")


def test_lines_with_fields_of_other_types_are_left_out_and_counted(tmp_path: Path) -> None:
    good = {"federated": whole_run(2, 3), "lm": [step_event(100), step_event(200), eval_event(200)]}
    for name, events in good.items():
        folder = stored(tmp_path / name, events)
        with (folder / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in odd_records())
        assert [*Stored.of(folder).records] == [json.loads(json.dumps(e.record())) for e in events]
    text = Page(report([tmp_path / name for name in good], tmp_path / "page.html")).text
    assert text.count(f"{len(odd_records())} lines of metrics.jsonl left out") == 2
    (tmp_path / "federated" / "clients.json").unlink(missing_ok=True)
    assert len(History.of(tmp_path / "federated").rounds) == 3  # what `fedcore plot` draws


def test_a_single_huge_round_is_no_list_of_those_before_it(tmp_path: Path) -> None:
    huge = round_event(10**9, 10, seconds={}, prototype_std=1e30, accuracy={"averaged": -1e30})
    folder = stored(tmp_path / "run", [round_event(1), huge, client_event(0, 2)])
    assert "no line of rounds 1, 3-1000000000" in Page(report([folder])).text


def test_a_run_without_numbers_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "v14").mkdir()
    with pytest.raises(ConfigError, match="v14"):
        Stored.of(tmp_path / "v15")
    with pytest.raises(ConfigError, match=r"v14.*waiting.*again later"):
        Stored.of(tmp_path / "v14")
    bad = stored(tmp_path / "bad", [WarningEvent(0, "hm")])
    RunDir(bad).write_summary({"status": "failed", "exit_code": 3, "message": "shard is gone"})
    with pytest.raises(ConfigError, match=r"bad.*failed \(exit code 3\): shard is gone"):
        Stored.of(bad)


def test_the_command_ends_in_one_line_when_it_cannot_write(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="another --out"):
        write_page("page.html.j2", tmp_path / "file" / "x.html", "another --out", title="")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "gone")])
    assert result.exit_code == 2
    assert "a run directory" in result.output


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", [client_event(0, 0)])
    (keep_checkpoint(folder, 4) / "server-00000.safetensors").write_bytes(b"no")
    why = geometry.geometry(Stored.of(folder))
    assert isinstance(why, str)
    assert "does not match its sha256" in why


def test_values_that_are_not_finite_are_null_and_told(tmp_path: Path) -> None:
    events = [client_event(0, t, base_loss=math.nan if t else 1.0) for t in range(3)]
    run = Stored.of(stored(tmp_path / "run", [*events, round_event(0)]))
    assert series(run, None)["clients"]["base_loss"] == [[1.0], [None], [None]]
    assert "base loss was not finite (null) in rounds 2-3, of client 0" in words(run)


@pytest.mark.parametrize("status", ["diverged", "failed", "stopped"])
def test_a_bad_end_stands_first(tmp_path: Path, status: str) -> None:
    folder = stored(tmp_path / "run", [client_event(0, 0), WarningEvent(0, "careful")])
    RunDir(folder).write_summary({"status": status, "exit_code": 4, "message": "it went <wrong>"})
    first, second = notices(Stored.of(folder))[:2]
    assert first.level == "bad"
    assert status in first.words
    assert "it went <wrong>" in first.words
    assert second.words == "round 1: careful"

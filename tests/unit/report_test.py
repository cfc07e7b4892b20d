"""Does the page tell what the run's files say, and stay whole whatever is in them?"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedcore.checkpoint import Checkpoints
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, StorageError
from fedcore.objective.anchors import ANCHORS
from fedcore.server.comm import LocalComm
from fedcore.telemetry.events import Event, ResumeEvent, WarningEvent
from fedcore.telemetry.history import History
from fedcore.telemetry.jsonl import last_of_each, read_events
from launcher.commands import app
from launcher.page import write_page
from launcher.report import geometry, settings
from launcher.report.accuracy import accuracy
from launcher.report.chosen import MOST, collect
from launcher.report.clients import clients, entropies
from launcher.report.lambdas import weights
from launcher.report.notices import notices
from launcher.report.report import place, report
from launcher.report.series import series
from launcher.report.stored import Stored
from launcher.rundir import RunDir
from launcher.words import duration, ranges, size
from tests.unit.telemetry.made_up import (
    client_event,
    eval_event,
    odd_records,
    recorded,
    round_event,
    step_event,
    whole_run,
)


@dataclass
class Page(HTMLParser):
    """What a browser would make of a page: its data, its addresses and its text."""

    file: Path
    data: dict[str, Any] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "data", "action")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and not self.data and data.startswith("{"):
            self.data = json.loads(data)
        elif not self.tags or self.tags[-1] not in ("style", "script"):
            self.text += data + "\n"


def stored(folder: Path, events: Sequence[Event], config: dict[str, Any] | None = None) -> Path:
    """A run directory with these lines and, if given, that configuration."""
    recorded(folder, events)
    if config is not None:
        (folder / "config.yaml").write_text(RunConfig.of(config).dump())
    return folder


def complete(folder: Path, **more: Any) -> Path:
    """Its summary, as of a run that is done."""
    facts = {"status": "completed", "exit_code": 0, "kind": "federated", **more}
    RunDir(folder).write_summary(facts)
    return folder


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What counts of the file."""
    found = last_of_each(read_events(folder / "metrics.jsonl"))
    return [r for r in found if r["event"] == kind]


def words(run: Stored) -> str:
    return "\n".join(notice.words for notice in notices(run))


V14 = {"algorithm": {"name": "v14"}, "clients": {"count": 3}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of three clients and four rounds, with everything in its directory."""
    folder = stored(tmp_path_factory.mktemp("runs") / "whole", whole_run(3, 4), V14)
    RunDir(folder).write_clients(4, [[5, 0, 0, 3], [0, 9, 0, 0], [1, 1, 1, 1]])
    (folder / "environment.json").write_text('{"python": "3.11", "command": ["main.py", "a b"]}')
    keep_checkpoint(folder, 4)
    return complete(folder, test_accuracy=0.5, accuracy={"feature_ensemble": 0.5}, wall_seconds=9)


def keep_checkpoint(folder: Path, classes: int, width: int = 8) -> Path:
    anchors = ANCHORS.get("etf").points(classes, width, 0)
    tensors = {"server": {"prototypes": 3 * anchors, "anchors": anchors}}
    return Checkpoints(folder / "checkpoints", LocalComm(), 1).save(4, tensors, {})


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page(report([whole]))


# -- numbers


def test_the_page_has_the_numbers_of_the_file(whole: Path, page: Page) -> None:
    (run,) = page.data["runs"]
    rounds = lines(whole, "round")
    for name in ("annealing_factor", "samples_per_second", "bytes_communicated", "prototype_std"):
        assert run["rounds"][name] == [r[name] for r in rounds]
    for name, values in run["rounds"]["accuracy"].items():
        assert values == [r["accuracy"][name] for r in rounds]
    assert run["rounds"]["seconds"]["train"] == [r["seconds"]["train"] for r in rounds]
    for name in ("lambda_raw", "lambda_effective", "base_loss", "gradient_norm"):
        table = run["clients"][name]
        for r in lines(whole, "client"):
            assert table[r["round"]][r["client"]] == r[name]
    assert run["clients"]["terms"]["supcon"][3][2] == 1.1
    assert run["summary"] == json.loads((whole / "summary.json").read_text())


def test_the_head_shows_the_summary_and_the_tables_the_last_round(whole: Path, page: Page) -> None:
    last = lines(whole, "round")[-1]["accuracy"]["output_ensemble"]
    assert "50.0%" in page.text
    assert "9.0 s" in page.text
    assert f"{100 * last:.1f}%" in page.text
    told = {line.strip() for line in page.text.splitlines()}
    assert {"completed", "v14", "1 of 3 clients has samples of one class only: 1"} <= told
    assert "main.py 'a b'" in page.text


def test_the_page_needs_no_network(page: Page) -> None:
    assert page.addresses
    assert all(a.startswith(("data:image/", "#")) for a in page.addresses)
    assert page.tags.count("img") == 8
    assert not {"link", "iframe", "object"} & {*page.tags}
    assert "url(" not in page.file.read_text()
    assert page.file.stat().st_size < 2_000_000


def test_a_round_that_was_done_again_counts_as_it_was_last(tmp_path: Path) -> None:
    again = [client_event(0, 1, lambda_raw=7.0), round_event(1, accuracy={"feature_ensemble": 0.4})]
    events = [client_event(0, 0), round_event(0), client_event(0, 1), round_event(1)]
    folder = stored(tmp_path / "run", [*events, ResumeEvent(1, "round_00001"), *again])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "round", "round": 2, "accu')  # its writer was killed
    run = Stored.of(folder)
    found = series(run, None)
    assert found["rounds"]["accuracy"]["feature_ensemble"] == [0.9, 0.4]
    assert found["clients"]["lambda_raw"] == [[1.0], [7.0]]
    assert "round 2: more than once in metrics.jsonl" in words(run)
    assert "went on at round 2 from round_00001" in words(run)


def test_clients_that_took_no_part_and_rounds_without_evaluation_have_no_number(
    tmp_path: Path,
) -> None:
    events = [client_event(0, 0), round_event(0, accuracy={}), client_event(1, 1), round_event(1)]
    run = Stored.of(stored(tmp_path / "run", events))
    found = series(run, None)
    assert found["clients"]["columns"] == {"client": [0, 1]}
    assert found["clients"]["lambda_raw"] == [[1.0, None], [None, 2.0]]
    assert found["rounds"]["accuracy"]["feature_ensemble"] == [None, 0.9]
    assert accuracy([run]) is not None


def test_of_many_clients_the_page_has_quantiles(tmp_path: Path) -> None:
    events: list[Event] = [client_event(k, t) for t in range(21) for k in range(1000)]
    run = Stored.of(stored(tmp_path / "run", [*events, round_event(0)]))
    found = series(run, None)["clients"]
    assert found["columns"] == {"quantile": [0.0, 0.25, 0.5, 0.75, 1.0]}
    assert found["lambda_raw"][20] == [1.0, 250.75, 500.5, 750.25, 1000.0]
    (table,) = clients([run]).tables
    assert len(table.rows) == 100
    assert "100 of 1,000" in table.folded


def test_a_language_model_has_the_numbers_of_the_file(tmp_path: Path) -> None:
    events = [step_event(s, loss=4 - s / 200) for s in (100, 200, 300)]
    folder = stored(tmp_path / "lm", [*events, eval_event(300)], {"lm": {"steps": 300}})
    complete(folder, kind="lm", parameters=1234)
    found = Page(report([folder]))
    (run,) = found.data["runs"]
    assert run["kind"] == "lm"
    assert run["lm_step"]["loss"] == [r["loss"] for r in lines(folder, "lm_step")]
    assert run["lm_step"]["weight_rms"]["decay"] == [0.05] * 3
    assert run["lm_eval"]["perplexity"] == [12.18]
    assert {"2.5000", "12.2", "1,234"} <= set(found.text.split())
    assert "What the run remembers" in found.text


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
    (keep_checkpoint(folder, 4) / "server.safetensors").write_bytes(b"no")
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


# -- sections


def test_prototypes_on_their_anchors_are_a_simplex(whole: Path) -> None:
    found = geometry.geometry(Stored.of(whole))
    assert isinstance(found, geometry.Geometry)
    np.testing.assert_allclose(found.to_own, 1, atol=1e-6)
    np.testing.assert_allclose(geometry.apart(found.gram), -1 / 3, atol=1e-6)
    np.testing.assert_allclose(found.norms, 3, atol=1e-6)
    assert found.ideal == -1 / 3


def test_geometry_of_many_classes_is_drawn_small_and_absent_ones_are_left_out() -> None:
    points = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    points[7] = 0
    found = geometry.Geometry.of(points, torch.zeros(200, 64), "round_00001")
    assert found.to_anchors is None
    assert np.isnan(found.norms[7])
    assert len(geometry.apart(found.gram)) == 199 * 198
    assert len(geometry.draw(found)) < 600_000


def test_a_run_without_an_align_loss_has_no_lambda(tmp_path: Path) -> None:
    none = {"lambda_raw": 0.0, "lambda_effective": 0.0, "lambda_equilibrium": math.nan}
    run = Stored.of(stored(tmp_path / "run", [client_event(0, 0, **none), round_event(0)]))
    assert weights([run]) is None


def test_the_limit_is_of_learned_lambdas_only(tmp_path: Path) -> None:
    events = [client_event(0, 0), round_event(0)]
    fixed, learned = (
        Stored.of(stored(tmp_path / name, events, {"algorithm": {"name": name}}))
        for name in ("v6", "v14")
    )
    assert fixed.limit is None
    assert learned.limit == 50


def test_findings_say_in_which_rounds(tmp_path: Path) -> None:
    rates = [100.0, 1000.0, 1000.0, 300.0, 1000.0, 1000.0]
    exploded = [0, 0, 2, 3, 1, 0]
    rounds = [
        round_event(t, 7, samples_per_second=r, lambda_exploded=n)
        for t, (r, n) in enumerate(zip(rates, exploded, strict=True))
    ]
    top = client_event(4, 3, lambda_raw=99.5)
    run = Stored.of(stored(tmp_path / "run", [top, *rounds[:4], *rounds[5:]], V14))
    told = words(run)
    assert "above its limit 50 in rounds 3-4, of up to 3 clients; the largest was 99.5" in told
    assert "samples/s in round 4: down to 300" in told  # not the first round, which has set-up
    assert "no line of round 5" in told


def test_of_several_configurations_only_the_differences_are_side_by_side(tmp_path: Path) -> None:
    events = [client_event(0, 0), round_event(0)]
    configs = [{"algorithm": {"name": n}, "rounds": r} for n, r in (("v12", 7), ("v14", 7))]
    folders = [tmp_path / f"run{i}" for i in range(2)]
    runs = [Stored.of(stored(f, events, c)) for f, c in zip(folders, configs, strict=True)]
    assert settings.differences(runs) == {"algorithm.name": ["v12", "v14"]}
    apart, same = settings.configuration(runs).tables[:2]
    assert [list(row) for row in apart.rows] == [["algorithm.name", "v12", "v14"]]
    assert ["rounds", "7"] in same.rows
    assert same.folded
    changed = settings.configuration(runs[:1]).tables[0]
    usual = RunConfig()
    assert [list(row) for row in changed.rows] == [
        ["rounds", "7", str(usual.rounds)],
        ["algorithm.name", "v12", usual.algorithm.name],
    ]


def test_entropy_of_labels() -> None:
    found = entropies(np.array([[4.0, 0.0], [2.0, 2.0], [0.0, 0.0]]))
    np.testing.assert_allclose(found, [0, math.log(2), 0])


# -- which runs


def test_a_list_of_experiments_stands_for_its_runs(tmp_path: Path) -> None:
    rows = [{"name": n, "experiment": n, "seed": 0, "kind": "lm"} for n in ("a", "b")]
    stored(tmp_path / "list" / "a", [step_event(100)])
    (tmp_path / "list" / "suite.json").write_text(json.dumps({"runs": rows}))
    runs, left_out = collect([tmp_path / "list"])
    assert [run.name for run in runs] == ["a"]
    assert left_out == ["b is left out: it is waiting."]


def test_more_runs_than_colours_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"at most {MOST}"):
        collect([tmp_path / str(i) for i in range(MOST + 1)])


def test_the_page_lies_in_the_run_or_is_named_after_the_runs(whole: Path, tmp_path: Path) -> None:
    run = Stored.of(whole)
    assert place([whole], [run], None) == whole / "report" / "index.html"
    assert place([whole, whole], [run, run], None) == Path("runs/report-whole-whole.html")
    assert place([whole], [run], tmp_path) == tmp_path / "index.html"
    assert place([whole], [run], Path("x.html")) == Path("x.html")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (ranges([3, 1, 2, 9, 9]), "1-3, 9"),
        (ranges(range(0, 40, 2), 2), "0, 2 and 18 more"),
        (duration(59.96), "60.0 s"),
        (duration(200), "3 min 20 s"),
        (duration(7505), "2 h 5 min"),
        (size(3_192_964), "3.19 MB"),
        (size(12), "12 B"),
    ],
)
def test_words_for_numbers(said: str, wanted: str) -> None:
    assert said == wanted

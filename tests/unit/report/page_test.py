"""Does the page tell what the run's files say?"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.telemetry.events import Event, LMClientEvent, ResumeEvent
from launcher.report import geometry, settings
from launcher.report.accuracy import accuracy
from launcher.report.chosen import MOST, collect
from launcher.report.clients import clients
from launcher.report.lambdas import weights
from launcher.report.report import place, report
from launcher.report.series import series
from launcher.report.stored import Stored
from tests.unit.report.pages import V14, Page, complete, lines, stored, words
from tests.unit.telemetry.made_up import (
    client_event,
    eval_event,
    round_event,
    step_event,
)

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


def test_clients_have_a_column_for_their_own_samples_if_any_was_evaluated(tmp_path: Path) -> None:
    plain: list[Event] = [client_event(0), client_event(1), round_event(0)]
    (table,) = clients([Stored.of(stored(tmp_path / "plain", plain))]).tables
    assert "validation" not in table.titles
    both = {"feature_ensemble": 0.5, "validation_local": 0.75}
    some = [client_event(0, validation_accuracy=0.75), client_event(1)]
    run = Stored.of(stored(tmp_path / "some", [*some, round_event(0, accuracy=both)]))
    (table,) = clients([run]).tables
    assert table.titles[-1] == "validation"
    assert [row[-1] for row in table.rows] == ["75.0%", "-"]
    section = accuracy([run])
    assert section is not None
    assert "set aside" in section.about
    assert [row[0] for row in section.tables[0].rows] == ["feature ensemble", "validation local"]


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


def test_language_models_stand_side_by_side_with_their_clients_and_times(tmp_path: Path) -> None:
    folders = []
    for name, fall in (("slow", 400), ("fast", 100)):
        told = [
            LMClientEvent(s, k, loss=4 - s / fall + k, drift=0.01 * s)
            for s in (100, 200)
            for k in (0, 1)
        ]
        steps = [step_event(s, loss=4 - s / fall) for s in (100, 200)]
        folder = stored(tmp_path / name, [*steps, *told, eval_event(200)], {"lm": {"steps": 200}})
        folders.append(complete(folder, kind="lm", phase_seconds={"train": 2000.0 / fall}))
    found = Page(report(folders, tmp_path / "both.html"))
    assert [run["name"] for run in found.data["runs"]] == ["slow", "fast"]
    for title in ("memory of the runs", "clients over steps", "Seconds of the whole run by phase"):
        assert title in found.file.read_text()
    assert {"5.0", "20.0"} <= set(found.text.split())


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


def test_more_runs_than_fit_are_shown_where_to_look_instead(tmp_path: Path) -> None:
    for number in range(17):
        (tmp_path / f"run{number}").mkdir()
        (tmp_path / f"run{number}" / "metrics.jsonl").touch()
    for way_out, file in (("fewer of them$", "x"), ("fedcore lm compare", "suite.json")):
        (tmp_path / file).write_text('{"runs": []}')
        with pytest.raises(ConfigError, match=way_out):
            collect([*tmp_path.glob("run*")])
    (tmp_path / "table.md").touch()
    for paths in ([tmp_path], [*tmp_path.glob("run*")]):
        (tmp_path / "suite.json").unlink(missing_ok=True)
        with pytest.raises(ConfigError, match=f"{tmp_path}/table.md and in the pictures"):
            collect(paths)

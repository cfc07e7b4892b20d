"""Is the table of a comparison what its runs say, seed by seed?"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from fedcore.errors import ConfigError
from launcher.compare import as_json, check_words, groups, labels, mean_and_std
from launcher.compare_alpha import curves, plot_over_alpha
from launcher.compare_plot import plot_comparison
from launcher.compare_tables import latex, markdown, percent
from launcher.grid import Cell, grid
from launcher.sweep import Result, finished

ACCURACY = {"v4": (0.70, 0.60, 0.80), "v14": (0.75, 0.64, 0.86)}  # by seed


def cells(**axes: object) -> list[Cell]:
    return grid(["smoke"], Path("out"), **{"algorithms": ["v4", "v14"], "seeds": 3, **axes})  # type: ignore[arg-type]


def completed(cell: Cell) -> Result:
    """A run whose ensemble is two points better than its own read-out, one client better still."""
    own = ACCURACY[cell.config.algorithm.name][cell.config.seed]
    accuracy = {"iffi": own, "output_ensemble": own + 0.02, "averaged": 0.1, "local_max": 0.99}
    accuracy["validation_local"] = 0.999
    summary = {"test_accuracy": own, "accuracy": accuracy, "wall_seconds": 1.0}
    return Result(cell, "completed", 0, summary)


def diverged(cell: Cell) -> Result:
    return Result(cell, "diverged", 4, {"rounds": 2, "accuracy": {}, "test_accuracy": None})


@pytest.fixture
def results() -> list[Result]:
    return [completed(cell) for cell in cells()]


def test_mean_and_sample_deviation_over_seeds(results: list[Result]) -> None:
    (group,) = groups(results)
    values = group.rows[1].accuracy("own")
    known = ACCURACY["v14"]
    assert mean_and_std(values) == (statistics.fmean(known), statistics.stdev(known))
    assert percent(values) == "75.0 ± 11.0"
    assert percent({0: 0.5}) == "50.0"  # one seed has no spread


def test_differences_are_paired_by_seed(results: list[Result]) -> None:
    (group,) = groups(results)
    away = group.difference(group.rows[1], "own")
    assert away == pytest.approx({0: 0.05, 1: 0.04, 2: 0.06})
    assert percent(away, signed=True) == "+5.0 ± 1.0"  # though each row spreads by ten points


def test_two_configurations_of_one_name_are_two_rows(tmp_path: Path) -> None:
    for folder, count in (("one", 3), ("two", 4)):
        (tmp_path / folder).mkdir()
        text = (
            f"data: {{source: digits, store: {tmp_path}}}\nclients: {{count: 4, width: {count}}}\n"
        )
        (tmp_path / folder / "job.yaml").write_text(text)
    names = [str(tmp_path / folder / "job.yaml") for folder in ("one", "two")]
    found = labels(grid(names, Path("out"), algorithms=["v4"], seeds=1))
    assert found == [f"{name} v4" for name in names]


def test_a_dot_in_a_name_belongs_to_it() -> None:
    (cell,) = grid(["paper/cifar10_a0.05_v14"], Path("out"), seeds=1)
    assert cell.run_dir.name.startswith("cifar10_a0.05_v14-v14-")


@pytest.mark.parametrize(
    "summary",
    [
        {"status": "completed"},
        {"status": "completed", "exit_code": 0, "accuracy": {}},
        {"status": "completed", "test_accuracy": "high", "wall_seconds": 1.0, "accuracy": {}},
        {"status": "completed", "test_accuracy": 0.5, "wall_seconds": 1.0, "accuracy": {"a": None}},
    ],
)
def test_a_summary_that_lacks_a_number_is_not_finished(summary: dict, tmp_path: Path) -> None:
    (cell,) = grid(["smoke"], tmp_path, algorithms=["v4"], seeds=1)
    cell.run_dir.mkdir()
    (cell.run_dir / "summary.json").write_text(json.dumps(summary))
    assert finished(cell) is None


def test_a_seed_without_a_pair_is_left_out(results: list[Result]) -> None:
    results[1] = diverged(results[1].cell)
    (group,) = groups(results)
    assert sorted(group.difference(group.rows[1], "own")) == [0, 2]
    assert "2 of 3; seed 1 diverged (round 3)" in markdown([group], "own")


def test_the_best_readout_is_of_the_test_set_and_no_client_alone(
    results: list[Result],
) -> None:
    (group,) = groups(results)
    assert [row.best() for row in group.rows] == ["output_ensemble"] * 2
    assert group.rows[0].accuracy("best") == pytest.approx({0: 0.72, 1: 0.62, 2: 0.82})
    check_words(cells(), "validation_local", None)  # but may be asked for by name
    assert group.rows[0].accuracy("validation_local") == dict.fromkeys(range(3), 0.999)


def test_a_row_of_which_nothing_completed_stays_in_all_forms(tmp_path: Path) -> None:
    results = [diverged(c) if c.config.algorithm.name == "v4" else completed(c) for c in cells()]
    (group,) = groups(results)
    assert "| v4 | - | - | - |  | 0 of 3; seed 0 diverged (round 3)" in markdown([group], "own")
    assert as_json([group], "own")["groups"][0]["rows"][0]["own"]["mean"] is None
    assert plot_comparison([group], "own", tmp_path / "a.png").stat().st_size > 5_000


def test_the_rows_stand_as_given_and_the_baseline_can_be_named(results: list[Result]) -> None:
    (group,) = groups(results, baseline="v14")
    assert [row.label for row in group.rows] == ["v4", "v14"]
    assert group.baseline.label == "v14"


def test_each_alpha_is_a_group() -> None:
    found = groups([completed(c) for c in cells(alphas=[0.1, 0.5])])
    assert [g.data for g in found] == [
        "digits, dirichlet alpha 0.1, 4 clients",
        "digits, dirichlet alpha 0.5, 4 clients",
    ]


def test_configurations_on_the_same_data_share_a_group(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("{data: {source: digits, alpha: 0.5}, clients: {count: 4}, rounds: 1}")
    both = grid(["smoke", str(other)], Path("out"))
    assert labels(both) == ["smoke v14", "other v14"]
    assert len(groups([completed(c) for c in both])) == 1


def test_every_value_and_command_is_in_the_json(results: list[Result]) -> None:
    row = json.loads(json.dumps(as_json(groups(results), "own")))["groups"][0]["rows"][1]
    assert row["difference"]["by_seed"]["2"] == pytest.approx(0.06)
    assert row["runs"][0]["command"].startswith("python -m launcher.main --config smoke")
    assert row["runs"][0]["accuracy"]["averaged"] == 0.1


def test_unknown_words_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Try iffi"):
        check_words(cells(), "ifi", None)
    with pytest.raises(ConfigError, match="Try v14"):
        check_words(cells(), "own", "v15")
    check_words(cells(), "iffi", "v4")


def test_over_alpha_each_row_is_a_line_with_its_spread(tmp_path: Path) -> None:
    found = groups([completed(c) for c in cells(alphas=[0.5, 0.05])])
    lines = curves(found, "own")
    assert [point[0] for point in lines["v14"]] == [0.05, 0.5]
    assert lines["v14"][0][1:] == pytest.approx((75.0, 11.0), abs=0.01)
    picture = plot_over_alpha(found, "own", tmp_path / "alpha.pdf")
    assert picture is not None
    assert b"/Type0" in picture.read_bytes()  # fonts are embedded as TrueType


def test_where_alpha_is_one_or_something_else_differs_there_is_no_such_figure(
    tmp_path: Path,
) -> None:
    one = groups([completed(c) for c in cells()])
    other = tmp_path / "other.yaml"
    other.write_text("{data: {source: digits, alpha: 0.7}, clients: {count: 5}, rounds: 1}")
    two = groups([completed(c) for c in grid(["smoke", str(other)], Path("out"), seeds=1)])
    assert (curves(one, "own"), curves(two, "own")) == ({}, {})
    assert plot_over_alpha(one, "own", tmp_path / "alpha.pdf") is None


def test_the_table_for_latex_has_a_row_a_run_and_a_column_a_group() -> None:
    found = [completed(c) for c in cells(alphas=[0.1, 0.5])]
    found[0] = diverged(found[0].cell)
    lines = latex(groups(found), "own").splitlines()
    assert lines[1] == "% mean and sample standard deviation over up to 3 seed(s)"
    assert lines[2] == "% column 1: digits, dirichlet alpha 0.1, 4 clients"
    assert r"\begin{tabular}{lrr}" in lines
    assert r" & dirichlet alpha 0.1 & dirichlet alpha 0.5 \\" in lines
    assert r"v14 & 75.0 $\pm$ 11.0 & 75.0 $\pm$ 11.0 \\" in lines


def test_names_are_escaped_for_latex(tmp_path: Path) -> None:
    results = [completed(c) for c in grid(["smoke"], tmp_path, algorithms=["v4"], seeds=1)]
    other = [diverged(c) for c in grid(["smoke"], tmp_path, algorithms=["v12_log"], seeds=1)]
    assert r"v12\_log & - \\" in latex(groups([*results, *other]), "own").splitlines()

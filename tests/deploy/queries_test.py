"""What do panels show where runs share a name, went on on other ports, or have odd names?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import boards

pytestmark = pytest.mark.prometheus

MOMENT = boards.Moment(0, 600)
ODD = "sweep(1)/v14+b.2"
LABEL = {"run_status": "status", "lm_loss": "split", "run_info": 'kind="federated",algorithm'}
"""The label whose value follows a metric's name in `told`."""


def expressions(board: str, title: str, run: str = ".*") -> list[str]:
    """The queries of a panel, filled in; run: as Grafana puts it there."""
    values = {"run": run, "algorithm": ".*", "client": ".*"}
    found = [t["expr"] for p, t in boards.targets(boards.read(board)) if p["title"] == title]
    assert found, title
    return [boards.filled(expression, values, MOMENT) for expression in found]


def escaped(name: str) -> str:
    """One of many values of a variable, as Grafana puts it between the quotes of =~."""
    return re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", name)


def told(run: str, instance: str, **values: str) -> dict[str, str]:
    """Series of rank 0 and their values as promtool writes them, by `metric` or `metric__label`."""
    found = {f'up{{job="fedcore",run="{run}",rank="0",instance="{instance}"}}': "1x60"}
    for name, numbers in values.items():
        metric, _, value = name.partition("__")
        more = f',{LABEL[metric]}="{value}"' if value else ""
        labels = f'run="{run}",rank="0",instance="{instance}"{more}'
        found[f"fedcore_{metric}{{{labels}}}"] = numbers
    return found


def check(folder: Path, inputs: dict[str, str], expression: str, want: dict[str, float]) -> None:
    """Whether promtool finds these values after ten minutes."""
    test = {"expr": expression, "eval_time": "10m"}
    wanted: dict[str, Any] = {"exp_samples": [{"labels": k, "value": v} for k, v in want.items()]}
    series = [{"series": name, "values": values} for name, values in inputs.items()]
    group = {"interval": "10s", "input_series": series, "promql_expr_test": [test | wanted]}
    file = folder / "case.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "10s", "tests": [group]}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_runs_of_one_name_take_no_other_run_from_the_panels_side_by_side(tmp_path: Path) -> None:
    """Two algorithms of one name are an error of the whole query where nothing chooses one."""
    inputs = {
        **told("same", "a", run_info__v12="1x60", test_accuracy="0.5x60"),
        **told("same", "b", run_info__v14="1x60", test_accuracy="0.6x60"),
        **told("other", "c", run_info__v14="1x60", test_accuracy="0.7x60"),
    }
    [accuracy] = expressions("federation", "Best accuracy by run")
    check(
        tmp_path, inputs, f"max by (run) ({accuracy})", {'{run="same"}': 0.6, '{run="other"}': 0.7}
    )
    check(tmp_path, inputs, f"({accuracy}) > 0.65", {'{algorithm="v14",run="other"}': 0.7})


FIRST = {"start_time_seconds": "100x9 stale", "progress_ratio": "0.8x9 stale"}
FIRST |= {"lm_loss__held_out": "3x9 stale", "run_status__running": "1x8 0 stale"}
SECOND = {"start_time_seconds": "_x20 300x9 stale", "progress_ratio": "_x20 0.7x9 stale"}
SECOND |= {"lm_loss__held_out": "_x20 2x9 stale", "run_status__diverged": "_x20 0x9 stale"}


def test_a_run_that_is_over_is_shown_as_its_newest_attempt_was_last_seen(tmp_path: Path) -> None:
    """Not with the status, progress or loss of one on another port."""
    inputs = told("r", "a", **FIRST, run_status__diverged="0x8 1 stale")
    inputs |= told("r", "b", **SECOND, run_status__completed="_x20 0x8 1 stale")
    _, status, progress, _, _, loss = expressions("cluster", "Runs in the time shown")
    for expression, value in ((status, 2), (progress, 0.7), (loss, 2)):
        check(tmp_path, inputs, expression, {'{run="r"}': value})


def test_a_run_that_is_on_is_shown_as_it_is_now(tmp_path: Path) -> None:
    first = told("r", "a", **FIRST, run_status__diverged="0x8 1 stale")
    now = {"start_time_seconds": "_x20 300x40", "run_status__running": "_x20 1x40"}
    inputs = first | told("r", "b", **now, progress_ratio="_x20 0.5x40")
    _, status, progress, *_ = expressions("cluster", "Runs in the time shown")
    check(tmp_path, inputs, status, {'{run="r"}': 1})
    check(tmp_path, inputs, progress, {'{run="r"}': 0.5})


@pytest.mark.parametrize(
    ("board", "title", "run"),
    [
        ("federation", "Best accuracy", ODD),
        ("federation", "Best accuracy by run", ODD),
        ("cluster", "Ranks up", escaped(ODD)),
        ("cluster", "Runs in the time shown", escaped(ODD)),
        ("cluster", "Runs in the time shown", f"(plain|{escaped(ODD)})"),
    ],
)
def test_a_run_is_found_by_a_name_with_signs_of_regular_expressions(
    board: str, title: str, run: str, tmp_path: Path
) -> None:
    inputs = told(ODD, "a", run_info__v14="1x60", test_accuracy="1x60", ranks="1x60")
    inputs |= told(ODD, "a", start_time_seconds="100x60", progress_ratio="1x60")
    inputs |= told(ODD, "a", run_status__running="1x60")
    for expression in expressions(board, title, run)[:5]:
        check(tmp_path, inputs, f"count({expression})", {"{}": 1})


def test_the_link_of_a_run_carries_any_name() -> None:
    """Grafana leaves / and + as they are unless it is told otherwise, and + becomes a space."""
    [panel] = [p for p in boards.panels(boards.read("cluster")) if p["title"].startswith("Runs in")]
    looks = [p for o in panel["fieldConfig"]["overrides"] for p in o["properties"]]
    urls = [link["url"] for look in looks if look["id"] == "links" for link in look["value"]]
    assert len(urls) == 2
    assert all("var-run=${__value.raw:percentencode}&" in url for url in urls)

"""Do report, watch and the lists of runs stand whatever is in a run's files?"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcore.config import RunConfig
from fedcore.telemetry.history import History
from launcher import suite_results, watch
from launcher.report.chosen import listed
from launcher.report.figures import side_by_side
from launcher.report.notices import notices
from launcher.report.report import report
from launcher.report.series import series
from launcher.report.settings import configuration, environment
from launcher.report.stored import Stored
from launcher.rundir import RunDir
from launcher.suite_state import state
from launcher.suite_table import markdown
from launcher.watch_run import runs_of
from tests.unit.fuzz.hostile import REFUSED, bytes_changed, cases, json_changed, read, value_changed
from tests.unit.report.pages import complete, stored, with_everything
from tests.unit.telemetry.made_up import eval_event, step_event

pytestmark = pytest.mark.broad


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of three clients and two rounds, with everything in its directory."""
    folder = with_everything(tmp_path_factory.mktemp("runs") / "whole", rounds=2)
    accuracy = {"feature_ensemble": 0.5, "averaged": 0.4}
    facts = {"rounds": 2, "clients": 3, "seed": 0, "world_size": 2, "message": "", "samples": 9}
    more = {"phase_seconds": {"train": 1.0}, "identity": {"seed": 0}, "bytes_communicated": 5}
    return complete(folder, test_accuracy=0.5, accuracy=accuracy, wall_seconds=9, **facts, **more)


@pytest.fixture(scope="module")
def lm_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    events = [step_event(100), eval_event(100), step_event(200), eval_event(200)]
    config = {"lm": {"steps": 400}}
    folder = stored(tmp_path_factory.mktemp("runs") / "lm", events, config)  # type: ignore[arg-type]
    facts = {"status": "completed", "exit_code": 0, "kind": "lm", "steps": 400, "seed": 0}
    numbers = {"final_loss": 2.5, "perplexity": 12.0, "tokens": 4096, "parameters": 100}
    RunDir(folder).write_summary({**facts, **numbers, "phase_seconds": {"train": 3.0}})
    return folder


def shown(run: Path) -> Any:
    """What every reader makes of a run, short of drawing it."""
    state(run)
    RunDir(run).read_clients()
    found = Stored.of(run)
    notices(found)
    side_by_side([found])
    series(found, None)
    configuration([found])
    environment([found])
    return found


def watched(run: Path) -> str:
    """The picture of a run and the lines of its log, as far as they go."""
    out = io.StringIO()
    watch.main(run, out, 0.1, once=True)
    followed = watch.follower(run, lambda *known: watch.Lines(*known, out))
    followed.update()
    return out.getvalue() + watch.end_of(followed)


def mended(file: Path, seed: str, count: int, change: Callable[..., bytes], act: Any) -> set[bool]:
    """Whether `act` was refused, over that many changes of a file, which is then as it was."""
    good, met = file.read_bytes(), set()
    try:
        for draws in cases(seed, count):
            file.write_bytes(change(good, draws))
            met.add(read(act) is REFUSED)
    finally:
        file.write_bytes(good)
    return met


FILES = ["summary.json", "clients.json", "environment.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_json_never_breaks_a_reader(run: Path, name: str) -> None:
    count = 150 if name == "summary.json" else 50
    met = mended(run / name, name, count, json_changed, lambda: shown(run))
    assert met == {False}, "metrics.jsonl is whole, and so there is something to show"


def test_a_damaged_summary_of_a_language_model_never_breaks_a_reader(lm_run: Path) -> None:
    file = lm_run / "summary.json"
    assert mended(file, "lm", 150, json_changed, lambda: shown(lm_run)) == {False}


@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "metrics.jsonl"])
@pytest.mark.parametrize("kind", ["run", "lm_run"])
def test_a_live_picture_of_damaged_files_is_drawn(
    kind: str, name: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    change = json_changed if name == "summary.json" else bytes_changed
    mended(folder / name, f"live {kind}", 10, change, lambda: watched(folder))


@pytest.mark.parametrize("kind", ["run", "lm_run"])
def test_damaged_lines_never_break_a_reader(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)

    def change(text: bytes, draws: Any) -> bytes:
        if draws.random() < 0.3:
            return bytes_changed(text, draws)
        lines = text.splitlines()
        for _ in range(3):
            at = draws.randrange(len(lines))
            lines[at] = json.dumps(value_changed(json.loads(lines[at]), draws)).encode()
        return b"\n".join(lines)

    def act() -> None:
        shown(folder)
        if kind == "run":
            read(lambda: History.of(folder))

    mended(folder / "metrics.jsonl", f"lines {kind}", 120, change, act)


def test_a_damaged_configuration_never_breaks_a_reader(run: Path) -> None:
    assert mended(run / "config.yaml", "config", 30, bytes_changed, lambda: shown(run)) == {False}


def test_whole_pages_are_made_of_damaged_runs(run: Path, tmp_path: Path) -> None:
    for number, name in enumerate(["clients.json", "metrics.jsonl"]):
        change = bytes_changed if name == "metrics.jsonl" else json_changed
        out = tmp_path / f"{number}.html"
        mended(run / name, f"page {name}", 1, change, lambda out=out: report([run], out))


def test_a_damaged_list_is_read_or_told(lm_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "list"
    folder.mkdir()
    (folder / "a-s0").symlink_to(lm_run)
    row = {"name": "a-s0", "experiment": "a", "seed": 0, "kind": "lm", "status": "completed"}
    rows = [row | {"exit_code": 0, "changes": {}}, row | {"exit_code": None, "changes": {"x": 1}}]
    rows[1] |= {"name": "b-s0", "experiment": "b", "status": "waiting"}
    (folder / "suite.json").write_text(json.dumps({"runs": rows}))

    def act() -> None:
        assert all(folder in path.parents for path in runs_of(folder))
        read(lambda: listed(folder))
        markdown(suite_results.rows(folder))

    (folder / "a-s0").unlink()  # a link out of the list is no run of it
    (folder / "a-s0").mkdir()
    for name in ("metrics.jsonl", "config.yaml", "summary.json"):
        (folder / "a-s0" / name).write_bytes((lm_run / name).read_bytes())
    met = mended(folder / "suite.json", "list", 100, json_changed, act)
    assert met == {True, False}
    assert RunConfig.load(folder / "a-s0" / "config.yaml").lm is not None

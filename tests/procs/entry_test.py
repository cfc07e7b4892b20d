"""Is a run known again by its configuration and data, and is nothing else ever touched?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError
from fedcore.telemetry.jsonl import read_events
from launcher import cli
from launcher.entry import _look, identity
from launcher.report.report import report
from launcher.rundir import RunDir
from tests.procs import runs

pytestmark = pytest.mark.procs

SMOKE = ("--config", "smoke", "--set", "rounds=3")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A completed run of three rounds that kept all its checkpoints."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    runs.completed(0, folder, *SMOKE, "checkpoint.keep=9")
    return folder


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_run_keeps_who_holds_what(run_dir: Path) -> None:
    counts = np.array(RunDir(run_dir).read_clients())
    held = {
        r["client"]: r["samples"] for r in read_events(run_dir / "metrics.jsonl") if "client" in r
    }
    assert counts.shape == (4, 10)
    assert dict(enumerate(counts.sum(1))) == held


def test_a_real_run_has_a_page(run_dir: Path) -> None:
    data = report([run_dir]).read_text().partition('id="data">')[2].partition("</script>")[0]
    (run,) = json.loads(data)["runs"]
    told = runs.summary(run_dir)
    assert {n: v[-1] for n, v in run["rounds"]["accuracy"].items()} == told["accuracy"]
    assert run["prototypes"]["checkpoint"] == "round_00003"


def look(run_dir: Path, resume: str = "auto", *, attempt: int = 0, data: str = "", **keys: str):
    """What rank 0 decides about that directory."""
    overrides = [f"{k}={v}" for k, v in ({"rounds": "3"} | keys).items()]
    words = ["--config", "smoke", "--run-dir", str(run_dir), "--resume", resume]
    request = cli.parse([*words, "--set", *overrides])
    stored = runs.summary(run_dir)["identity"] if (run_dir / "summary.json").is_file() else {}
    sha = data or stored.get("data (sha256 of the shards)", KNOWN.get("sha", ""))
    KNOWN["sha"] = sha
    return _look(request, RunDir(run_dir), attempt, identity(request.config, sha))


KNOWN: dict[str, str] = {}  # the data of the finished run, once its summary is gone


def unfinish(run_dir: Path) -> None:
    look(run_dir)
    (run_dir / "summary.json").unlink()


def checkpoint_of(found: dict) -> str:
    return Path(found["checkpoint"]).name


def test_other_data_under_the_same_configuration_are_refused(run_dir: Path) -> None:
    with pytest.raises(ConfigError, match="sha256 of the shards"):
        look(run_dir, data="0" * 64)
    unfinish(run_dir)
    with pytest.raises(ConfigError, match="sha256 of the shards"):
        look(run_dir, data="0" * 64)


def test_a_damaged_newest_checkpoint_is_passed_over_and_told(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinish(run_dir)
    file = run_dir / "checkpoints" / "round_00003" / "server-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    assert checkpoint_of(look(run_dir)) == "round_00002"
    assert "passing over round_00003" in capsys.readouterr().err


def test_a_newest_checkpoint_of_a_newer_fedcore_is_not_replaced(run_dir: Path) -> None:
    (run_dir / "summary.json").unlink()
    index = run_dir / "checkpoints" / "round_00003" / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 99}))
    with pytest.raises(ConfigError, match="is of format 99"):
        look(run_dir)


def test_when_every_checkpoint_is_damaged_nothing_starts_in_silence(run_dir: Path) -> None:
    unfinish(run_dir)
    for index in (run_dir / "checkpoints").glob("*/index.json"):
        index.write_text("[]")
    with pytest.raises(ShardError, match="damaged index"):
        look(run_dir)


def test_a_run_started_from_dir_goes_on_from_its_own_checkpoints(
    run_dir: Path, tmp_path: Path
) -> None:
    unfinish(run_dir)
    elsewhere = tmp_path / "origin"
    shutil.copytree(run_dir, elsewhere)
    assert (
        checkpoint_of(look(run_dir, str(elsewhere / "checkpoints" / "round_00001")))
        == "round_00003"
    )
    fresh = tmp_path / "fresh"
    assert checkpoint_of(look(fresh, str(elsewhere))) == "round_00003"
    older = str(run_dir / "checkpoints" / "round_00001")  # of this run: going back is meant
    assert checkpoint_of(look(run_dir, older)) == "round_00001"
    assert checkpoint_of(look(run_dir, older, attempt=1)) == "round_00003"  # but only once


def test_resume_dir_does_not_overwrite_another_run(run_dir: Path) -> None:
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        look(run_dir, str(run_dir), seed="1")


@pytest.mark.parametrize("text", ["[1]", '{"a": 1}', "{", ""])
def test_a_damaged_summary_is_no_summary(run_dir: Path, text: str) -> None:
    unfinish(run_dir)
    (run_dir / "summary.json").write_text(text)
    words = ["--config", "smoke", "--run-dir", str(run_dir), "--set", "rounds=3"]
    request = cli.parse(words)
    found = _look(request, RunDir(run_dir), 0, identity(request.config, KNOWN["sha"]))
    assert checkpoint_of(found) == "round_00003"


def test_never_touches_only_run_directories(run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="other files lie in it"):
        look(other, "never")
    assert (other / "thesis.tex").is_file()
    assert look(run_dir, "never") == {}
    assert (tmp_path / "run.1" / "config.yaml").is_file()


def test_a_configuration_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("host: example\n")
    with pytest.raises(ConfigError, match="--run-dir"):
        look(tmp_path)


def test_an_empty_run_dir_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.parse(["--run-dir", ""])
    assert caught.value.code == 2
    assert "is empty" in capsys.readouterr().err


def test_data_count_by_content_not_by_place(tmp_path: Path) -> None:
    from launcher import prepare

    def save(path: Path, seed: int) -> RunConfig:
        path.parent.mkdir(exist_ok=True)
        x = np.random.default_rng(seed).integers(0, 256, (30, 4, 4), dtype=np.uint8)
        y = np.arange(30) % 3
        np.savez(path, x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
        prepare.content.cache_clear()
        data = {"source": "npz", "root": str(path), "store": str(tmp_path / "store")}
        return RunConfig.of({"clients": {"count": 2}, "data": data})

    first = prepare.make(save(tmp_path / "mine.npz", 0))
    assert prepare.make(save(tmp_path / "o" / "mine.npz", 0)) == first  # moved
    assert prepare.make(save(tmp_path / "mine.npz", 1)) != first  # edited in place


def test_bad_data_leave_a_summary_too(tmp_path: Path) -> None:
    out = runs.run(
        2, tmp_path / "run", "--config", "smoke", "--set", "data.source=npz", "data.root=no.npz"
    )
    assert runs.summary(tmp_path / "run")["exit_code"] == 3, out[-2000:]
    assert "no.npz" in json.dumps(runs.summary(tmp_path / "run"))

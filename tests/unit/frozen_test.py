"""Does a sweep or a job run the extensions that it was made with, whatever becomes of the files?"""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedcore.config import RunConfig
from launcher import cli, experiments, slurm, sweep
from launcher.commands import app
from launcher.frozen import cell_of_copies, keep, values_of_copies
from launcher.grid import Cell, grid
from launcher.prepare import settings, store_dir
from tests.unit.extensions_test import SCHEDULE

SOURCE = """from data_shards.sources import SOURCES, Source

def load(root, split):
    raise AssertionError("its folder is asked for, its samples are not")

SOURCES.add("copied", Source(load, kind="digits", about="mine", bundled=True))
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with nothing in it."""
    monkeypatch.chdir(tmp_path)


def own(name: str, text: str = "x = 1\n") -> Path:
    file = Path(f"{name}.py")
    file.write_text(text)
    return file


def cells_of(file: Path, out: Path = Path("runs/paper"), seeds: int = 2) -> list[Cell]:
    overrides = (f"extensions={file}", "clients.count=2", "rounds=1")
    return grid(["smoke"], out, seeds=seeds, overrides=overrides)


def test_a_copy_is_the_text_that_was_imported_and_is_made_once() -> None:
    file = own("first", "x = 'of the first'\n")
    cli.load_config("smoke", [f"extensions={file}"])
    file.write_text("x = 'edited'\n")
    (copy,) = keep([file], Path("out"))
    assert copy.read_text() == "x = 'of the first'\n"
    assert (copy.name, copy.parent.parent) == (file.name, Path("out/extensions"))
    made = copy.stat().st_mtime_ns
    assert keep([file], Path("out")) == [copy]
    assert copy.stat().st_mtime_ns == made
    copy.write_text("x = 'half")  # of a full disk
    keep([file], Path("out"))
    assert copy.read_text() == "x = 'of the first'\n"


def test_a_cell_of_copies_is_the_same_run_and_says_so_to_its_process() -> None:
    cell = cells_of(own("celled", SCHEDULE.format(name="celled")))[0]
    frozen = cell_of_copies(cell, Path("runs/paper"))
    (copy,) = frozen.config.extensions
    assert copy.is_relative_to("runs/paper/extensions")
    assert (frozen.run_dir, frozen.config.digest()) == (cell.run_dir, cell.config.digest())
    named = [word for word in frozen.command() if word.startswith("extensions=")]
    assert cli.load_config("smoke", frozen.overrides) == frozen.config
    assert len(named) == 1
    assert str(copy) in frozen.shown()


def test_shards_of_a_copied_loader_are_the_same() -> None:
    """The sweep has imported the file, and each of its runs imports the copy."""
    file = own("loader", SOURCE)
    config = cli.load_config("smoke", [f"extensions={file}", "data.source=copied"])
    (copy,) = keep(config.extensions, Path("out"))
    copied = config.model_copy(update={"extensions": (copy,)})
    assert "loader" in settings(config)
    assert store_dir(copied) == store_dir(config)
    gone = RunConfig(extensions=("gone.py",))  # of a source that is not in it: not read
    assert "loader" not in settings(gone)


class Process:
    """One that is over with code 7 when it is looked at."""

    returncode, pid = 7, 0

    def poll(self) -> int:
        return self.returncode


def test_an_edit_in_the_middle_of_a_sweep_reaches_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = SCHEDULE.format(name="edited_amid")
    file = own("edited", text)
    started: list[str] = []

    def start(cell: Cell) -> Process:
        (copy,) = cell.config.extensions
        started.append(copy.read_text())
        file.write_text("x = 'edited'\n")
        return Process()

    monkeypatch.setattr(sweep, "_start", start)
    results = sweep.sweep(cells_of(file), Path("runs/paper"), 1, io.StringIO())
    assert started == [text] * 2
    assert all("runs/paper/extensions/" in result.cell.shown() for result in results)


def test_a_sweep_says_at_once_what_it_is_about_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, stream = cells_of(own("said"), seeds=3), io.StringIO()
    done = sweep.Result(cells[0], "completed", 0, {"test_accuracy": 0.5, "wall_seconds": 2.0})
    monkeypatch.setattr(sweep, "finished", lambda c: done if c.config.seed == 0 else None)
    monkeypatch.setattr(sweep, "_start", lambda cell: Process())
    sweep.sweep(cells, Path("runs/paper"), 1, stream)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "3 runs in runs/paper: 1 done already, 1 at once"
    assert [line.partition(": ")[2].partition(";")[0] for line in lines[1:]] == [
        "accuracy 0.5000 in 2 s",
        *("begins", "failed (exit code 7)"),
        *("begins", "failed (exit code 7)"),
    ]


def test_a_dry_run_of_a_comparison_leaves_nothing() -> None:
    words = ("compare", "smoke", "--seeds", "1", "--set", f"extensions={own('dry')}", "--dry-run")
    found = CliRunner().invoke(app, [*words])
    assert found.exit_code == 0, found.output
    assert [p.name for p in Path.cwd().iterdir()] == ["dry.py"]


def test_a_list_of_copies_is_the_same_list() -> None:
    """Extensions of all, of one experiment, and several that are tried."""
    for name in "abcd":
        own(f"list_{name}", f"x = '{name}'\n")
    values = {
        **yaml.safe_load(cli.config_path("smoke").read_text()),
        "extensions": "list_a.py",
        "experiments": [
            {"name": "plain"},
            {"name": "own", "set": {"extensions": ["list_b.py"], "seed": 3}},
            {"name": "each", "each": {"extensions": ["list_c.py", "list_d.py"], "rounds": [1, 2]}},
        ],
    }
    found = values_of_copies(values, Path("out").absolute())
    before = experiments.resolve(values, [], Path("runs"))
    after = experiments.resolve(yaml.safe_load(yaml.safe_dump(found)), [], Path("runs"))
    assert len(after) == 6
    for one, other in zip(before, after, strict=True):
        assert (one.run_dir, one.config.digest()) == (other.run_dir, other.config.digest())
        assert all(f.is_relative_to(Path("out").absolute()) for f in other.config.extensions)


def test_a_job_runs_what_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be edited, moved or deleted while the job waits."""

    def answer(patience: float, *words: str) -> object:
        line = "" if words[0] == "squeue" else "41\n"
        return subprocess.CompletedProcess(words, 0, line, "")

    monkeypatch.setattr(slurm, "call", answer)
    text = SCHEDULE.format(name="queued")
    file = own("queued", text)
    keys = ("--set", f"extensions={file}", "--set", "clients.lr_schedule=queued")
    words = ("submit", "smoke", "--gpus-per-node", "0", "--no-report", *keys)
    printed = CliRunner().invoke(app, [*words, "--dry-run"]).output
    assert not Path("runs").exists()
    assert "queued.py" in printed
    found = CliRunner().invoke(app, [*words])
    assert found.exit_code == 0, found.output
    (run,) = Path("runs").resolve().iterdir()
    script = (run / "slurm" / "job.sbatch").read_text()
    _, _, config = script.partition("<<'END_OF_CONFIGURATION'\n")
    given = yaml.safe_load(config.partition("END_OF_CONFIGURATION\n")[0])
    (copy,) = given["extensions"]
    assert Path(copy).is_relative_to(run / "slurm" / "extensions")
    assert Path(copy).read_text() == text
    assert Path(copy).parent.stat().st_mode & 0o077 == 0
    config = cli.load_config("smoke", [*keys[1::2][1:], f"extensions={copy}"])
    assert run.name.endswith(config.digest())

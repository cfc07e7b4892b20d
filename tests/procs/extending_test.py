"""Do the examples of docs/extending.md work as they stand there?"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.procs.runs import LIMIT, ROOT

pytestmark = pytest.mark.procs
TEXT = (ROOT / "docs" / "extending.md").read_text()
EXAMPLES = dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.S))
COMMANDS = re.findall(r"^torchrun --nproc_per_node=2 launcher/main.py (.*)$", TEXT, re.M)


PLACES = {  # in the package, each is found by being there
    "mine.py": "fedcore/algorithms",
    "pull.py": "fedcore/algorithms",
    "margin.py": "fedcore/algorithms",
    "late.py": "fedcore/algorithms",
    "mlp.py": "fedcore/models",
    "halves.py": "data_shards/sources",
}
NAMES = """
from fedcore.algorithms import ALGORITHMS
from fedcore.models import MODELS
from fedcore.objective.terms import TERMS
from fedcore.schedule import SCHEDULES
from data_shards.sources import SOURCES
assert {"mine", "v4_margin", "pulled"} <= set(ALGORITHMS.names())
assert "prototype_margin" in TERMS.names() and "late" in SCHEDULES.names()
assert "mlp" in MODELS.names() and "halves" in SOURCES.names()
"""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user's with all example files in it."""
    folder = tmp_path_factory.mktemp("beside")
    for name, code in EXAMPLES.items():
        (folder / name).write_text(code)
    return folder


def python(folder: Path, path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with those words, in that folder, with the packages of that path."""
    env = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=env, cwd=folder, timeout=LIMIT
    )


def test_there_is_an_example_of_each_kind() -> None:
    assert EXAMPLES.keys() == PLACES.keys()
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("words", COMMANDS)
def test_an_example_runs(words: str, beside: Path, tmp_path: Path) -> None:
    short = ["rounds=1", "clients.local_epochs=1", "metrics.enabled=false"]
    own = ["--run-dir", str(tmp_path), "--set", *short]
    done = python(beside, ROOT, "-m", "launcher.main", *shlex.split(words), *own)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "completed"
    (kept,) = (tmp_path / "extensions").iterdir()
    assert kept.read_text() == EXAMPLES[kept.name]


def test_the_law_tests_take_them_up_and_pass(beside: Path) -> None:
    files = [word for name in EXAMPLES for word in ("--extension", str(beside / name))]
    chosen = ["-k", "mine or pulled or margin or late or mlp or halves", "-p", "no:cacheprovider"]
    done = python(ROOT, ROOT, "-m", "pytest", "tests/law", *files, *chosen)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count(".") > 25


def test_in_the_package_a_file_is_found_by_being_there(tmp_path: Path) -> None:
    for package in ("fedcore", "data_shards"):
        ignore = shutil.ignore_patterns("store", "__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignore)
    for name, place in PLACES.items():
        assert not (tmp_path / place / name).exists(), f"{name} exists already"
        (tmp_path / place / name).write_text(EXAMPLES[name])
    done = python(tmp_path, tmp_path, "-c", NAMES)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_run_goes_on_with_the_same_file_only_and_is_exported_with_its_copy(
    beside: Path, tmp_path: Path
) -> None:
    file, run = tmp_path / "mlp.py", tmp_path / "run"
    file.write_text(EXAMPLES["mlp.py"])
    words = ["-m", "launcher.main", "--config", "smoke", "--run-dir", str(run), "--set"]
    words += [f"extensions={file}", "model.name=mlp", "metrics.enabled=false"]
    assert python(beside, ROOT, *words).returncode == 0
    (run / "summary.json").unlink()
    file.write_text(EXAMPLES["mlp.py"].replace("128", "64"))
    other = python(beside, ROOT, *words)
    assert other.returncode == 2
    assert "extension mlp.py (sha256)" in other.stderr
    file.unlink()
    app = "from launcher.commands import app; app()"
    out = python(beside, ROOT, "-c", app, "checkpoint", "export", str(run), "--out", str(file))
    assert out.returncode == 0, out.stderr

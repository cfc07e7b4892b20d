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
EXAMPLES = re.findall(r"`([\w/]+\.py)`:\n\n```python\n(.*?)```", TEXT, re.S)
COMMANDS = re.findall(r"^torchrun --nproc_per_node=2 launcher/main.py (.*)$", TEXT, re.M)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with all example files in it."""
    folder = tmp_path_factory.mktemp("extended")
    for package in ("fedcore", "launcher", "data_shards"):
        ignore = shutil.ignore_patterns("store", "__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignore)
    for path, code in EXAMPLES:
        assert not (folder / path).exists(), f"{path} exists already"
        (folder / path).write_text(code)
    return folder


def test_there_is_an_example_of_each_kind() -> None:
    assert len(EXAMPLES) == 5
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("words", COMMANDS)
def test_an_example_runs(words: str, extended: Path, tmp_path: Path) -> None:
    short = ["rounds=1", "clients.local_epochs=1", "metrics.enabled=false"]
    own = ["--run-dir", str(tmp_path), "--set", *short]
    command = [sys.executable, "-m", "launcher.main", *shlex.split(words), *own]
    env = {**os.environ, "PYTHONPATH": str(extended), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=extended, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "completed"

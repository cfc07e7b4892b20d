"""Does the Dockerfile say what the run needs? Its command is run here, without Docker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.stack import DEPLOY
from tests.procs import runs

FOLDER = DEPLOY / "docker"
# instructions: continuation lines joined, comments left out
TEXT = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.M))
LINES = [tuple(line.split(None, 1)) for line in TEXT.splitlines() if line.strip()]


def said(instruction: str) -> list[str]:
    return [words for name, words in LINES if name == instruction]


def command() -> list[str]:
    """ENTRYPOINT as it is, but with the Python of these tests, and without what passes signals."""
    tini, dashes, python, *words = json.loads(said("ENTRYPOINT")[0])
    assert (tini, dashes, python) == ("tini", "--", "python")
    return [sys.executable, *words]


def test_only_instructions_that_docker_knows() -> None:
    known = "FROM LABEL RUN ENV WORKDIR ARG COPY USER VOLUME STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD"
    assert {name for name, _ in LINES} == set(known.split())


def test_the_user_is_a_number_and_owns_the_volumes() -> None:
    (user,) = said("USER")
    assert user.isdigit()
    assert user != "0"
    (added,) = [words for words in said("RUN") if "useradd" in words]
    assert f"--uid {user}" in added
    (volumes,) = said("VOLUME")
    folders = [place.removeprefix("/fedcore/") for place in json.loads(volumes)]
    assert said("WORKDIR") == ["/fedcore"]
    assert re.search(rf"chown fedcore {' '.join(folders)}$", added.strip())


def test_the_context_has_what_is_copied_and_no_more() -> None:
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {word.removeprefix("./") for words in said("COPY") for word in words.split()[:-1]}
    assert copied == let_in


def test_dependencies_are_read_from_the_project(tmp_path: Path) -> None:
    (line,) = [words for words in said("RUN") if "tomllib" in words]
    python = re.search(r"python (-c '.*?') >", line)
    assert python
    shell = f"cd {runs.ROOT} && {sys.executable} {python[1]}"
    out = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
    project = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())["project"]
    assert out.splitlines() == project["dependencies"]


@pytest.mark.procs
def test_the_container_ends_with_the_code_of_its_run() -> None:
    """torchrun by itself would end with 1."""
    words = ["--nproc_per_node=1", "launcher/main.py", "--config", "no_such"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command(), *words], capture_output=True, text=True, cwd=runs.ROOT, env=env, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert "no_such" in done.stderr
    assert "Traceback" not in done.stderr

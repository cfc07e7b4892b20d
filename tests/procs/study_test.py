"""Is the report of a real study one file that needs nothing else?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.study.lambda_study import VERSIONS
from tests.procs import runs

pytestmark = pytest.mark.procs


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study on as little data as there is."""
    out = tmp_path_factory.mktemp("study")
    words = ["--quick", "--out", str(out), "--set", "rounds=2", "--set", "clients.count=2"]
    command = [sys.executable, "-m", "launcher.commands", "study", "lambda", *words]
    done = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_page_needs_no_network(study: Path) -> None:
    page = (study / "index.html").read_text()
    assert not re.search(r"https?:|src=\"(?!data:)|href=\"(?!#)|@import|url\(", page)


def test_every_version_has_its_picture_and_command(study: Path) -> None:
    page = (study / "index.html").read_text()
    assert page.count('src="data:image/svg+xml;base64,') == len(VERSIONS) + 1
    for name in VERSIONS:
        assert f"algorithm.name={name} " in page
        assert f"<h3>{name}</h3>" in page


def test_the_findings_stand_beside_it(study: Path) -> None:
    found = json.loads((study / "findings.json").read_text())
    assert {f["verdict"] for f in found["findings"]} <= {"seen", "not seen", "no data"}
    assert list(found["versions"]) == list(VERSIONS)
    assert len(found["runs"]) == len(VERSIONS)

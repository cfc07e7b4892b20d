"""A whole run and its page, once for each file of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.report.report import report
from launcher.rundir import RunDir
from tests.unit.report.pages import V14, Page, complete, keep_checkpoint, stored
from tests.unit.telemetry.made_up import (
    whole_run,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of three clients and four rounds, with everything in its directory."""
    folder = stored(tmp_path_factory.mktemp("runs") / "whole", whole_run(3, 4), V14)
    RunDir(folder).write_clients(4, [[5, 0, 0, 3], [0, 9, 0, 0], [1, 1, 1, 1]])
    (folder / "environment.json").write_text('{"python": "3.11", "command": ["main.py", "a b"]}')
    keep_checkpoint(folder, 4)
    return complete(folder, test_accuracy=0.5, accuracy={"feature_ensemble": 0.5}, wall_seconds=9)


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page(report([whole]))

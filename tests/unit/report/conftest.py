"""A whole run and its page, once for each file of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.report.report import report
from tests.unit.report.pages import Page, complete, with_everything


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of three clients and four rounds, with everything in its directory."""
    folder = with_everything(tmp_path_factory.mktemp("runs") / "whole", rounds=4)
    return complete(folder, test_accuracy=0.5, accuracy={"feature_ensemble": 0.5}, wall_seconds=9)


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page(report([whole]))

"""The run that those with faults are compared with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.procs import runs
from tests.procs.after import WORDS, proof


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run leaves to which nothing happens."""
    return proof(runs.completed(0, tmp_path_factory.mktemp("undisturbed") / "run", *WORDS))

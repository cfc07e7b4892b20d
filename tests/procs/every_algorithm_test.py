"""Does every declared algorithm give the same bits on 1 and 3 ranks, and after a stop?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedcore.algorithms import ALGORITHMS
from tests.procs import runs

pytestmark = pytest.mark.procs
SCRIPT = str(Path(__file__).with_name("every_algorithm.py"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What the script found, by number of ranks."""
    folder = tmp_path_factory.mktemp("every")
    raw = load_digits()
    images = np.rint(raw.images * (255 / 16)).astype(np.uint8)[:, None]
    file = folder / "tiny.npz"
    np.savez(
        file,
        x_train=images[:60],
        y_train=raw.target[:60],
        x_test=images[60:100],
        y_test=raw.target[60:100],
    )
    return {
        ranks: runs.found(SCRIPT, ranks, file, folder / "store", folder / str(ranks))
        for ranks in (1, 3)
    }


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_one_and_three_ranks_agree(name: str, found: dict[int, dict[str, Any]]) -> None:
    assert found[1][name]["whole"] == found[3][name]["whole"]
    assert "validation_local" in found[1][name]["whole"][2]


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_a_stop_and_a_resume_change_nothing(name: str, found: dict[int, dict[str, Any]]) -> None:
    for ranks in (1, 3):
        assert found[ranks][name]["resumed"] == found[ranks][name]["whole"]
        assert found[ranks][name]["signed again"] == found[ranks][name]["whole"]


def test_algorithms_differ(found: dict[int, dict[str, Any]]) -> None:
    """Those that train alike are few: read-outs and fusions do not move clients."""
    hashes = {name: both["whole"][1] for name, both in found[1].items()}
    alike = [{"v4", "fafi"}, {"ensemble", "otfusion"}]
    for name, value in hashes.items():
        twins = {other for other, own in hashes.items() if own == value} - {name}
        assert all({name, twin} in alike for twin in twins), (name, twins)

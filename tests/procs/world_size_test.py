"""Do 1, 2, 4, 5 and 8 ranks give the same bits, also after a rank was killed?"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.procs import runs

pytestmark = pytest.mark.procs

ONE_SHOT = ("--config", "smoke", "--set", "clients.count=6", "data.alpha=0.3", "rounds=4")
ONE_SHOT += ("clients.local_epochs=4",)
FEDAVG = (*ONE_SHOT, "algorithm.name=fedavg", "clients.per_round=4")
LANES = (*ONE_SHOT, "clients.width=3", "clients.per_round=5")  # fp32: lanes round by their size
FORGETTING = (*FEDAVG, "clients.keep_models=false")
PROOF = ("prototypes_sha256", "parameters_sha256", "accuracy", "lambda_effective")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], dict]:
    """The runs in one plain process."""
    folder = tmp_path_factory.mktemp("alone")
    return {
        words: runs.completed(0, folder / str(i), *words)
        for i, words in enumerate((ONE_SHOT, FEDAVG, LANES, FORGETTING))
    }


@pytest.mark.parametrize("ranks", [5])
def test_lanes_have_the_same_company_on_any_number_of_ranks(
    ranks: int, alone: dict, tmp_path: Path
) -> None:
    found = runs.completed(ranks, tmp_path, *LANES)
    assert {k: found[k] for k in PROOF} == {k: alone[LANES][k] for k in PROOF}


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("words", [ONE_SHOT, FEDAVG], ids=["one_shot", "fedavg"])
def test_world_sizes_agree(ranks: int, words: tuple[str, ...], alone: dict, tmp_path: Path) -> None:
    """8 ranks for 6 clients also shows that idle ranks work."""
    found = runs.completed(ranks, tmp_path, *words)
    assert found["world_size"] == ranks
    assert {k: found[k] for k in PROOF} == {k: alone[words][k] for k in PROOF}


def test_models_that_are_not_kept_and_clients_on_disk_agree(alone: dict, tmp_path: Path) -> None:
    """The averaged model is the one of clients that are kept; others have nothing to report."""
    found = runs.completed(3, tmp_path / "forgetting", *FORGETTING)
    assert {k: found[k] for k in PROOF} == {k: alone[FORGETTING][k] for k in PROOF}
    assert found["test_accuracy"] == alone[FEDAVG]["test_accuracy"]
    disk = runs.completed(2, tmp_path / "disk", *ONE_SHOT, "clients.store=disk")
    assert {k: disk[k] for k in PROOF} == {k: alone[ONE_SHOT][k] for k in PROOF}


def test_a_killed_rank_and_a_resume_on_other_ranks_agree(alone: dict, tmp_path: Path) -> None:
    process = runs.start(2, tmp_path, *FEDAVG)
    latest = tmp_path / "checkpoints" / "latest"
    runs.wait_for(latest.is_file, "a first checkpoint")
    os.kill(runs.rank_pids(process.pid)[1], signal.SIGKILL)
    out = runs.finish(process, limit=60)
    broken = runs.summary(tmp_path)
    assert broken["status"] == "failed", out[-3000:]
    assert broken["exit_code"] == 5
    assert "run the same command again" in out
    found = runs.completed(4, tmp_path, *FEDAVG)
    assert {k: found[k] for k in PROOF} == {k: alone[FEDAVG][k] for k in PROOF}
    assert "resume" in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("words", [("clients.count=1",), ("clients.per_round=1",)])
def test_a_single_client_in_a_round_trains_on_any_number_of_ranks(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    short = ("--config", "smoke", "--set", *words)
    one, two = runs.completed(0, tmp_path / "1", *short), runs.completed(2, tmp_path / "2", *short)
    assert {k: one[k] for k in PROOF} == {k: two[k] for k in PROOF}

"""The same path on CUDA devices: one device per rank, NCCL between them. Run with `make gpu`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.procs import runs

pytestmark = pytest.mark.gpu

WORDS = ("--config", "smoke", "--set", "rounds=2")


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("cpu")
    return runs.completed(0, folder, *WORDS, "--set", "device=cpu", "precision=fp64")


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
def test_cuda_trains_as_the_cpu_does(precision: str, on_cpu: dict, tmp_path: Path) -> None:
    found = runs.completed(0, tmp_path, *WORDS, "--set", "device=cuda", f"precision={precision}")
    tolerance = 0.02 if precision == "fp64" else 0.1
    for name, accuracy in on_cpu["accuracy"].items():
        assert found["accuracy"][name] == pytest.approx(accuracy, abs=tolerance), name


def test_all_devices_agree_bit_for_bit(tmp_path: Path) -> None:
    alone = runs.completed(0, tmp_path / "one", *WORDS, "--set", "device=cuda")
    ranks = torch.cuda.device_count()
    together = runs.completed(ranks, tmp_path / "all", *WORDS, "--set", "device=cuda")
    for proof in ("prototypes_sha256", "parameters_sha256"):
        assert together[proof] == alone[proof]


def test_lanes_on_cuda_agree_to_tolerance(tmp_path: Path) -> None:
    words = (*WORDS, "--set", "device=cuda", "precision=fp64")
    alone = runs.completed(0, tmp_path / "one", *words)
    lanes = runs.completed(0, tmp_path / "four", *words, "clients.width=4")
    for name, accuracy in alone["accuracy"].items():
        assert lanes["accuracy"][name] == pytest.approx(accuracy, abs=0.02), name


def test_more_ranks_than_devices_is_refused(tmp_path: Path) -> None:
    ranks = torch.cuda.device_count() + 1
    out = runs.run(ranks, tmp_path, *WORDS, "--set", "device=cuda")
    assert "one device per rank" in out

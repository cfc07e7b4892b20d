"""Is the operator told who can read the metrics?"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

from fedcore.config import MetricsConfig, RunConfig
from fedcore.server.comm import LocalComm
from launcher.reporting import federated_info, lm_info, unreachable_or_open
from launcher.rundir import RunDir
from launcher.world import Place, World


@pytest.mark.parametrize(
    ("keys", "nodes", "words"),
    [
        ({}, {"n1"}, None),
        ({}, {"n1", "n2"}, "metrics.bind=0.0.0.0"),
        ({"bind": "0.0.0.0"}, {"n1"}, "metrics.credentials asks"),
        ({"bind": "::", "credentials": "f"}, {"n1", "n2"}, "in the clear"),
        ({"bind": "10.0.0.7", "credentials": "f", "certificate": "c"}, {"n1", "n2"}, None),
    ],
)
def test_who_can_read_the_metrics_is_told(
    keys: dict[str, str], nodes: set[str], words: str | None
) -> None:
    told = list(unreachable_or_open(MetricsConfig(**keys), nodes))
    assert len(told) == (words is not None)
    assert words is None or words in told[0]


@pytest.mark.parametrize(
    ("algorithm", "weighting"),
    [("v14", "learned"), ("v7", "fixed"), ("v4", "none"), ("fedavg", "none")],
)
def test_run_info_says_who_moves_lambda(algorithm: str, weighting: str) -> None:
    config = RunConfig.of({"algorithm": {"name": algorithm}})
    assert federated_info(config)["weighting"] == weighting


def test_the_text_of_a_language_model_is_named_without_its_place() -> None:
    config = RunConfig.of({"lm": {"data": {"text": str(Path("/secret/place/book.txt"))}}})
    assert lm_info(config)["dataset"] == "book.txt"


def test_a_node_is_called_as_slurm_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    place, device = Place.of({}), torch.device("cpu")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert World(place, device, LocalComm()).node == socket.gethostname()
    monkeypatch.setenv("SLURMD_NODENAME", "gpu[07]")
    assert World(place, device, LocalComm()).node == "gpu[07]"


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("runs/default-v14-s0", "default-v14-s0"),
        ("runs/a/x", "a/x"),
        ("runs/deep/list/x-s0", "deep/list/x-s0"),
        ("elsewhere/x", "x"),
        ("listed/x-s0", "listed/x-s0"),
    ],
)
def test_runs_of_one_name_have_labels_of_their_own(tmp_path: Path, place: str, label: str) -> None:
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "suite.json").write_text("{}")
    assert RunDir(tmp_path / place).label == label

"""Does Prometheus find each rank where it is?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedcore.telemetry.targets import reachable, write_targets


def test_one_target_a_rank_with_text_labels(tmp_path: Path) -> None:
    path = tmp_path / "prometheus_targets.json"
    write_targets(path, [(1, "n2", "0.0.0.0:9401"), (0, "n1", "127.0.0.1:9400")], "mine")
    assert json.loads(path.read_text()) == [
        {"targets": ["127.0.0.1:9400"], "labels": {"run": "mine", "rank": "0", "node": "n1"}},
        {"targets": ["n2:9401"], "labels": {"run": "mine", "rank": "1", "node": "n2"}},
    ]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no half file beside it


def test_no_ranks_take_all_targets_out(tmp_path: Path) -> None:
    path = tmp_path / "prometheus_targets.json"
    write_targets(path, [(0, "n1", "127.0.0.1:9400")], "mine")
    write_targets(path, [], "mine")
    assert json.loads(path.read_text()) == []


@pytest.mark.parametrize(
    ("address", "node", "target"),
    [
        ("0.0.0.0:9400", "n1", "n1:9400"),
        ("[::]:9400", "n1", "n1:9400"),
        (":9400", "n1", "n1:9400"),
        ("[::1]:9400", "n1", "[::1]:9400"),
        ("0.0.0.0:9400", "2001:db8::7", "[2001:db8::7]:9400"),
        ("10.0.0.7:9400", "n1", "10.0.0.7:9400"),
        ("n1.local:9400", "n1", "n1.local:9400"),
    ],
)
def test_target_can_be_reached_from_outside(address: str, node: str, target: str) -> None:
    assert reachable(address, node) == target

"""Does Prometheus find each rank where it is?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedcore.telemetry.targets import Listing, is_loopback, reachable, write_targets


def test_one_target_a_rank_with_text_labels(tmp_path: Path) -> None:
    path = tmp_path / "prometheus_targets.json"
    write_targets(path, [(1, "n2", "n2:9401"), (0, "n1", "127.0.0.1:9400")], "mine")
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


def test_a_listing_is_in_the_run_and_in_the_folder_of_all_runs_until_it_is_withdrawn(
    tmp_path: Path,
) -> None:
    folder, addresses = tmp_path / "targets", [(0, "n1", "127.0.0.1:9400")]
    one = Listing(tmp_path / "one.json", folder, addresses, "same")
    other = Listing(tmp_path / "other.json", folder, addresses, "same")
    assert len(list(folder.glob("same-*.json"))) == 2, "two runs of one name do not share a file"
    assert json.loads((tmp_path / "one.json").read_text())[0]["labels"]["run"] == "same"
    one.withdraw()
    assert json.loads((tmp_path / "one.json").read_text()) == []
    assert len(list(folder.iterdir())) == 1
    other.withdraw()
    other.withdraw()  # gone already
    assert not list(folder.iterdir())


def test_no_folder_is_no_second_file(tmp_path: Path) -> None:
    Listing(tmp_path / "own.json", None, [], "mine").withdraw()
    assert [p.name for p in tmp_path.iterdir()] == ["own.json"]


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1", "localhost", "127.3.4.5"])
def test_loopback_is_this_machine_alone(bind: str) -> None:
    assert is_loopback(bind)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.1", "node7"])
def test_all_else_is_beyond_it(bind: str) -> None:
    assert not is_loopback(bind)

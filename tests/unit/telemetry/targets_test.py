"""Does Prometheus find each rank where it is?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedcore.telemetry.targets import Listing, is_loopback, place_of, reachable, write_targets


def test_one_target_a_rank_with_text_labels(tmp_path: Path) -> None:
    path = tmp_path / "prometheus_targets.json"
    write_targets(path, [(1, "n2", "n2:9401"), (0, "n1", "127.0.0.1:9400")], "mine", "abcd")
    labels = [
        {"run": "mine", "rank": rank, "node": node, "__param_run": "abcd"}
        for rank, node in (("0", "n1"), ("1", "n2"))
    ]
    assert json.loads(path.read_text()) == [
        {"targets": ["127.0.0.1:9400"], "labels": labels[0]},
        {"targets": ["n2:9401"], "labels": labels[1]},
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
    files = [tmp_path / name / "same.json" for name in ("one", "other")]
    for file in files:
        file.parent.mkdir()
    one, other = (Listing(file, folder, addresses, "list/same") for file in files)
    found = [json.loads(f.read_text())[0]["labels"] for f in folder.glob("list-same-*.json")]
    assert [labels["run"] for labels in found] == ["list/same"] * 2
    assert {labels["__param_run"] for labels in found} == {place_of(f.parent) for f in files}
    one.withdraw()
    assert json.loads(files[0].read_text()) == []
    assert len(list(folder.iterdir())) == 1
    other.withdraw()
    other.withdraw()  # gone already
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_does_not_cost_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    listing = Listing(tmp_path / "own.json", tmp_path / "file", [], "mine")
    assert str(tmp_path / "file") in listing.problem
    assert json.loads((tmp_path / "own.json").read_text()) == []
    listing.withdraw()
    assert (tmp_path / "file").exists()


def test_no_folder_is_no_second_file(tmp_path: Path) -> None:
    Listing(tmp_path / "own.json", None, [], "mine").withdraw()
    assert [p.name for p in tmp_path.iterdir()] == ["own.json"]


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1", "localhost", "127.3.4.5"])
def test_loopback_is_this_machine_alone(bind: str) -> None:
    assert is_loopback(bind)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.1", "node7"])
def test_all_else_is_beyond_it(bind: str) -> None:
    assert not is_loopback(bind)

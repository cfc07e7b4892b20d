"""Is a checkpoint complete or absent, and readable by any set of ranks?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedcore.checkpoint import Checkpoint, Checkpoints, candidates, flatten_state
from fedcore.errors import ConfigError, ShardError, StorageError
from fedcore.server.comm import LocalComm
from tests.toy import ToyData, toy_group, toy_order

DATA = ToyData([8, 6, 5])


def trained(clients: list[int]):
    group = toy_group("v14", clients, DATA, carry_momentum=True)
    group.train(toy_order("v14", 0, clients))
    return group


def save(folder: Path, round: int, clients: list[int] | None = None, keep: int = 2) -> Path:
    group = trained(clients or [0, 1, 2])
    checkpoints = Checkpoints(folder, LocalComm(), keep)
    server = {"prototypes": torch.full((4, 6), float(round))}
    own = flatten_state(group.state)
    return checkpoints.save(round, {"server": server}, {"note": 1.5}, group.clients, own)


def test_clients_come_back_in_any_company(tmp_path: Path) -> None:
    save(tmp_path, 1)
    checkpoint = Checkpoint(candidates(tmp_path)[0])
    for clients in ([2, 0], [1], []):
        fresh, wanted = toy_group("v14", clients, DATA), trained(clients)
        checkpoint.load_into(fresh.state, fresh.clients)
        for group in ("params", "buffers", "memory"):
            for name, value in getattr(wanted.state, group).items():
                if clients:
                    assert torch.equal(getattr(fresh.state, group)[name], value), name
        assert torch.equal(fresh.state.log_var, wanted.state.log_var)
        assert torch.equal(fresh.state.steps, wanted.state.steps)
    assert checkpoint.facts == {"note": 1.5, "round": 1}
    assert checkpoint.shared("server")["prototypes"].unique().tolist() == [1.0]


def test_only_the_newest_are_kept_and_latest_points_at_the_last(tmp_path: Path) -> None:
    for round in range(1, 5):
        save(tmp_path, round)
    assert sorted(p.name for p in tmp_path.glob("round_*")) == ["round_00003", "round_00004"]
    assert (tmp_path / "latest").read_text() == "round_00004"


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    suffixes = {file.suffix for file in save(tmp_path, 1).iterdir()}
    assert suffixes == {".json", ".safetensors"}


def test_a_write_that_fails_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcore.checkpoint.save_file", full)
    with pytest.raises(StorageError, match="No space left"):
        save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["round_00001"]
    assert (tmp_path / "latest").read_text() == "round_00001"


def test_half_a_directory_of_a_dead_writer_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".round_00001.part").mkdir()
    (tmp_path / ".round_00001.part" / "junk").write_text("x")
    assert not candidates(tmp_path)
    assert not (save(tmp_path, 1) / "junk").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    file = folder / "clients-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ShardError, match=r"clients-00000\.safetensors.*sha256"):
        Checkpoint(folder).load_into(trained([0]).state, [0])


def test_a_client_that_is_not_in_it(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, clients=[0, 1])
    with pytest.raises(ShardError, match=r"no client \[2\]"):
        Checkpoint(folder).load_into(trained([2]).state, [2])


@pytest.mark.parametrize("index", ["", "{", "[]", '{"format": 2}', '{"format": 2, "facts": {}}'])
def test_a_damaged_index_names_its_folder(tmp_path: Path, index: str) -> None:
    folder = save(tmp_path, 1)
    (folder / "index.json").write_text(index)
    with pytest.raises(ShardError, match=r"round_00001.*index\.json"):
        Checkpoint(folder)


def test_another_format_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    (folder / "index.json").write_text('{"format": 99, "facts": {}}')
    with pytest.raises(ConfigError, match="checkpoint format 2"):
        Checkpoint(folder)


def test_the_index_names_every_client_once(tmp_path: Path) -> None:
    index = json.loads((save(tmp_path, 1) / "index.json").read_text())
    assert [c for entry in index["clients"] for c in entry["clients"]] == [0, 1, 2]


@pytest.mark.parametrize("pointer", [None, b"round_00099", b"", b"\xff\xfe"])
def test_without_a_good_pointer_the_last_complete_one_is_taken(
    tmp_path: Path, pointer: bytes | None
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "round_00003").mkdir()  # no index: not complete
    (tmp_path / "latest").unlink()
    if pointer is not None:
        (tmp_path / "latest").write_bytes(pointer)
    assert [p.name for p in candidates(tmp_path)] == ["round_00002", "round_00001"]

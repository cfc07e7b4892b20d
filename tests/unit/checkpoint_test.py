"""Is a checkpoint complete or absent, and readable by any set of ranks?"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcore import checkpoint_writer
from fedcore.checkpoint import Checkpoint, candidates
from fedcore.checkpoint_writer import Checkpoints, Contents, Rows
from fedcore.errors import ConfigError, ShardError, StorageError
from fedcore.server.comm import LocalComm
from tests.damage import flip
from tests.toy import ToyData, toy_group, toy_order

DATA = ToyData([8, 6, 5])


def trained(clients: list[int]):
    group = toy_group("v14", clients, DATA, carry_momentum=True)
    group.train(toy_order("v14", 0, clients))
    return group


def contents(round: int, clients: list[int] | None = None, score: float | None = None) -> Contents:
    group = trained(clients or [0, 1, 2])
    server = {"prototypes": torch.full((4, 6), float(round))}
    own = {"clients": Rows(group.clients, group.state.tensors())}
    return Contents(shared={"server": server}, facts={"note": 1.5}, own=own, score=score)


def save(folder: Path, round: int, clients: list[int] | None = None, **settings: Any) -> Path:
    checkpoints = Checkpoints(folder, LocalComm(), settings.pop("keep", 2), **settings)
    written = checkpoints.save(contents(round, clients), round)
    ended = checkpoints.settle()
    assert ended is not None
    if ended.error:
        raise ended.error
    return written


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
    assert checkpoint.facts["note"] == 1.5
    assert checkpoint.clients == [0, 1, 2]
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

    monkeypatch.setattr("fedcore.checkpoint_writer.save_file", full)
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
    flip(folder / "clients-00000.safetensors", at=-1)
    with pytest.raises(ShardError, match=r"clients-00000\.safetensors.*sha256"):
        Checkpoint(folder).load_into(trained([0]).state, [0])


def test_a_client_that_is_not_in_it(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, clients=[0, 1])
    with pytest.raises(ShardError, match=r"no client \[2\]"):
        Checkpoint(folder).load_into(trained([2]).state, [2])


@pytest.mark.parametrize("index", ["", "{", "[]", '{"format": 5}', '{"format": 5, "facts": {}}'])
def test_a_damaged_index_names_its_folder(tmp_path: Path, index: str) -> None:
    folder = save(tmp_path, 1)
    (folder / "index.json").write_text(index)
    with pytest.raises(ShardError, match=r"round_00001.*index\.json"):
        Checkpoint(folder)


def test_another_format_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    (folder / "index.json").write_text('{"format": 99, "facts": {}}')
    with pytest.raises(ConfigError, match="format 99, and this fedcore reads 5"):
        Checkpoint(folder)


def test_the_index_names_every_client_once(tmp_path: Path) -> None:
    index = json.loads((save(tmp_path, 1) / "index.json").read_text())
    assert [c for e in index["files"] for c in e.get("clients", [])] == [0, 1, 2]


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


def test_training_goes_on_while_a_copy_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is changed in place after `save` returned is not in the checkpoint."""
    go = threading.Event()
    store = checkpoint_writer.save_file
    monkeypatch.setattr(
        "fedcore.checkpoint_writer.save_file", lambda *args: (go.wait(20), store(*args))
    )
    checkpoints = Checkpoints(tmp_path, LocalComm(), 2, asynchronous=True)
    of = contents(1)
    wanted = {k: v.clone() for k, v in of.own["clients"].tensors.items()}
    checkpoints.save(of, 1)
    for values in of.own["clients"].tensors.values():
        values.fill_(7)
    of.facts["note"] = 7
    assert checkpoints.settle(0) is None
    assert not candidates(tmp_path)
    go.set()
    assert checkpoints.settle() is not None
    found = Checkpoint(candidates(tmp_path)[0])
    assert found.facts["note"] == 1.5
    for name, values in found.own([0, 1, 2]).items():
        assert torch.equal(values, wanted[name]), name


def test_an_error_in_the_background_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcore.checkpoint_writer.save_file", full)
    checkpoints = Checkpoints(tmp_path, LocalComm(), 2, asynchronous=True)
    checkpoints.save(contents(1), 1)
    ended = checkpoints.settle()
    assert ended is not None
    assert isinstance(ended.error, StorageError)
    assert checkpoints.settle() is None
    assert not list(tmp_path.glob("round_*"))


def test_the_best_one_stays_beside_the_newest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, LocalComm(), 1, keep_best=True)
    for round, score in enumerate([0.4, None, 0.9, 0.9, 0.1, None], 1):
        checkpoints.save(contents(round, score=score), round)
    assert sorted(p.name for p in tmp_path.glob("round_*")) == ["round_00003", "round_00006"]
    assert (tmp_path / "best").read_text() == "round_00003"
    assert (tmp_path / "latest").read_text() == "round_00006"


def test_those_within_a_round_come_after_its_start_and_before_its_end(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, LocalComm(), 9)
    for number, part in ((7, 0), (7, 2), (7, 11), (8, 0)):
        checkpoints.save(contents(number), number, part)
    (tmp_path / "latest").unlink()
    names = [p.name for p in candidates(tmp_path)]
    assert names == ["round_00008", "round_00007.0011", "round_00007.0002", "round_00007"]


def test_a_run_that_went_back_keeps_what_it_writes(tmp_path: Path) -> None:
    """Later ones, damaged or given up, are no reason to remove the new ones."""
    for round in (1, 2, 3, 8, 9):
        save(tmp_path, round, keep=9)
    save(tmp_path, 4)
    names = [p.name for p in candidates(tmp_path)]
    assert names == ["round_00004", "round_00009", "round_00008", "round_00003"]


def test_a_writer_that_dies_as_it_removes_an_old_one_leaves_no_half(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save(tmp_path, 1, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer.shutil, "rmtree", half_of_rmtree)
        save(tmp_path, 2, keep=1)
    assert [p.name for p in tmp_path.glob("round_*")] == ["round_00002"]
    save(tmp_path, 3, keep=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "round_00003"]


def half_of_rmtree(folder: Path, ignore_errors: bool) -> None:
    for file in sorted(folder.glob("*"))[:1]:
        file.unlink()


def test_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".round_00003.part").mkdir()
    (tmp_path / ".latest.12345").write_text("round_0")
    save(tmp_path, 4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "round_00004"]

"""Is a damaged checkpoint told, and never read as good when a hashed byte changed?"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fedcore.checkpoint import Checkpoint, candidates, pointed_at
from fedcore.checkpoint_index import SEAL, sealed
from fedcore.errors import ShardError
from fedcore.export import read_tensors
from launcher.checkpoint_stored import all_in, chosen
from launcher.checkpoint_tables import facts, listed
from tests.toy import ToyData, toy_group
from tests.unit.checkpoint_test import DATA, save
from tests.unit.fuzz.hostile import REFUSED, bytes_changed, cases, json_changed, read, value_changed

pytestmark = pytest.mark.broad

GROUP = toy_group("v14", [0, 1, 2], ToyData(DATA.sizes))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    save(folder / "checkpoints", 1)
    save(folder / "checkpoints", 2)
    return folder


def everything(folder: Path) -> tuple[Any, ...]:
    """All that a reader gets of a checkpoint."""
    held = Checkpoint(folder)
    held.verify()
    held.load_into(GROUP.state, [0, 1, 2])
    return held.facts, held.shared("server"), held.own(held.clients), held.files


def test_a_damaged_index_is_told(saved: Path) -> None:
    folder = saved / "checkpoints" / "round_00001"
    file, met = folder / "index.json", set()
    good, whole = file.read_bytes(), everything(folder)
    try:
        for draws in cases("index", 400):
            file.write_bytes(json_changed(good, draws))
            found = read(lambda: everything(folder))
            met.add(found is REFUSED)
            if found is not REFUSED and SEAL in json.loads(file.read_bytes()):
                assert found[0] == whole[0], "the same said in other bytes: a space more"
                assert found[3] == whole[3]
    finally:
        file.write_bytes(good)
    assert met == {True, False}


def test_an_index_made_up_by_hand_is_a_checkpoint_or_told(saved: Path) -> None:
    """Whoever can write it can seal it: it may be another checkpoint, but nothing else."""
    folder = saved / "checkpoints" / "round_00001"
    file, met = folder / "index.json", set()
    good = file.read_text()
    try:
        for draws in cases("sealed", 400):
            changed = value_changed(json.loads(good), draws)
            if isinstance(changed, dict):
                file.write_text(json.dumps(sealed(changed)))
                met.add(read(lambda: everything(folder)) is REFUSED)
                read(lambda: listed([folder]))
                read(lambda: facts(folder))
    finally:
        file.write_text(good)
    assert met == {True, False}


@pytest.mark.parametrize("name", ["server-00000.safetensors", "clients-00000.safetensors"])
def test_no_changed_byte_of_a_tensor_file_is_read(saved: Path, name: str) -> None:
    folder = saved / "checkpoints" / "round_00001"
    file = folder / name
    good = file.read_bytes()
    try:
        for draws in cases(name, 300):
            file.write_bytes(bytes_changed(good, draws))
            for reader in (Checkpoint(folder).verify, lambda: everything(folder)):
                with pytest.raises(ShardError, match=name):
                    reader()
    finally:
        file.write_bytes(good)


@pytest.mark.parametrize("name", ["server-00000.safetensors", "clients-00000.safetensors"])
def test_tensors_that_are_none_are_told_even_with_a_hash_that_fits(saved: Path, name: str) -> None:
    folder = saved / "checkpoints" / "round_00001"
    file, index = folder / name, folder / "index.json"
    good, said = file.read_bytes(), index.read_text()
    try:
        for draws in cases(f"hashed {name}", 250):
            changed = _header_changed(good, draws)
            file.write_bytes(changed)
            old, new = (hashlib.sha256(x).hexdigest() for x in (good, changed))
            index.write_text(json.dumps(sealed(json.loads(said.replace(old, new)))))
            read(lambda: everything(folder))
            read(lambda: read_tensors(file))
    finally:
        file.write_bytes(good)
        index.write_text(said)


def _header_changed(good: bytes, draws: Any) -> bytes:
    """Other bytes, or another header of the right length: names, shapes, types, offsets."""
    if draws.random() < 0.3:
        return bytes_changed(good, draws)
    length = int.from_bytes(good[:8], "little")
    header = json_changed(good[8 : 8 + length], draws)
    return len(header).to_bytes(8, "little") + header + good[8 + length :]


def test_pointers_lead_to_a_checkpoint_or_nowhere(saved: Path) -> None:
    folder = saved / "checkpoints"
    names = {"round_00001", "round_00002"}
    try:
        for draws in cases("pointer", 200):
            for name in ("latest", "best"):
                (folder / name).write_bytes(bytes_changed(b"round_00001", draws))
            assert {path.name for path in candidates(folder)} == names
            assert chosen(saved).name in names
            found = read(lambda: chosen(saved, best=True))
            assert found is REFUSED or found.name in names
            assert "/" not in pointed_at(folder, "best")
        for pointed in ("../../x", "/etc", ".", "round_00001/../../..", "\0"):
            (folder / "best").write_text(pointed)
            assert read(lambda: chosen(saved, best=True)) is REFUSED
            (folder / "latest").write_text(pointed)
            assert chosen(saved).name == "round_00002"
    finally:
        (folder / "latest").write_text("round_00002")
    assert [path.name for path in all_in(saved)] == sorted(names)

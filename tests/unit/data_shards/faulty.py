"""A folder of shards to be damaged, and what reads it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_shards.manifest import NAME
from data_shards.read import ShardedData
from data_shards.sources import Arrays, Source
from data_shards.write import Dealt, write
from tests.unit.data_shards.toy_store import sharded
from tests.unit.safety_test import tar_of

SHAPE = (3, 8, 8)
BOTH = pytest.mark.parametrize("streaming", [False, True], ids=["resident", "streaming"])


def made(tmp_path: Path) -> Path:
    """One client of 10 samples in tars of four, four and two; classes 0, 1, 2."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, *SHAPE), dtype=np.uint8)
    arrays = Arrays(pixels, np.arange(10, dtype=np.int64) % 3)
    source = Source(lambda root, split: arrays, kind="digits", about="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_shards.tar_writer.SHARD_BYTES", 4 * 2048)
        write(tmp_path / "toy", "toy", source, arrays, arrays, [Dealt(np.arange(10))], {})
    return tmp_path / "toy"


def data(folder: Path, *, streaming: bool, workers: int = 2) -> ShardedData:
    return sharded(folder, streaming=streaming, workers=workers, shuffle_buffer=4)


def epochs(folder: Path, streaming: bool) -> int:
    """Batches of two epochs, all of which were read."""
    held = data(folder, streaming=streaming)
    return sum(1 for epoch in range(2) for _ in held.epoch([0], 0, epoch))


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    said = json.loads((folder / NAME).read_text())
    change(said)
    (folder / NAME).write_text(json.dumps(said))


def replaced(folder: Path, content: bytes, number: int = 1) -> None:
    """Another tar of client 0, which the manifest says is as it was written."""
    (folder / f"client_00000/{number:05d}.tar").write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()

    def change(said: dict[str, Any]) -> None:
        said["clients"][0]["shards"][number] |= {"bytes": len(content), "sha256": sha256}

    edited(folder, change)


def second(folder: Path) -> Path:
    return folder / "client_00000/00001.tar"


def samples(*entries: tuple[str, bytes], label: Any = 0, count: int = 4) -> bytes:
    """A tar of blank samples; entries: members that stand instead of those of sample 1."""
    members = []
    for row in range(count):
        text = json.dumps({"label": label if row == 1 else row % 3, "index": row}).encode()
        usual = ((f"{row:08d}.json", text), (f"{row:08d}.u8", bytes(192)))
        members += [*(entries if row == 1 and entries else usual)]
    return tar_of(*((tarfile.TarInfo(name), content) for name, content in members))

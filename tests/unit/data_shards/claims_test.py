"""Does what a manifest claims cost no more than the file that claims it?"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from data_shards.manifest import NAME, Manifest
from fedcore.errors import ShardError
from fedcore.files import LARGEST
from tests.unit.data_shards.faulty import BOTH, data, edited, epochs, made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path)


@pytest.mark.parametrize("claimed", [10**8, 10**12])
@BOTH
def test_claims_take_no_memory(
    folder: Path, streaming: bool, claimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of samples, nor of bytes: both are compared with what is on the disk."""

    def change(said: dict[str, Any]) -> None:
        said["clients"][0] |= {"samples": claimed + 6, "label_counts": [claimed + 6, 0, 0]}
        said["clients"][0]["shards"][1] |= {"samples": claimed, "bytes": 4096 * claimed}

    edited(folder, change)
    monkeypatch.setattr("fedcore.files.LARGEST", 2**20)  # a buffer that is not used
    tracemalloc.start()
    try:
        with pytest.raises(ShardError, match=r"00001\.tar: truncated"):
            epochs(folder, streaming)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_clients_without_samples_take_no_memory(folder: Path) -> None:
    """A thousand blank images of 3 MB each would be 3 GB."""
    empty = {"samples": 0, "label_counts": [0, 0, 0], "shards": []}
    clients = [{"client": k} | empty for k in range(1000)]
    edited(folder, lambda s: s.update(clients=clients, shape=[3, 1000, 1000], test=empty))
    held = data(folder, streaming=False)._reader._held  # type: ignore[attr-defined]
    assert held.images.numel() == 0


@pytest.mark.parametrize("text", ["", "x" * 64, "A" * 64, "0" * 63, "0" * 65, "\x1b[2J"])
def test_a_hash_is_a_hash(folder: Path, text: str) -> None:
    edited(folder, lambda said: said["test"]["shards"][0].update(sha256=text))
    with pytest.raises(ShardError, match="sha256"):
        Manifest.load(folder)


def test_a_million_counts_are_a_file_that_is_read_once(folder: Path) -> None:
    """And a manifest larger than files of words may be is not read at all."""

    def change(said: dict[str, Any]) -> None:
        said["classes"] = 1_000_000
        for part in (said["clients"][0], said["test"]):
            part["label_counts"] += [0] * 999_997

    edited(folder, change)
    tracemalloc.start()
    try:
        assert Manifest.load(folder).classes == 1_000_000
        assert tracemalloc.get_traced_memory()[0] < 12 * (folder / NAME).stat().st_size
        assert tracemalloc.get_traced_memory()[1] < LARGEST + 12 * (folder / NAME).stat().st_size
        with (folder / NAME).open("r+b") as file:
            file.truncate(300 * 10**6)  # a hole
        with pytest.raises(ShardError, match=r"manifest\.json.*more than 268,435,456 bytes"):
            Manifest.load(folder)
        assert tracemalloc.get_traced_memory()[1] < 2 * LARGEST
    finally:
        tracemalloc.stop()

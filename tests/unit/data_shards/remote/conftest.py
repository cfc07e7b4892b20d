"""Servers of shards, and a process that forgets what it was told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from data_shards import folder as folders
from data_shards.sources import Arrays
from data_shards.write import Dealt, write
from launcher import prepare_text
from tests import damage
from tests.unit.data_shards.prepare_test import SOURCE, toy
from tests.unit.data_shards.remote.toys import (
    words_of,
)
from tests.web import Web, serving


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Manifests and connections are kept for a process; each test is one of its own."""
    yield
    folders._words.cache_clear()
    for kind in fsspec.available_protocols():
        if kind in fsspec.registry:
            fsspec.registry[kind].clear_instance_cache()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """A server of `toy/`."""
    toy(tmp_path / "www" / "toy")
    with serving(tmp_path / "www") as found:
        yield found


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Web]:
    """A server of `toy/` with 1.6 MB in a shard, so that what breaks off has come in part."""
    pixels = np.random.default_rng(1).integers(0, 256, (8, 1, 448, 448), dtype=np.uint8)
    images = Arrays(pixels, np.arange(8) % 3)
    write(tmp_path / "www" / "toy", "toy", SOURCE, images, images, [Dealt(np.arange(8))], {})
    with serving(tmp_path / "www") as found:
        yield found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 kB."""
    with damage.small_disk(tmp_path / "cache", "size=8k") as disk:
        yield disk


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Token shards in `www/`."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(20):
        (text / f"{number}.txt").write_text(f"a document, number {number}. " * 40)
    made = prepare_text.make(words_of(text, f"data.store={tmp_path / 'www'}"))
    assert isinstance(made, Path)
    return made

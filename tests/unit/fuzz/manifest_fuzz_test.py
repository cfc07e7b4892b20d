"""Is a damaged folder of shards told, and never read as good when a hashed byte changed?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_shards.manifest import Manifest
from data_shards.resident import read_part
from data_shards.sources import Arrays, Source
from data_shards.tars import problems
from data_shards.text.manifest import TokenManifest, load_any
from data_shards.text.read import TokenStream
from data_shards.text.tokenizers import load
from data_shards.write import Dealt, write
from fedcore.errors import ShardError
from tests.unit.data_shards.text_shards_test import make
from tests.unit.fuzz.hostile import REFUSED, bytes_changed, cases, json_changed, read
from tests.unit.safety_test import replace_tar

pytestmark = pytest.mark.broad


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 1, 4, 4), dtype=np.uint8)
    arrays = Arrays(pixels, np.arange(9, dtype=np.int64) % 3)
    source = Source(lambda root, split: arrays, kind="digits", about="")
    place = tmp_path_factory.mktemp("images") / "toy"
    parts = [Dealt(np.arange(start, stop)) for start, stop in ((0, 5), (5, 5), (5, 9))]
    write(place, "toy", source, arrays, arrays, parts, {"name": "by hand"})
    return place


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tokens") / "toy"
    make(place)
    return place


def all_images(folder: Path) -> list[Any]:
    manifest = Manifest.load(folder)
    parts = (*manifest.clients, manifest.test)
    return [x for part in parts for x in read_part(folder, manifest, part)]


def all_tokens(folder: Path) -> list[Any]:
    manifest = TokenManifest.load(folder)
    stream = TokenStream(folder, manifest, context=4, order="ordered", seed=0)
    return [stream.batch(0, 4, range(4)), stream.held_out()]


READERS = {"images": all_images, "tokens": all_tokens}


@pytest.mark.parametrize("kind", ["images", "tokens"])
def test_a_damaged_manifest_is_told(kind: str, request: pytest.FixtureRequest) -> None:
    """What still can be read has other facts, but the same pixels and tokens in each file."""
    folder, met = request.getfixturevalue(kind), set()
    file = folder / "manifest.json"
    good = file.read_bytes()
    try:
        for draws in cases(f"manifest {kind}", 500):
            file.write_bytes(json_changed(good, draws))
            found = read(lambda: load_any(folder))
            met.add(found is REFUSED)
            if found is not REFUSED:
                read(lambda found=found: problems(folder, found))
                read(lambda: READERS[kind](folder))
    finally:
        file.write_bytes(good)
    assert met == {True, False}


@pytest.mark.parametrize("kind", ["images", "tokens"])
def test_no_changed_byte_of_a_tar_is_read(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    file = folder / "client_00000" / "00000.tar"
    good = file.read_bytes()
    try:
        for draws in cases(f"tar {kind}", 200):
            file.write_bytes(bytes_changed(good, draws))
            with pytest.raises(ShardError, match=r"00000\.tar"):
                READERS[kind](folder)
    finally:
        file.write_bytes(good)


@pytest.mark.parametrize("kind", ["images", "tokens"])
def test_a_tar_of_any_bytes_is_samples_or_told(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    manifest, file = folder / "manifest.json", folder / "client_00000" / "00000.tar"
    said, good = manifest.read_bytes(), file.read_bytes()
    whole = READERS[kind](folder)
    try:
        for draws in cases(f"hashed tar {kind}", 200):
            changed = bytes_changed(good, draws)
            if draws.random() < 0.5:  # the headers of its files are where a tar can lie
                at = 512 * draws.randrange(len(good) // 512) + draws.randrange(300)
                changed = bytes([*good[:at], *draws.randbytes(8), *good[at + 8 :]])
            replace_tar(folder, changed)
            found = read(lambda: READERS[kind](folder))
            if found is not REFUSED:
                assert [x.shape for x in found] == [x.shape for x in whole]
            manifest.write_bytes(said)
    finally:
        file.write_bytes(good)
        manifest.write_bytes(said)
    assert all(map(torch.equal, READERS[kind](folder), whole))


def test_a_damaged_vocabulary_is_told(tokens: Path) -> None:
    file = tokens / "tokenizer.json"
    good = file.read_bytes()
    try:
        for draws in cases("vocabulary", 200):
            file.write_bytes(json_changed(good, draws))
            assert read(lambda: load(file)) is REFUSED or json.loads(file.read_bytes()) == {
                "kind": "bytes",
                "end": 256,
            }
            if file.read_bytes() != good:
                assert read(lambda: all_tokens(tokens)) is REFUSED
    finally:
        file.write_bytes(good)

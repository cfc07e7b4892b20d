"""Is what was fetched kept by its content, once, whoever else wants it?"""

from __future__ import annotations

import json
import multiprocessing
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from data_shards import folder as folders
from data_shards.manifest import Manifest
from data_shards.resident import read_part
from data_shards.sources import Arrays
from data_shards.tars import check
from data_shards.write import Dealt, write
from fedcore.errors import ShardError, StorageError
from tests.damage import flip, remount
from tests.unit.data_shards.prepare_test import SOURCE
from tests.unit.data_shards.remote.toys import (
    FILE,
    first,
    kept,
    remote,
)
from tests.web import Handler, Web, fetch_at_once, stalls

pytestmark = pytest.mark.broad


def test_what_was_read_needs_no_server(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    shard = first(place)
    path = check(place, shard)
    assert path.name == shard.sha256
    web.stop()
    assert check(place, shard) == path


def test_a_damaged_copy_is_fetched_again(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    shard = first(place)
    path = check(place, shard)
    for damage in (flip, lambda file: file.write_bytes(b"")):
        damage(path)
        assert check(place, shard) == path
        assert path.read_bytes() == (web.root / FILE).read_bytes()
    assert web.files().count(FILE) == 3


def test_a_changed_file_never_meets_its_old_copy(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    old = check(place, first(place))
    arrays = np.arange(12 * 16, dtype=np.uint8).reshape(12, 1, 4, 4)
    other = Arrays(arrays, np.arange(12) % 3)
    write(web.root / "toy", "toy", SOURCE, other, other, [Dealt(np.arange(12))], {})
    folders._words.cache_clear()  # another process
    assert check(place, first(place)) != old
    manifest = Manifest.load(place)
    images = read_part(place, manifest, manifest.clients[0]).images
    assert np.array_equal(images.numpy(), arrays)


def test_two_processes_fetch_it_once(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    shard = first(place)

    def slowly(handler: Handler, content: bytes) -> None:
        threading.Event().wait(0.2)
        handler.send(content)

    web.tricks[FILE] = [slowly] * 4
    context = multiprocessing.get_context("spawn")  # a fork of threads in locks may never wake
    given = (place, shard, context.Barrier(2))
    others = [context.Process(target=fetch_at_once, args=given) for _ in range(2)]
    for process in others:
        process.start()
    for process in others:
        process.join(60)
    assert [process.exitcode for process in others] == [0] * 2
    assert web.files().count(FILE) == 1
    assert kept(tmp_path) == [shard.sha256]


def test_who_waited_for_one_that_failed_tries_once(web: Web, tmp_path: Path) -> None:
    """Else eight ranks would wait for a dead server one after the other."""
    place = remote(web, tmp_path)
    shard = first(place)
    web.tricks[FILE] = [stalls(1.0)] * 20
    with ThreadPoolExecutor(3) as pool:
        told = [pool.submit(check, place, shard) for _ in range(3)]
    tries = sorted(re.search(r"in (\d) tr", str(one.exception()))[1] for one in told)  # type: ignore[index]
    assert tries == ["1", "1", "3"]
    assert web.files().count(FILE) == 3 + 1 + 1


def test_what_a_dead_process_left_is_no_obstacle(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    shard = first(place)
    half = tmp_path / "cache" / shard.sha256[:2] / f".{shard.sha256}.part"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"x" * 99_999)
    assert check(place, shard).read_bytes() == (web.root / FILE).read_bytes()
    assert kept(tmp_path) == [shard.sha256]


def test_a_cache_that_cannot_be_written(web: Web, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    place = remote(web, tmp_path)
    with pytest.raises(StorageError, match=r"Not a directory.*data\.cache"):
        check(place, first(place))


@pytest.mark.root
def test_a_full_cache_is_told_and_left_empty(web: Web, tmp_path: Path, small_disk: Path) -> None:
    place = remote(web, tmp_path)
    with pytest.raises(StorageError, match=r"No space left.*data\.cache"):
        check(place, first(place))
    assert not kept(tmp_path)
    assert web.files().count(FILE) == 1  # the network is not to blame


@pytest.mark.root
def test_a_read_only_cache_serves_what_it_has(web: Web, tmp_path: Path, small_disk: Path) -> None:
    remount(small_disk, "size=1m")
    place = remote(web, tmp_path)
    shard, other = first(place), Manifest.load(place).test.shards[0]
    check(place, shard)
    remount(small_disk, "ro")
    assert check(place, shard).is_file()
    different = other.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(StorageError, match=r"Read-only.*data\.cache"):
        check(place, different)


@pytest.mark.parametrize("sha256", ["../../../../etc/passwd", "", "A" * 64, "0" * 63 + "/"])
def test_a_hash_that_is_none_is_no_name_of_a_file(web: Web, tmp_path: Path, sha256: str) -> None:
    place = remote(web, tmp_path)
    shard = first(place).model_copy(update={"sha256": sha256})
    with pytest.raises(ShardError, match="its manifest says"):
        check(place, shard)
    assert web.files() == ["toy/manifest.json"]


def test_the_manifest_is_never_on_the_disk(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    record = json.loads(place.read("manifest.json"))
    check(place, first(place))
    assert kept(tmp_path) == [record["clients"][0]["shards"][0]["sha256"]]
    assert web.files().count("toy/manifest.json") == 1

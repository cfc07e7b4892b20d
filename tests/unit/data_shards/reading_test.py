"""Are batches the same however they are read, and are only a client's own files opened?"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from hypothesis import given, settings
from hypothesis import strategies as st

from data_shards import rawtar
from data_shards.blocks import read_block
from data_shards.manifest import Manifest
from data_shards.order import epoch_order
from data_shards.read import ShardedData
from data_shards.write import Dealt
from fedcore.batch import Batch
from fedcore.errors import ShardError
from tests.damage import flip
from tests.unit.data_shards.toy_store import SIZES, parts, sharded, stored

pytestmark = pytest.mark.broad

LANES = ([0], [0, 4, 2, 3, 1], [4, 3], [1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("store") / "toy", [Dealt(part) for part in parts()])


def data(folder: Path, clients: list[int] | None = None, **other: Any) -> ShardedData:
    usual = {"views": 2, "seed": 5, "dtype": torch.float64, "augment": True, "shuffle_buffer": 9}
    return sharded(folder, clients, **usual | other)


def equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("buffer", [1, 9, 1000])
@pytest.mark.parametrize("batch_size", [1, 4, 16, 64])
def test_streamed_batches_are_those_of_resident_samples(
    folder: Path, batch_size: int, buffer: int, workers: int
) -> None:
    settings = {"batch_size": batch_size, "shuffle_buffer": buffer}
    held = data(folder, **settings)
    streamed = data(folder, **settings, streaming=True, workers=workers)
    for lane in LANES:
        for round, epoch, first in ((0, 0, 0), (3, 1, 0), (3, 1, 2)):
            wanted = list(held.epoch(lane, round, epoch, first))
            found = list(streamed.epoch(lane, round, epoch, first))
            assert len(found) == len(wanted)
            assert all(equal(*pair) for pair in zip(found, wanted, strict=True))


def test_an_epoch_begun_in_its_middle_is_the_rest_of_it(folder: Path) -> None:
    for streaming in (False, True):
        samples = data(folder, streaming=streaming)
        whole = list(samples.epoch([0, 4, 2], 2, 1))
        for first in range(len(whole)):
            rest = list(samples.epoch([0, 4, 2], 2, 1, first))
            assert len(rest) == len(whole) - first
            assert all(equal(*pair) for pair in zip(rest, whole[first:], strict=True))


def test_held_out_samples_are_the_same_and_never_in_an_epoch(folder: Path) -> None:
    held, streamed = (data(folder, held_out=0.3, streaming=x, augment=False) for x in (False, True))
    for clients in ([0, 2], [3], [4]):
        pair = [x.held_out(clients, 1, 0, 3) for x in (held, streamed)]
        assert equal(*pair)
    seen = torch.cat([b.images[0, 0] for b in streamed.epoch([0], 0, 0)]).flatten(1).tolist()
    aside = held.held_out([0], 0, 0, 0).images[0, 0].flatten(1).tolist()
    assert not {tuple(x) for x in aside} & {tuple(x) for x in seen}


def test_a_client_s_samples_do_not_depend_on_who_else_is_there(folder: Path) -> None:
    """One reader of all clients, or eight readers of a few each: the same batches."""
    for streaming in (False, True):
        together = data(folder, streaming=streaming)
        for client in range(len(SIZES)):
            alone = data(folder, [client], streaming=streaming)
            pairs = zip(alone.epoch([client], 4, 0), together.epoch([client], 4, 0), strict=True)
            assert all(equal(*pair) for pair in pairs)


@pytest.mark.parametrize("streaming", [False, True])
def test_only_a_client_s_own_files_are_opened(
    folder: Path, tmp_path: Path, streaming: bool
) -> None:
    """Nobody else's are there."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    for client in (0, 1, 2, 4):
        shutil.rmtree(copy / f"client_{client:05d}")
    shutil.rmtree(copy / "test")
    assert len(list(data(copy, [3], streaming=streaming).epoch([3], 0, 0))) == 1
    with pytest.raises(ShardError, match=r"client_00002.*missing"):
        list(data(copy, [2], streaming=streaming).epoch([2], 0, 0))


def test_a_tar_damaged_while_it_is_streamed_is_told(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    streamed = data(copy, streaming=True)
    assert len(list(streamed.epoch([0], 0, 0))) == 13
    flip(copy / "client_00000" / "00007.tar", at=1600)
    with pytest.raises(ShardError, match=r"client_00000/00007\.tar: damaged"):
        list(streamed.epoch([0], 0, 0))


def test_a_stream_left_early_leaves_no_thread_at_work(folder: Path) -> None:
    streamed = data(folder, streaming=True)
    for _ in range(20):
        batches = streamed.epoch([0], 0, 0)
        next(batches)
        batches.close()
    assert len(list(streamed.epoch([0], 0, 0))) == 13


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(0, 2**40),
    st.data(),
)
def test_an_order_holds_each_row_once_in_windows_of_neighbouring_tars(
    sizes: list[int], buffer: int, seed: int, draw: st.DataObject
) -> None:
    kept = draw.draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes)))
    rows = torch.tensor([i for i, keep in enumerate(kept) if keep], dtype=torch.int64)
    order = epoch_order(rows, sizes, buffer, torch.Generator().manual_seed(seed))
    again = epoch_order(rows, sizes, buffer, torch.Generator().manual_seed(seed))
    assert order.rows.equal(again.rows)
    assert order.starts == again.starts
    assert sorted(order.rows.tolist()) == rows.tolist()
    assert all(stop - start <= buffer for start, stop in order.windows)
    tar = torch.bucketize(rows, torch.tensor(sizes).cumsum(0), right=True).tolist()
    of_row = dict(zip(rows.tolist(), tar, strict=True))
    rank = {number: i for i, number in enumerate(order.tars)}
    last = -1
    for start, stop in order.windows:  # a window begins in the tar where the one before it ended
        ranks = sorted(rank[of_row[row]] for row in order.rows[start:stop].tolist())
        if len(rows) > buffer and ranks:
            assert ranks[0] >= last
            last = ranks[-1]


def test_windows_begin_at_other_places_in_other_epochs() -> None:
    rows = torch.arange(100)
    starts = {
        epoch_order(rows, [100], 10, torch.Generator().manual_seed(seed)).starts[1]
        for seed in range(200)
    }
    assert starts == set(range(1, 11))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.sampled_from([(1, 1, 1), (1, 8, 8), (3, 32, 32)]), st.integers(0))
def test_a_raw_tar_is_what_webdataset_writes_and_reads(
    n: int, shape: tuple[int, int, int], seed: int
) -> None:
    draws = np.random.default_rng(seed)
    index = np.sort(draws.choice(10**8, n, replace=False)).astype(np.int64)
    labels = draws.integers(0, 100_000, n)
    images = draws.integers(0, 256, (n, *shape), dtype=np.uint8)
    content, written = rawtar.encoded(index, labels, images).tobytes(), io.BytesIO()
    writer = wds.TarWriter(written, encoder=False, mtime=0)
    for i in range(n):
        about = f'{{"label": {labels[i]}, "index": {index[i]}}}'.encode()
        writer.write({"__key__": f"{index[i]:08d}", "u8": images[i].tobytes(), "json": about})
    writer.close()
    assert content == written.getvalue()
    block = rawtar.decoded(content, n, shape)
    assert block is not None
    assert (block.images == images).all()
    assert (block.labels == labels).all()


def test_another_tar_of_the_same_samples_is_read_member_by_member(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest.load(folder)
    shards = [shard for client in manifest.clients for shard in client.shards]
    quick = [read_block(folder, manifest, shard) for shard in shards]
    monkeypatch.setattr(rawtar, "decoded", lambda *_: None)
    slow = [read_block(folder, manifest, shard) for shard in shards]
    for one, other in zip(quick, slow, strict=True):
        assert (one.images == other.images).all()
        assert (one.labels == other.labels).all()

"""Is what is read back what was written, and is damage named?"""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from data_shards.manifest import Manifest
from data_shards.read import ShardedData, TestSamples
from data_shards.resident import read_part
from data_shards.sources import SOURCES, Arrays, Source, Split
from data_shards.tars import problems
from data_shards.write import Dealt, write
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError, StorageError
from launcher import prepare
from launcher.commands import app
from tests.unit.data_shards.toy_store import sharded

pytestmark = pytest.mark.broad

SHAPE = (1, 4, 4)
CPU = torch.device("cpu")
# client 0 is usual, 1 has none, 2 has one class, 3 has a single sample
PARTS = [np.arange(0, 11), np.zeros(0, dtype=np.int64), np.array([11, 14, 17]), np.array([12])]
DEALT = [Dealt(rows) for rows in PARTS]


def arrays(samples: int = 18) -> Arrays:
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (samples, *SHAPE), dtype=np.uint8)
    return Arrays(images, np.arange(samples, dtype=np.int64) % 3)


SOURCE = Source(lambda root, split: arrays(), kind="digits", about="a test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "store" / "toy"
    write(place, "toy", SOURCE, arrays(), arrays(7), DEALT, {"name": "by hand"})
    return place


def data(
    folder: Path, clients: list[int], *, augment: bool = True, batch: int = 4, **other: Any
) -> ShardedData:
    usual = {"batch_size": batch, "views": 2, "dtype": torch.float64, "augment": augment}
    return sharded(folder, clients, **usual | other)


def test_samples_come_back_bit_for_bit(folder: Path) -> None:
    manifest = Manifest.load(folder)
    for part, indices in zip(manifest.clients, PARTS, strict=True):
        images, labels = read_part(folder, manifest, part)
        assert np.array_equal(images.numpy(), arrays().images[indices])
        assert np.array_equal(labels.numpy(), arrays().labels[indices])
        assert part.label_counts == tuple(np.bincount(labels.numpy(), minlength=3))
    assert manifest.test.samples == 7
    assert not problems(folder, manifest)


def test_the_same_input_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, "toy", SOURCE, arrays(), arrays(7), DEALT, {"name": "by hand"})
    for file in folder.rglob("*.*"):
        assert file.read_bytes() == (other / file.relative_to(folder)).read_bytes()


def test_large_parts_are_cut_into_several_tars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "data_shards.tar_writer.SHARD_BYTES", 4 * 2048
    )  # four samples with their headers
    manifest = write(tmp_path / "s", "toy", SOURCE, arrays(), arrays(7), DEALT, {})
    assert [s.samples for s in manifest.clients[0].shards] == [4, 4, 3]
    assert read_part(tmp_path / "s", manifest, manifest.clients[0]).labels.tolist() == [
        *arrays().labels[:11]
    ]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda tar: tar.unlink(), "missing"),
        (lambda tar: tar.write_bytes(tar.read_bytes()[:700]), "truncated"),
        (lambda tar: tar.write_bytes(tar.read_bytes()[:-1] + b"x"), "sha256"),
    ],
)
def test_damage_names_the_shard_and_the_way_out(folder: Path, damage, words: str) -> None:
    tar = folder / "client_00002" / "00000.tar"
    damage(tar)
    with pytest.raises(ShardError) as caught:
        data(folder, [0, 2])
    assert str(tar) in str(caught.value)
    assert words in str(caught.value)
    assert "fedcore shards make" in str(caught.value)
    assert [p.shard for p in problems(folder, Manifest.load(folder))] == [str(tar)]
    data(folder, [0])  # other clients are not touched by it


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 3}, "is of format 3"),
        ({"classes": "ten"}, "classes"),
        ({"unknown": 1}, "unknown"),
        (
            {
                "test": {
                    "samples": 1,
                    "label_counts": [],
                    "shards": [
                        {"file": "../../etc/00000.tar", "samples": 1, "bytes": 1, "sha256": ""}
                    ],
                }
            },
            "file",
        ),
    ],
)
def test_a_manifest_that_is_none_of_ours(folder: Path, change: dict, words: str) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ShardError, match=words):
        Manifest.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_manifest_that_is_no_json(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ShardError, match=r"manifest\.json"):
        Manifest.load(folder)


def test_batches_hold_every_sample_once_and_filling_weighs_nothing(folder: Path) -> None:
    source = data(folder, [0], augment=False)
    batches = list(source.epoch([0], 0, 0))
    assert len(batches) == source.steps(0) == 3
    weight = torch.cat([b.weight[0] for b in batches])
    assert weight.tolist() == [1.0] * 11 + [0.0]
    images = torch.cat([b.images[0, 0] for b in batches])[weight > 0]
    manifest = Manifest.load(folder)
    raw = torch.tensor(arrays().images[PARTS[0]]).double() / 255
    wanted = (raw - manifest.mean[0]) / manifest.std[0]
    assert sorted(images.flatten(1).sum(1).tolist()) == pytest.approx(
        sorted(wanted.flatten(1).sum(1).tolist())
    )
    assert torch.equal(batches[0].images[:, 0], batches[0].images[:, 1])  # views, not augmented


def test_a_single_sample_fills_its_batch_with_different_views(folder: Path) -> None:
    (batch,) = data(folder, [3]).epoch([3], 0, 0)
    assert batch.weight.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert batch.labels.unique().tolist() == [0]
    assert len({tuple(row.flatten().tolist()) for row in batch.images[0].flatten(0, 1)}) == 8


def test_no_batch_is_larger_than_the_largest_client(folder: Path) -> None:
    source = data(folder, [3], batch=10_000)
    (batch,) = source.epoch([3], 0, 0)
    assert batch.labels.shape == (1, 11)
    assert batch.weight.sum() == 1


def test_a_client_gets_the_same_batches_in_any_lane(folder: Path) -> None:
    source = data(folder, [0, 2, 3])
    alone = {k: list(source.epoch([k], 4, 1)) for k in (0, 2, 3)}
    for step, together in enumerate(source.epoch([0, 2, 3], 4, 1)):
        working = [k for k in (0, 2, 3) if step < source.steps(k)]
        assert len(together.labels) == len(working)
        for row, client in enumerate(working):
            for mine, theirs in zip(alone[client][step], together, strict=True):
                assert torch.equal(mine[0], theirs[row])
    assert step + 1 == source.steps(0)


def test_a_lane_whose_longest_clients_do_not_come_first_is_refused(folder: Path) -> None:
    with pytest.raises(AssertionError, match=r"must fall: \[1, 3\]"):
        next(iter(data(folder, [0, 3]).epoch([3, 0], 0, 0)))


def test_rounds_epochs_and_steps_draw_differently(folder: Path) -> None:
    source = data(folder, [0])
    seen = [b.images for r in (0, 1) for e in (0, 1) for b in source.epoch([0], r, e)]
    assert len({tuple(x.flatten().tolist()) for x in seen}) == len(seen)
    again = [b.images for r in (0, 1) for e in (0, 1) for b in source.epoch([0], r, e)]
    assert all(torch.equal(a, b) for a, b in zip(seen, again, strict=True))


def test_test_samples_come_in_order_and_in_slices(folder: Path) -> None:
    test = TestSamples(folder, Manifest.load(folder), device=CPU, dtype=torch.float64)
    whole = torch.cat(list(test.chunks(3)))
    assert whole.shape == (7, *SHAPE)
    assert torch.equal(torch.cat(list(test.chunks(2, 4, 7))), whole[4:7])
    assert test.labels.tolist() == arrays(7).labels.tolist()


def test_a_full_disk_leaves_nothing_half_made(tmp_path: Path, monkeypatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data_shards.tar_writer.os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write(tmp_path / "s", "toy", SOURCE, arrays(), arrays(7), DEALT, {})
    assert not list(tmp_path.iterdir())


def test_what_a_dead_writer_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".s.part" / "junk").mkdir(parents=True)
    write(tmp_path / "s", "toy", SOURCE, arrays(), arrays(7), DEALT, {})
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert not (tmp_path / "s" / "junk").exists()


def config(store: Path, **data: object) -> RunConfig:
    return RunConfig.of(
        {"clients": {"count": 3}, "data": {"source": "digits", "store": str(store), **data}}
    )


def test_many_makers_at_once_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        folders = pool.map(prepare.make, [config(tmp_path)] * 3)
    assert len(set(folders)) == 1
    assert not problems(folders[0], Manifest.load(folders[0]))
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [folders[0].name]


def test_a_folder_with_other_settings_is_refused(tmp_path: Path) -> None:
    folder = prepare.make(config(tmp_path))
    path = folder / "manifest.json"
    found = json.loads(path.read_text())
    found["partition"]["alpha"] = 7.0
    path.write_text(json.dumps(found))
    with pytest.raises(ShardError, match=r"7\.0.*0\.1"):
        prepare.make(config(tmp_path))


@pytest.mark.parametrize("name", ["digits", "mnist5k"])
def test_bundled_sources_are_whole_and_no_image_is_in_both_splits(name: str) -> None:
    source = SOURCES.get(name)
    train, test = source.load(None, Split.TRAIN), source.load(None, Split.TEST)
    for samples in (train, test):
        assert samples.images.dtype == np.uint8
        assert samples.shape == source.shape
        assert set(samples.labels.tolist()) == set(range(source.classes or 0))
    assert train.images.max() == 255
    total = len(train.labels) + len(test.labels)
    assert total == {"digits": 1797, "mnist5k": 5000}[name]
    assert abs(len(test.labels) / total - 0.2) < 0.01
    rows = {image.tobytes() for image in train.images}
    assert sum(image.tobytes() in rows for image in test.images) < 3  # the two do not overlap


def test_your_own_arrays(tmp_path: Path) -> None:
    x, y = (
        np.random.default_rng(0).integers(0, 256, (30, 5, 6, 3), dtype=np.uint8),
        np.arange(30) % 3,
    )
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    chosen = config(tmp_path, source="npz", root=str(tmp_path / "mine.npz"))
    with pytest.raises(ShardError, match="fedcore shards make"):
        prepare.ensure(chosen)
    manifest = Manifest.load(prepare.make(chosen))
    assert manifest.shape == (3, 5, 6)
    assert manifest.classes == 3
    assert prepare.ensure(chosen) == prepare.store_dir(chosen)


@pytest.mark.parametrize(
    ("arrays_of", "words"),
    [
        (lambda x, y: {"x_train": x}, "y_train"),
        (lambda x, y: {"x_train": x.astype(float), "y_train": y}, "float64"),
        (lambda x, y: {"x_train": x, "y_train": y[:-1]}, "labels"),
        (lambda x, y: {"x_train": x, "y_train": y - 1}, "labels"),
        (lambda x, y: {"x_train": np.array([{}], dtype=object), "y_train": y}, "pickle"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, arrays_of, words: str) -> None:
    x, y = np.zeros((4, 3, 3), dtype=np.uint8), np.arange(4)
    np.savez(tmp_path / "bad.npz", **arrays_of(x, y))
    with pytest.raises(ShardError, match=words):
        SOURCES.get("npz").load(tmp_path / "bad.npz", Split.TRAIN)
    with pytest.raises(ConfigError, match=r"data\.root"):
        SOURCES.get("npz").load(None, Split.TRAIN)


def test_the_shards_commands(tmp_path: Path) -> None:
    call = CliRunner().invoke
    words = ["smoke", "--set", f"data.store={tmp_path}"]
    made = call(app, ["shards", "make", *words])
    assert made.exit_code == 0, made.output
    shown = call(app, ["shards", "show", *words])
    assert "digits" in shown.output
    assert call(app, ["shards", "verify", *words]).exit_code == 0
    tar = next(tmp_path.rglob("client_00001/*.tar"))
    tar.unlink()
    verified = call(app, ["shards", "verify", *words])
    assert verified.exit_code == 3
    assert "client_00001/00000.tar" in verified.output
    wrong = call(app, ["shards", "make", "smoke", "--set", "data.alpah=1"])
    assert wrong.exit_code == 2
    assert "Try data.alpha" in wrong.output

"""Are the published files read as they are, and is everything wrong with them told by name?"""

from __future__ import annotations

import gzip
import json
import mmap
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.io import savemat

from data_shards.manifest import Manifest
from data_shards.raw import located
from data_shards.resident import read_part
from data_shards.sources import SOURCES, Split
from data_shards.unpickle import unpickle
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError
from launcher import prepare
from tests import published

NAMES = list(published.WRITERS)


class Loaded(NamedTuple):
    """A split, read as a whole."""

    images: np.ndarray
    labels: np.ndarray


def load(name: str, root: Path | None, split: Split = Split.TRAIN, **taken: object) -> Loaded:
    samples = SOURCES.get(name).load(root, split, **taken)
    return Loaded(samples.pixels(np.arange(len(samples.labels))), samples.labels)


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("name", NAMES)
def test_a_split_has_the_declared_shape(tmp_path: Path, name: str, split: Split) -> None:
    source = SOURCES.get(name)
    images, labels = load(name, published.WRITERS[name](tmp_path), split)
    assert images.dtype == np.uint8
    assert images.flags.c_contiguous  # however they lie in the file
    assert images.shape == (len(labels), *source.shape)
    assert labels.dtype == np.int64
    assert 0 <= labels.min() <= labels.max() < source.classes
    for constants in (source.mean, source.std):
        assert constants is None or len(constants) == source.shape[0]


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_rows_are_red_then_green_then_blue(tmp_path: Path, name: str, split: Split) -> None:
    images, labels = load(name, published.WRITERS[name](tmp_path), split)
    rows = published.pixels(split, 3072)
    assert images[5, 1, 2, 3] == rows[5, 1024 + 2 * 32 + 3]
    assert (images.reshape(len(rows), -1) == rows).all()
    assert (labels == published.numbers(split, SOURCES.get(name).classes)).all()


@pytest.mark.parametrize("split", Split)
def test_svhn_writes_the_digit_zero_as_ten(tmp_path: Path, split: Split) -> None:
    images, labels = load("svhn", published.svhn(tmp_path), split)
    assert (images.transpose(0, 2, 3, 1) == published.pixels(split, 32, 32, 3)).all()
    assert (labels == published.numbers(split, 10)).all()
    assert 0 in labels


def test_the_extra_digits_follow_the_training_digits(tmp_path: Path) -> None:
    root = published.svhn(tmp_path)
    train, test = (load("svhn", root, split) for split in Split)
    both = load("svhn_extra", root)
    assert (both.images == np.concatenate([train.images, test.images])).all()
    assert (load("svhn_extra", root, Split.TEST).labels == test.labels).all()


@pytest.mark.parametrize("split", Split)
def test_pathmnist_is_turned_to_channels_first(tmp_path: Path, split: Split) -> None:
    images, labels = load("pathmnist", published.pathmnist(tmp_path), split)
    assert (images.transpose(0, 2, 3, 1) == published.pixels(split, 28, 28, 3)).all()
    assert (labels == published.numbers(split, 9)).all()


def test_tiny_imagenet_numbers_classes_as_listed_and_colours_grey_images(tmp_path: Path) -> None:
    root = published.tiny_imagenet(tmp_path)
    images, labels = load("tiny_imagenet", root)
    assert labels.tolist() == [0] * 13 + [1] * 13 + [2] * 13
    grey = images[[0, 13, 26]]
    assert (grey == grey[:, :1]).all()
    assert images[1].mean((1, 2)) == pytest.approx([0, 20, 200], abs=3)
    assert images[-1].mean((1, 2)) == pytest.approx([80, 20, 200], abs=3)
    held_out = load("tiny_imagenet", root, Split.TEST)
    assert held_out.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert held_out.images[4].mean((1, 2)) == pytest.approx([40, 20, 200], abs=3)


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("name", ["mnist", "emnist_balanced", "emnist_letters"])
def test_idx_images_stand_upright_and_labels_start_at_zero(
    tmp_path: Path, name: str, split: Split
) -> None:
    images, labels = load(name, published.WRITERS[name](tmp_path), split)
    assert (images[:, 0] == published.pixels(split, 28, 28)).all()
    assert (labels == published.numbers(split, SOURCES.get(name).classes)).all()


def test_plain_idx_files_are_mapped_and_come_before_compressed_ones(tmp_path: Path) -> None:
    root = published.mnist(tmp_path / "MNIST" / "raw").parent.parent
    (root / "train-images-idx3-ubyte.gz").write_bytes(b"not looked at")
    images = SOURCES.get("mnist").load(root, Split.TRAIN).images
    while isinstance(images, np.ndarray) and not isinstance(images.base, mmap.mmap):
        images = images.base
    assert isinstance(images.base, mmap.mmap)


@pytest.mark.parametrize("split", Split)
def test_femnist_keeps_pixels_as_published_and_numbers_writers_by_name(
    tmp_path: Path, split: Split
) -> None:
    samples = SOURCES.get("femnist").load(published.femnist(tmp_path), split)
    assert (samples.images.reshape(-1, 784) == published.pixels(split, 784)).all()
    assert (samples.labels == published.numbers(split, 62)).all()
    names = np.array(sorted(published.WRITER_NAMES))[samples.users]
    parts = np.array_split(names, 3)
    assert [set(part) for part in parts] == [{name} for name in published.WRITER_NAMES]


@pytest.mark.parametrize("inside", ["cifar-10-batches-py", "."])
def test_the_root_is_the_folder_or_what_it_lies_in(tmp_path: Path, inside: str) -> None:
    published.cifar10(tmp_path)
    assert located(tmp_path / inside, "cifar-10-batches-py") == tmp_path / "cifar-10-batches-py"
    assert len(load("cifar10", tmp_path / inside).labels) == 40


def test_a_single_file_may_be_the_root(tmp_path: Path) -> None:
    published.pathmnist(tmp_path)
    assert len(load("pathmnist", tmp_path / "pathmnist.npz").labels) == 40


@pytest.mark.parametrize("name", NAMES)
def test_without_a_root_there_is_an_example(name: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.root.*Try --set data\.root=/"):
        load(name, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_root_without_the_files_is_told_by_name(tmp_path: Path, name: str) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ShardError, match=f"{root}.*no such f.*Try"):
            load(name, root)


FILES = {
    "cifar10": "data_batch_3",
    "cifar100": "train",
    "svhn": "train_32x32.mat",
    "tiny_imagenet": "n00000003_2.JPEG",
    "pathmnist": "pathmnist.npz",
    "mnist": "train-images-idx3-ubyte",
    "emnist_balanced": "emnist-balanced-train-labels-idx1-ubyte.gz",
    "femnist": "train/all_data_1_niid_0.json",
}


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: b"<html>404 not found</html>",
    ],
    ids=["empty", "truncated", "a web page"],
)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage) -> None:
    (path,) = published.WRITERS[name](tmp_path).rglob(FILES[name])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ShardError) as caught:
        load(name, tmp_path)
    assert caught.value.shard == str(path)
    assert caught.value.try_


@pytest.mark.parametrize("name", ["cifar10", "svhn", "pathmnist", "mnist"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (path,) = published.WRITERS[name](tmp_path).rglob(FILES[name])
    path.unlink()
    with pytest.raises(ShardError, match=f"{FILES[name]}: no such file"):
        load(name, tmp_path)


def cifar_file(folder: Path, content: object) -> Path:
    """A cifar10 root whose first batch holds that."""
    path = published.cifar10(folder) / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(published.python2(content))
    return folder


ROWS = np.zeros((4, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": ROWS}, "no labels among data"),
        ({}, "no data and labels among none"),
        ({"data": ROWS[:, :9], "labels": [1] * 4}, r"uint8 \[4, 9\]"),
        ({"data": ROWS.astype(int), "labels": [1] * 4}, "int64"),
        ({"data": ROWS, "labels": [1] * 3}, "for 4 images"),
        ({"data": ROWS, "labels": [0.5] * 4}, "float64"),
        ({"data": ROWS, "labels": [0, -1, 0, 0]}, "one integer from 0"),
        ([1, 2], "cannot be read"),
        (3, "cannot be read"),
    ],
)
def test_a_batch_of_another_kind_is_refused(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(ShardError, match=f"data_batch_1: .*{words}"):
        load("cifar10", cifar_file(tmp_path, content))


X, Y = np.zeros((32, 32, 3, 4), np.uint8), np.ones((4, 1), np.uint8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"X": X}, "no matrix y"),
        ({"A": X}, "no matrix X and y"),
        ({"X": X[..., 0], "y": Y}, r"uint8 \[3, 32, 32\]"),
        ({"X": X[:5], "y": Y}, r"uint8 \[4, 5, 32, 3\]"),
        ({"X": X, "y": Y * 0}, "one integer from 1"),
        ({"X": X, "y": Y * 11}, "a label 11"),
        ({"X": X, "y": Y[1:]}, "for 4 images"),
    ],
)
def test_matrices_of_another_kind_are_refused(tmp_path: Path, content, words: str) -> None:
    savemat(published.svhn(tmp_path) / "train_32x32.mat", content)
    with pytest.raises(ShardError, match=f"train_32x32.mat: .*{words}"):
        load("svhn", tmp_path)


HEAD = bytes([0, 0, 8, 3]) + np.array([40, 28, 28], ">u4").tobytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0\0\x0d\x03" + HEAD[4:], "starts with 00000d03, want 00000803"),
        (HEAD[:9], "starts with"),
        (HEAD[:8] + np.array([32, 32], ">u4").tobytes(), r"is \[40, 32, 32\]"),
        (HEAD + bytes(31359), "31,359 of 31,360 bytes"),
        (HEAD + bytes(31361), "more than 31,360 bytes"),
        (HEAD[:4] + b"\xff" * 4 + HEAD[8:], "0 of 3,367,254,359,280 bytes"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
def test_an_idx_file_is_what_its_head_says(
    tmp_path: Path, content: bytes, words: str, packed: bool
) -> None:
    path = published.mnist(tmp_path) / "train-images-idx3-ubyte"
    path.write_bytes(content)
    if packed:
        path.unlink()
        path = path.with_name(path.name + ".gz")
        path.write_bytes(gzip.compress(content))
        words = words.replace("0 of 3,367,254,359,280 bytes", r"\[4294967295, 28, 28\] in a file")
    with pytest.raises(ShardError, match=words) as caught:
        load("mnist", tmp_path)
    assert caught.value.shard == str(path)


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    published.emnist("letters", 26, first=1)(tmp_path)
    path = tmp_path / "gzip" / "emnist-letters-test-labels-idx1-ubyte.gz"
    for label, words in ((27, "a label 27 among 26"), (0, "one integer from 1")):
        published.idx(path, np.full(8, label, np.uint8))
        with pytest.raises(ShardError, match=f"emnist-letters-test-labels.*{words}"):
            load("emnist_letters", tmp_path, Split.TEST)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("users"), "cannot be read: users"),
        (lambda c: c["users"].append("f9"), "cannot be read: zip"),
        (lambda c: c["users"].__setitem__(0, "f9"), "cannot be read: f9"),
        (lambda c: c["num_samples"].__setitem__(0, 3), "14 samples of f0120_07, not the 3"),
        (lambda c: c["user_data"]["f0120_07"]["y"].pop(), "for 14 images"),
        (lambda c: c["user_data"]["f0120_07"]["y"].__setitem__(0, 62), "a label 62"),
        (lambda c: c["user_data"]["f0120_07"]["y"].__setitem__(0, 0.5), "float64"),
        (lambda c: c["user_data"]["f0120_07"]["x"][0].__setitem__(0, 1.5), "outside of 0...1"),
        (lambda c: c["user_data"]["f0120_07"]["x"][0].__setitem__(0, float("nan")), "outside"),
        (lambda c: c["user_data"]["f0120_07"]["x"][0].pop(), "cannot be read"),
        (lambda c: c["user_data"]["f0120_07"].pop("x"), "cannot be read: x"),
    ],
)
def test_a_leaf_file_of_another_kind_is_refused(tmp_path: Path, change, words: str) -> None:
    path = published.femnist(tmp_path) / "data" / "train" / "all_data_0_niid_0.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ShardError, match=f"all_data_0_niid_0.json: .*{words}"):
        load("femnist", tmp_path)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    root = published.tiny_imagenet(tmp_path)
    (path,) = root.rglob("val_3.JPEG")
    published.Image.new("RGB", (32, 32)).save(path)
    with pytest.raises(ShardError, match=r"val_3\.JPEG.*is 32 x 32, want 64 x 64"):
        load("tiny_imagenet", root, Split.TEST)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("wnids.txt", "n00000003\n", "class n00000005 is not listed"),
        ("wnids.txt", "", "class n00000003 is not listed"),
        ("val_annotations.txt", "val_0.JPEG n00000003\n", "without file and class"),
        ("val_annotations.txt", "", "no test images"),
        ("val_annotations.txt", "val_99.JPEG\tn00000003\n", r"val_99\.JPEG: no such file"),
    ],
)
def test_a_listing_that_does_not_fit(tmp_path: Path, file: str, text: str, words: str) -> None:
    (path,) = published.tiny_imagenet(tmp_path).rglob(file)
    path.write_text(text)
    with pytest.raises(ShardError, match=words):
        load("tiny_imagenet", tmp_path, Split.TEST)


def test_a_class_without_a_folder(tmp_path: Path) -> None:
    root = published.tiny_imagenet(tmp_path)
    (root / "tiny-imagenet-200" / "wnids.txt").write_text("n00000042\n")
    with pytest.raises(ShardError, match=r"n00000042.*no such folder"):
        load("tiny_imagenet", root)


class Harmful:
    """What a hostile pickle does: calls something when it is read."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize(
    ("function", "name"),
    [(os.mkdir, f"{os.name}.mkdir"), (exec, "builtin.*exec"), (np.load, r"numpy\.load")],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_refused_and_nothing_runs(
    tmp_path: Path, function: Callable[..., object], name: str, protocol: int
) -> None:
    trace = tmp_path / "it-ran"
    argument = f"open({str(trace)!r}, 'w')" if function is exec else str(trace)
    content = {b"labels": Harmful(function, argument), b"data": ROWS}
    path = published.cifar10(tmp_path) / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(ShardError, match=rf"data_batch_1: asks for .*{name}"):
        load("cifar10", tmp_path)
    assert not trace.exists()


def test_no_codec_is_looked_up_by_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"c_codecs\nencode\n(Vtext\nVzlib_codec\ntR.")
    with pytest.raises(pickle.UnpicklingError, match="zlib"):
        unpickle(path)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_copy_by_a_later_python_is_read_too(tmp_path: Path, protocol: int) -> None:
    path = published.cifar10(tmp_path) / "cifar-10-batches-py" / "data_batch_1"
    before = load("cifar10", tmp_path)
    for keys in (str, str.encode):
        batch = {keys(k.decode()): v for k, v in unpickle(path).items()}
        path.write_bytes(pickle.dumps(batch, protocol))
        assert (load("cifar10", tmp_path).images == before.images).all()
        path.write_bytes(published.python2(batch))


@pytest.mark.parametrize("name", NAMES)
def test_raw_files_become_shards_and_come_back(tmp_path: Path, name: str) -> None:
    root = published.WRITERS[name](tmp_path / "raw")
    data = {"source": name, "root": str(root), "store": str(tmp_path / "store"), "alpha": 1.0}
    folder = prepare.make(RunConfig.of({"data": data, "clients": {"count": 2}}))
    manifest, source = Manifest.load(folder), SOURCES.get(name)
    assert (manifest.shape, manifest.classes) == (source.shape, source.classes)
    if source.mean:
        assert (manifest.mean, manifest.std) == (source.mean, source.std)
    train, test = (load(name, root, split) for split in Split)
    assert sum(client.samples for client in manifest.clients) == len(train.labels)
    held_out = read_part(folder, manifest, manifest.test)
    assert (held_out.images.numpy() == test.images).all()
    assert (held_out.labels.numpy() == test.labels).all()


def test_listing_the_sources_loads_no_decoder() -> None:
    code = (
        "import sys; from data_shards.sources import SOURCES; SOURCES.names();"
        "assert not {'scipy', 'PIL', 'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

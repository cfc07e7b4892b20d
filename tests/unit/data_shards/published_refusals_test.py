"""Is a published file that is damaged, missing, hostile or of another kind told by name?"""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from data_shards.sources import Split
from data_shards.unpickle import unpickle
from fedcore.errors import ConfigError, ShardError
from tests import published
from tests.unit.data_shards.published_test import NAMES, load


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

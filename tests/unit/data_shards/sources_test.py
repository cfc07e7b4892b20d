"""Does data that cannot be trained on end in one clear error?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_shards.sources import SOURCES, Arrays, Source, Split, checked
from fedcore.errors import ConfigError, ShardError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 5, 6), dtype=np.uint8)
LABELS = np.arange(12) % 3


def saved(folder: Path, images: np.ndarray = IMAGES) -> Path:
    """A file of the user's arrays."""
    path = folder / "mine.npz"
    np.savez(path, x_train=images, y_train=LABELS, x_test=images, y_test=LABELS)
    return path


def flipped(content: bytes) -> bytes:
    at = len(content) // 6  # inside the first array
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [lambda content: b"", lambda content: content[:300], flipped, lambda content: b"no archive"],
    ids=["empty", "truncated", "one flipped bit", "not a zip"],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage) -> None:
    path = saved(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ShardError) as caught:
        SOURCES.get("npz").load(path, Split.TRAIN)
    assert str(path) in str(caught.value)


def test_a_single_array_is_not_a_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", IMAGES)
    with pytest.raises(ShardError, match=r"mine\.npy.*x_train"):
        SOURCES.get("npz").load(tmp_path / "mine.npy", Split.TRAIN)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((12, 5, 6), (1, 5, 6)),
        ((12, 5, 6, 3), (3, 5, 6)),
        ((12, 3, 5, 6), (3, 5, 6)),
        ((12, 5, 6, 1), (1, 5, 6)),
    ],
)
def test_channels_come_first(tmp_path: Path, shape, wanted) -> None:
    path = saved(tmp_path, np.zeros(shape, dtype=np.uint8))
    assert SOURCES.get("npz").load(path, Split.TEST).images.shape[1:] == wanted


def test_four_channels_are_not_taken_for_rows(tmp_path: Path) -> None:
    path = saved(tmp_path, np.zeros((12, 5, 6, 4), dtype=np.uint8))
    with pytest.raises(ShardError, match="1 or 3 channels"):
        SOURCES.get("npz").load(path, Split.TRAIN)


def split(labels: list[int], size: int = 4) -> Arrays:
    images = np.zeros((len(labels), 1, size, size), dtype=np.uint8)
    return Arrays(images, np.array(labels, dtype=np.int64))


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (split([]), split([0, 1]), "training split"),
        (split([0, 1]), split([]), "test split"),
        (split([0, 1]), split([0, 1], size=5), "one shape"),
        (split([0, 0]), split([0]), "at least two classes"),
        (split([0, 3]), split([0]), "for 3 classes"),
        (split([0, 1]), split([-1]), "labels -1"),
    ],
)
def test_splits_that_do_not_fit(train: Arrays, test: Arrays, words: str) -> None:
    classes = 3 if "3" in words else None
    source = Source(lambda root, split: train, kind="digits", about="a test", classes=classes)
    with pytest.raises(ShardError, match=f"mine.*{words}"):
        checked("mine", source, train, test)


def test_labels_that_are_identifiers_are_refused() -> None:
    source = Source(lambda root, split: split_, kind="digits", about="a test")
    split_ = split([0, 10**9])
    with pytest.raises(ShardError, match="1000000000"):
        checked("mine", source, split_, split_)


USERS = np.array(["zoe", "ada", "bob"])[np.arange(12) % 3]


def folder_of_arrays(folder: Path, **more: np.ndarray) -> Path:
    """A folder of the user's arrays, each in a file of its own."""
    for name in ("x_train", "x_test"):
        np.save(folder / f"{name}.npy", IMAGES)
    for name in ("y_train", "y_test"):
        np.save(folder / f"{name}.npy", LABELS)
    for name, array in more.items():
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.mark.parametrize("ids", [USERS, np.arange(12) % 3 * -7 + 3])
def test_user_ids_are_numbered_in_their_order(tmp_path: Path, ids: np.ndarray) -> None:
    known = np.unique(ids).tolist()
    wanted = [known.index(value) for value in ids.tolist()]
    np.savez(
        tmp_path / "a.npz",
        x_train=IMAGES,
        y_train=LABELS,
        u_train=ids,
        x_test=IMAGES,
        y_test=LABELS,
    )
    for name, root in (("npz", tmp_path / "a.npz"), ("npy", folder_of_arrays(tmp_path))):
        assert SOURCES.get(name).load(root, Split.TEST).users is None
        if name == "npy":
            np.save(root / "u_train.npy", ids)
        assert SOURCES.get(name).load(root, Split.TRAIN).users.tolist() == wanted


def test_arrays_in_files_of_their_own_are_mapped(tmp_path: Path) -> None:
    samples = SOURCES.get("npy").load(folder_of_arrays(tmp_path), Split.TRAIN)
    assert isinstance(samples.images, np.memmap)
    assert (samples.pixels(np.array([3, 1]))[:, 0] == IMAGES[[3, 1]]).all()
    assert (samples.labels == LABELS).all()


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("x_train", IMAGES.astype(float), "images are float64"),
        ("x_train", np.zeros((12, 5, 6, 4), np.uint8), "1 or 3 channels"),
        ("y_train", LABELS[1:], "for 12 images"),
        ("y_train", LABELS - 1, "one integer from 0"),
        ("y_train", LABELS * 0.5, "float64"),
        ("u_train", USERS[1:], r"user ids are <U3 \[11\] for 12 images"),
        ("u_train", LABELS * 0.5, "user ids are float64"),
        ("u_train", np.array([None] * 12), "cannot be read: .*Python objects"),
        ("y_train", None, "cannot be read"),
        ("x_train", b"", "cannot be read"),
    ],
)
def test_an_array_that_does_not_fit_is_named(tmp_path: Path, name: str, array, words: str) -> None:
    path = folder_of_arrays(tmp_path) / f"{name}.npy"
    if isinstance(array, bytes):
        path.write_bytes(array)
    elif array is None:
        path.write_bytes(path.read_bytes()[:-3])
    else:
        np.save(path, array)
    with pytest.raises(ShardError, match=f"{path}: .*{words}"):
        SOURCES.get("npy").load(tmp_path, Split.TRAIN)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    (folder_of_arrays(tmp_path) / "y_test.npy").unlink()
    with pytest.raises(ShardError, match=r"y_test\.npy: no such file"):
        SOURCES.get("npy").load(tmp_path, Split.TEST)
    with pytest.raises(ConfigError, match=r"x_train\.npy.*Try --set data\.root="):
        SOURCES.get("npy").load(None, Split.TEST)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((4, 1, 8, 8), np.float32), [0, 1, 0, 1], "of float32. Try uint8"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], "Try uint8 [M, channels, height, width]"),
        (np.zeros((4, 8, 8, 1), np.uint8), [0, 1, 0, 1], "images.transpose(0, 3, 1, 2)"),
        (np.zeros((4, 1, 8, 8), np.uint8), [0, 1, 0], "training labels [3]"),
        (np.zeros((4, 1, 8, 8), np.uint8), [0.0, 1.0, 0.0, 1.0], "labels [4] of float64"),
    ],
)
def test_a_loader_that_returns_something_else_is_told(images, labels, words: str) -> None:
    arrays = Arrays(images, np.asarray(labels))
    with pytest.raises(ShardError) as told:
        checked("mine", Source(lambda root, split: arrays, "natural", "mine"), arrays, arrays)
    assert words in str(told.value)


def test_an_unknown_kind_of_images_is_told() -> None:
    with pytest.raises(ValueError, match="kind is one of digits, natural"):
        Source(lambda root, split: None, "image", "mine")

"""Does data that cannot be trained on end in one clear error?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_shards.sources import SOURCES, Arrays, Source, Split, checked
from fedcore.errors import ShardError

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

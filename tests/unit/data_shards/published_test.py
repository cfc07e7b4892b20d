"""Are the published file formats read as they are meant?"""

from __future__ import annotations

import mmap
import pickle
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from data_shards.manifest import Manifest
from data_shards.raw import located
from data_shards.resident import read_part
from data_shards.sources import SOURCES, Split
from data_shards.unpickle import unpickle
from fedcore.config import RunConfig
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

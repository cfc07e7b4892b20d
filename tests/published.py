"""Tiny datasets on disk, in exactly the formats in which the real ones are published."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import webdataset as wds
from PIL import Image
from scipy.io import savemat

from data_shards.sources import Split

COUNTS = {Split.TRAIN: 40, Split.TEST: 8}
WNIDS = [f"n{number:08d}" for number in (7, 3, 5)]  # not in alphabetical order, as published


class Python2(pickle._Pickler):
    """Writes texts and bytes both as Python 2 wrote its `str`, protocol 2."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def _string(self, value: str | bytes) -> None:
        raw = value.encode("latin1") if isinstance(value, str) else value
        short = len(raw) < 256
        head = pickle.SHORT_BINSTRING if short else pickle.BINSTRING
        self.write(head + len(raw).to_bytes(1 if short else 4, "little") + raw)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = _string


def python2(value: Any) -> bytes:
    """The bytes of a pickle as the numpy of Python 2 wrote it."""
    out = io.BytesIO()
    Python2(out, protocol=2).dump(value)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def pixels(split: Split, *shape: int) -> np.ndarray:
    """Images [M, ...] that differ from split to split."""
    draws = np.random.default_rng(len(split.value) + sum(shape))
    return draws.integers(0, 256, (COUNTS[split], *shape), dtype=np.uint8)


def numbers(split: Split, classes: int) -> np.ndarray:
    """Labels [M] that hold the first and the last class."""
    return np.arange(COUNTS[split])[::-1] * 3 % classes


CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer"]
CIFAR10_NAMES += ["dog", "frog", "horse", "ship", "truck"]
CIFAR100_NAMES = [f"fine_{number}" for number in range(100)]


def cifar10(folder: Path) -> Path:
    """Five training batches of eight and a test batch."""
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    rows, labels = pixels(Split.TRAIN, 3072), numbers(Split.TRAIN, 10).tolist()
    for i in range(5):
        part = slice(8 * i, 8 * i + 8)
        _batch(place / f"data_batch_{i + 1}", rows[part], labels=labels[part])
    _batch(place / "test_batch", pixels(Split.TEST, 3072), labels=numbers(Split.TEST, 10).tolist())
    meta = {"num_cases_per_batch": 8, "label_names": CIFAR10_NAMES, "num_vis": 3072}
    (place / "batches.meta").write_bytes(python2(meta))
    return folder


def cifar100(folder: Path) -> Path:
    """One file a split; with coarse labels, which are not to be taken."""
    place = folder / "cifar-100-python"
    place.mkdir(parents=True)
    for split in Split:
        labels = numbers(split, 100).tolist()
        coarse = [0] * COUNTS[split]
        _batch(place / split.value, pixels(split, 3072), fine_labels=labels, coarse_labels=coarse)
    names = {"fine_label_names": CIFAR100_NAMES, "coarse_label_names": ["fish", "flowers"]}
    (place / "meta").write_bytes(python2(names))
    return folder


def _batch(path: Path, rows: np.ndarray, **labels: list[int]) -> None:
    names = [f"image_{i}.png" for i in range(len(rows))]
    path.write_bytes(
        python2({"batch_label": path.name, "data": rows, "filenames": names, **labels})
    )


def svhn(folder: Path) -> Path:
    """X [32, 32, 3, M] and y [M, 1], a digit 0 as 10; the extra file is the test file again."""
    for split in Split:
        _mat(folder / f"{split.value}_32x32.mat", split)
    _mat(folder / "extra_32x32.mat", Split.TEST)
    return folder


def _mat(path: Path, split: Split) -> None:
    digits = numbers(split, 10)
    y = np.where(digits == 0, 10, digits).astype(np.uint8)[:, None]
    x = pixels(split, 32, 32, 3).transpose(1, 2, 3, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": x, "y": y}, do_compression=True)


def tiny_imagenet(folder: Path) -> Path:
    """Flat colours; the first image of each class is grey. Three of the 200 classes."""
    place = folder / "tiny-imagenet-200"
    (place / "val" / "images").mkdir(parents=True)
    (place / "wnids.txt").write_text("\n".join(WNIDS))
    for number, wnid in enumerate(WNIDS):
        for i in range(COUNTS[Split.TRAIN] // 3):
            _jpeg(place / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", number, grey=i == 0)
    lines = []
    for i in range(COUNTS[Split.TEST]):
        _jpeg(place / "val" / "images" / f"val_{i}.JPEG", i % 3, grey=False)
        lines.append(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t63\t63\n")
    (place / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def _jpeg(path: Path, number: int, *, grey: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (64, 64), (40 * number, 20, 200))
    (image.convert("L") if grey else image).save(path, "JPEG", quality=95)


def pathmnist(folder: Path) -> Path:
    """Three splits in one file, labels [M, 1]."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"val_images": np.zeros((2, 28, 28, 3), np.uint8), "val_labels": np.zeros((2, 1))}
    for split in Split:
        arrays[f"{split.value}_images"] = pixels(split, 28, 28, 3)
        arrays[f"{split.value}_labels"] = numbers(split, 9).astype(np.uint8)[:, None]
    np.savez(folder / "pathmnist.npz", **arrays)
    return folder


def idx(path: Path, array: np.ndarray) -> None:
    """An idx file of bytes; gzipped, if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = head + np.ascontiguousarray(array).tobytes()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def mnist(folder: Path) -> Path:
    """Plain files, as torchvision leaves them."""
    for split, start in ((Split.TRAIN, "train"), (Split.TEST, "t10k")):
        idx(folder / f"{start}-images-idx3-ubyte", pixels(split, 28, 28))
        idx(folder / f"{start}-labels-idx1-ubyte", numbers(split, 10).astype(np.uint8))
    return folder


def emnist(part: str, classes: int, first: int = 0) -> Callable[[Path], Path]:
    """Compressed, columns before rows, in the folder that the published archive unpacks to."""

    def writer(folder: Path) -> Path:
        for split in Split:
            start = folder / "gzip" / f"emnist-{part}-{split.value}"
            images, labels = pixels(split, 28, 28), numbers(split, classes) + first
            idx(Path(f"{start}-images-idx3-ubyte.gz"), images.transpose(0, 2, 1))
            idx(Path(f"{start}-labels-idx1-ubyte.gz"), labels.astype(np.uint8))
        return folder

    return writer


WRITER_NAMES = ["f0120_07", "f0003_41", "f0441_12"]  # as LEAF names them, in no order


def femnist(folder: Path) -> Path:
    """Two files for training, one for test; a writer has about a third of the images."""
    for split in Split:
        rows = np.array_split(np.arange(COUNTS[split]), len(WRITER_NAMES))
        people = list(zip(WRITER_NAMES, rows, strict=True))
        files = [people[:2], people[2:]] if split is Split.TRAIN else [people]
        for number, held in enumerate(files):
            _leaf(folder / "data" / split.value / f"all_data_{number}_niid_0.json", split, held)
    return folder


def _leaf(path: Path, split: Split, people: list[tuple[str, np.ndarray]]) -> None:
    x, y = pixels(split, 784) / 255, numbers(split, 62)
    data = {name: {"x": x[rows].tolist(), "y": y[rows].tolist()} for name, rows in people}
    names, counts = [name for name, _ in people], [len(rows) for _, rows in people]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": names, "num_samples": counts, "user_data": data}))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The image's file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


CLASSES = ["ant", "bee", "cat"]


def image_folder(folder: Path, held_out: str = "test", mode: str = "RGB") -> Path:
    """Images 8x6 (width, height) in train/CLASS and, with fewer, in the test split's folder."""
    for split, name in ((Split.TRAIN, "train"), (Split.TEST, held_out)):
        for row, image in enumerate(pixels(split, 6, 8, 3)):
            place = folder / name / CLASSES[row % 3] / f"{row:03d}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).convert(mode).save(place)
    return folder


def webdataset(folder: Path, held_out: str = "test-{}.tar", **more: Any) -> Path:
    """Tars as webdataset's own writer makes them: two for training, one for test."""
    for split, name, tars in ((Split.TRAIN, "train-{}.tar", 2), (Split.TEST, held_out, 1)):
        for number, rows in enumerate(np.array_split(np.arange(COUNTS[split]), tars)):
            tar(folder / name.format(number), [_sample(split, row, **more) for row in rows])
    return folder


def _sample(split: Split, row: int, **more: Any) -> dict[str, Any]:
    image = encoded(Image.fromarray(pixels(split, 6, 8, 3)[row]))
    parts = {name: make(row) for name, make in more.items()}
    return {"__key__": f"{row:06d}", "png": image, "cls": int(row) % 3, **parts}


def tar(path: Path, samples: list[dict[str, Any]]) -> None:
    """Samples by their `__key__`; values are encoded as webdataset does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wds.TarWriter(str(path)) as writer:
        for sample in samples:
            writer.write(sample)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "svhn_extra": svhn,
    "tiny_imagenet": tiny_imagenet,
    "pathmnist": pathmnist,
    "mnist": mnist,
    "fashion_mnist": mnist,
    "emnist_balanced": emnist("balanced", 47),
    "emnist_letters": emnist("letters", 26, first=1),
    "femnist": femnist,
}

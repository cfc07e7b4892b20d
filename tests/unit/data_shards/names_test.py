"""Do sources say what their classes are called, and does nothing else follow from it?"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100, EMNIST, FashionMNIST
from typer.testing import CliRunner

from data_shards.manifest import Manifest
from data_shards.names import MOST_CHARACTERS, trouble_with
from data_shards.sources import SOURCES, Arrays, Source, named
from data_shards.write import Dealt, write
from fedcore.config import RunConfig
from fedcore.errors import ShardError
from launcher import prepare
from launcher.commands import app
from launcher.rundir import RunDir
from launcher.shard_plot import class_map
from tests import published

ARRAYS = Arrays(np.zeros((6, 1, 4, 4), dtype=np.uint8), np.arange(6) % 2)
SOURCE = Source(lambda root, split: ARRAYS, kind="digits", about="a test")


def manifest_of(folder: Path, names: tuple[str, ...] | None) -> Manifest:
    source = replace(SOURCE, class_names=names)
    return write(folder, "toy", source, ARRAYS, ARRAYS, [Dealt(np.arange(6))], {})


def names_of(name: str, root: Path | None) -> tuple[str, ...] | None:
    return named(SOURCES.get(name), root).class_names


# -- what sources say


def test_names_that_are_constants_agree_with_torchvision() -> None:
    for part, theirs in EMNIST.classes_split_dict.items():
        ours = names_of(f"emnist_{part}", None)
        assert list(ours or ()) == [name for name in theirs if name != "N/A"]
    assert list(SOURCES.get("fashion_mnist").class_names or ()) == FashionMNIST.classes


@pytest.mark.parametrize("name", [name for name, _ in SOURCES])
def test_constants_fit_their_dataset(name: str) -> None:
    source = SOURCES.get(name)
    if source.class_names is not None:
        classes = source.classes or len(source.class_names)
        assert trouble_with(source.class_names, classes) is None


@pytest.mark.parametrize(("name", "theirs"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_names_of_cifar_are_those_of_its_meta_file(
    tmp_path: Path, name: str, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = published.WRITERS[name](tmp_path)
    file = root / theirs.base_folder / theirs.meta["filename"]
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *given: True)
    assert names_of(name, root) == tuple(theirs(str(root)).classes)
    renamed = [f"{number} é" for number in range(SOURCES.get(name).classes or 0)]
    file.write_bytes(pickle.dumps({theirs.meta["key"]: renamed}))
    assert names_of(name, root) == tuple(renamed)
    file.unlink()
    constant = tuple(published.CIFAR10_NAMES) if name == "cifar10" else None
    assert names_of(name, root) == constant


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80", "cannot be read"),
        (pickle.dumps(print), "asks for builtins.print"),
        (pickle.dumps({"fine_label_names": [["a"], ["b"]]}), "class names are <U1"),
        (pickle.dumps({"fine_label_names": list(range(100))}), "class names are int64"),
        (pickle.dumps({"fine_label_names": [b"\xff"] * 100}), "cannot be read"),
    ],
)
def test_a_damaged_meta_file_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    root = published.cifar100(tmp_path)
    (root / "cifar-100-python" / "meta").write_bytes(content)
    with pytest.raises(ShardError, match=rf"cifar-100-python/meta: .*{words}"):
        names_of("cifar100", root)


def test_tiny_imagenet_has_its_ids_and_a_part_of_it_none(tmp_path: Path) -> None:
    root = published.tiny_imagenet(tmp_path)
    assert names_of("tiny_imagenet", root) is None
    ids = [f"n{number:08d}" for number in range(200)]
    (root / "tiny-imagenet-200" / "wnids.txt").write_text("\n".join(ids))
    assert names_of("tiny_imagenet", root) == tuple(ids)


def folders(root: Path, names: tuple[str, ...]) -> Path:
    published.image_folder(root)
    for old, new in zip(published.CLASSES, names, strict=True):
        for split in ("train", "test"):
            (root / split / old).rename(root / split / new)
    return root


def npz(root: Path, names: Any) -> Path:
    arrays = {f"{x}_{part}": np.arange(6) % 3 for x in "y" for part in ("train", "test")}
    images = {f"x_{part}": np.zeros((6, 4, 4), np.uint8) for part in ("train", "test")}
    root.mkdir(exist_ok=True)
    np.savez(root / "own.npz", class_names=np.array(names), **arrays, **images)
    return root / "own.npz"


def npy(root: Path, names: Any) -> Path:
    with np.load(npz(root, names)) as file:
        for name, array in file.items():
            np.save(root / f"{name}.npy", array)
    return root


def tars(root: Path, names: tuple[str, ...]) -> Path:
    published.webdataset(root)
    (root / "classnames.txt").write_text("".join(f"{name}\n" for name in names), "utf-8")
    return root


OWN: dict[str, Callable[[Path, Any], Path]] = {
    "image_folder": folders,
    "npz": npz,
    "npy": npy,
    "webdataset": tars,
}


def made(name: str, root: Path) -> Manifest:
    data = {"source": name, "root": str(root), "store": str(root.parent / "store"), "alpha": 9.0}
    return Manifest.load(prepare.make(RunConfig.of({"data": data, "clients": {"count": 2}})))


@pytest.mark.parametrize("name", OWN)
def test_names_of_your_own_data_stand_in_the_manifest(tmp_path: Path, name: str) -> None:
    names = ("1 ant", "crème brûlée", "می\u200cخواهم")
    root = OWN[name](tmp_path / "own", names)
    assert made(name, root).class_names == names


@pytest.mark.parametrize("name", ["npz", "npy", "webdataset"])
def test_your_own_data_need_not_name_their_classes(tmp_path: Path, name: str) -> None:
    root = OWN[name](tmp_path / "own", ("a", "b", "c"))
    if name == "npz":
        with np.load(root) as file:
            arrays = {key: file[key] for key in file if key != "class_names"}
        np.savez(root, **arrays)
    else:
        (root / {"npy": "class_names.npy", "webdataset": "classnames.txt"}[name]).unlink()
    assert made(name, root).class_names is None


@pytest.mark.parametrize(
    ("name", "names", "words"),
    [
        ("image_folder", ("a", "b", "c\nd"), r"the name of class 2 is 'c\\nd', of 3 characters"),
        ("image_folder", ("a", "b", "c\udce4"), r"the name of class 2 is 'c\\udce4'"),
        ("npz", ("a", "b\x1b[31m", "c"), r"the name of class 1 is 'b\\x1b\[31m'"),
        ("npz", ("a", "b", "c" * 10_000), r"the name of class 2 is 'c{40}', of 10,000 characters"),
        ("npz", ("a", "b"), "2 class names for 3 classes"),
        ("npz", (1, 2, 3), "class names are int64"),
        ("npz", [["a"], ["b"], ["c"]], r"class names are <U1 \[3, 1\]"),
        ("npy", ("a", " ", "c"), r"the name of class 1 is ' ', of 1 characters"),
        ("npy", [b"\xff", b"b", b"c"], "cannot be read"),
        ("webdataset", ("a", "b", "c", "d"), "4 class names for 3 classes"),
        ("webdataset", ("a\u202e", "b", "c"), r"the name of class 0 is 'a\\u202e'"),
    ],
)
def test_names_that_cannot_be_are_refused(
    tmp_path: Path, name: str, names: Any, words: str
) -> None:
    root = OWN[name](tmp_path / "own", names)
    with pytest.raises(ShardError, match=rf"{words}.*Try"):
        made(name, root)
    assert not [*(tmp_path / "store").glob("*/manifest.json")]


# -- the manifest


def test_names_are_not_part_of_what_a_run_is_compared_with(tmp_path: Path) -> None:
    plain, named = (manifest_of(tmp_path / x, n) for x, n in (("a", None), ("b", ("cat", "dog"))))
    assert plain.digest() == named.digest()
    assert Manifest.load(tmp_path / "b").class_names == ("cat", "dog")
    assert replace_classes(tmp_path / "b", class_names=["a", "b"]).digest() == plain.digest()
    assert replace_classes(tmp_path / "b", mean=[0.125]).digest() != plain.digest()


def replace_classes(folder: Path, **facts: object) -> Manifest:
    said = json.loads((folder / "manifest.json").read_text()) | facts
    (folder / "manifest.json").write_text(json.dumps(said))
    return Manifest.load(folder)


@pytest.mark.parametrize(
    ("version", "digest"),
    [
        (1, "9778865a874644e42454b8b65148248b5a93301143da658c3a8a58449ad77aa9"),
        (2, "460f8b24e6d4be172fa41164e4fa182854952c0c3ea65b98aa5a63628fe04167"),
    ],
)
def test_a_manifest_from_before_has_the_digest_that_checkpoints_know(
    tmp_path: Path, version: int, digest: str
) -> None:
    shard = {"samples": 2, "bytes": 5120, "sha256": "ab" * 32}
    client = {"client": 0, "samples": 2, "label_counts": [1, 1]}
    client["shards"] = [shard | {"file": "client_00000/00000.tar"}]
    test = {"samples": 2, "label_counts": [2, 0], "shards": [shard | {"file": "test/00000.tar"}]}
    said = {"format_version": version, "source": "toy", "kind": "natural", "classes": 2}
    said |= {"shape": [1, 2, 2], "mean": [0.5], "std": [0.25], "clients": [client], "test": test}
    said["partition"] = {"name": "iid", "clients": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    found = Manifest.load(tmp_path)
    assert found.digest() == digest
    assert found.class_names is None


@pytest.mark.parametrize(
    "names",
    [[], ["a"], ["a", "b", "c"], ["a", ""], ["a", "b\n"], ["a", "b" * 256], ["a", 1], "ab", {}],
)
def test_a_manifest_with_other_names_is_told(tmp_path: Path, names: Any) -> None:
    manifest_of(tmp_path / "toy", ("cat", "dog"))
    with pytest.raises(ShardError, match=r"manifest\.json: (whole file|class_names).*Try"):
        replace_classes(tmp_path / "toy", class_names=names)


def test_all_names_together_are_bounded() -> None:
    names = [f"{number:0{MOST_CHARACTERS}d}" for number in range(20_000)]
    assert trouble_with(names[:16_000], 16_000) is None
    assert "5,100,000 characters" in (trouble_with(names, 20_000) or "")


# -- where they are shown


def test_show_says_which_column_is_which(tmp_path: Path) -> None:
    manifest_of(tmp_path / "toy", ("[red]cat", "dog" * 20))
    shown = CliRunner().invoke(app, ["shards", "show", str(tmp_path / "toy")]).output
    assert f"classes: 0 [red]cat, 1 {('dog' * 20)[:39]}…\n" in shown
    for names in (None, ("0", "1")):  # there is nothing to say
        manifest_of(tmp_path / "toy", names)
        shown = CliRunner().invoke(app, ["shards", "show", str(tmp_path / "toy")]).output
        assert "classes:" not in shown


def test_the_map_writes_names_below_its_columns() -> None:
    def below(classes: int, names: tuple[str, ...] | None) -> list[str]:
        axes = class_map(np.ones((3, classes)), "x", names).axes[0]
        return [label.get_text() for label in axes.get_xticklabels()]

    assert below(2, ("cat", "$dog$")) == ["cat", r"\$dog\$"]
    assert below(3, None) == ["0", "1", "2"]
    assert below(10, ("a long name of a class",) * 10) == ["a long name of …"] * 10
    assert not {"0000", "0001"} & set(below(30, tuple(f"{n:04d}" for n in range(30))))


@pytest.mark.parametrize("names", [None, "ab", ["a"], ["a", "b\n"], ["a", 1], {"a": 1, "b": 2}])
def test_a_run_with_other_names_has_none(tmp_path: Path, names: Any) -> None:
    run = RunDir(tmp_path)
    run.write_clients(2, [[1, 2]], ("cat", "dog"))
    assert run.read_class_names(2) == ["cat", "dog"]
    assert run.read_class_names(3) is None
    said = {"classes": 2, "label_counts": [[1, 2]], "class_names": names}
    (tmp_path / "clients.json").write_text(json.dumps(said))
    assert run.read_class_names(2) is None
    assert run.read_clients() == [[1, 2]]

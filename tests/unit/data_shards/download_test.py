"""Does `--download` fetch what the reader then reads, and fail in one clear line?"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from torchvision import datasets
from torchvision.datasets import mnist
from typer.testing import CliRunner

from data_shards.download import download
from data_shards.sources import SOURCES, Split
from fedcore.errors import ConfigError, ShardError
from launcher.commands import app
from tests import published

WITH = [name for name, source in SOURCES if source.download]


def test_these_can_be_downloaded() -> None:
    emnist = [f"emnist_{part}" for part in mnist.EMNIST.splits]
    others = ["cifar10", "cifar100", "svhn", "svhn_extra", "mnist", "fashion_mnist"]
    assert sorted(WITH) == sorted([*others, *emnist])


class Recorder:
    """Stands in for a dataset of torchvision: notes what it was asked for."""

    calls: list[dict[str, Any]]

    def __init__(self, root: Path, **given: Any) -> None:
        self.calls.append({"root": root, **given})


@pytest.mark.parametrize("name", WITH)
def test_torchvision_is_asked_in_its_own_words(tmp_path: Path, name: str, monkeypatch) -> None:
    classes = {"svhn": "SVHN", "mnist": "MNIST", "fashion": "FashionMNIST", "emnist": "EMNIST"}
    kind = classes.get(name.split("_")[0], name.upper())
    real = getattr(datasets, kind)
    monkeypatch.setattr(Recorder, "calls", [], raising=False)
    monkeypatch.setattr(datasets, kind, Recorder)
    download(name, tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    assert all(c["root"] == tmp_path / "new" and c["download"] for c in Recorder.calls)
    parts = [call.get("split") for call in Recorder.calls]
    if kind == "SVHN":
        assert parts == [*(["train"] if name == "svhn" else ["train", "extra"]), "test"]
        assert set(parts) <= set(real.split_list)
    elif kind == "EMNIST":
        assert [f"emnist_{part}" for part in parts] == [name]
    else:
        assert parts == [None]


def fake(folder: Path):
    """Of `download_and_extract_archive`: what the net would give is taken from a folder."""

    def fetch(url: str, download_root: str, filename: str = "", md5: str | None = None) -> None:
        for file in folder.rglob(filename.removesuffix(".gz") or "*.gz"):
            place = Path(download_root) / (file.parent.name if not filename else "")
            place.mkdir(exist_ok=True)
            shutil.copy(file, place)

    return fetch


@pytest.mark.parametrize(
    ("name", "kind", "split"),
    [("mnist", "MNIST", {}), ("fashion_mnist", "FashionMNIST", {})]
    + [(f"emnist_{part}", "EMNIST", {"split": part}) for part in ("balanced", "letters")],
)
def test_what_torchvision_leaves_is_read_as_torchvision_does(
    tmp_path: Path, name: str, kind: str, split: dict[str, str], monkeypatch
) -> None:
    net = published.WRITERS[name](tmp_path / "net")
    monkeypatch.setattr(mnist, "download_and_extract_archive", fake(net))
    download(name, tmp_path / "root")
    first = int(name == "emnist_letters")
    for part in Split:
        theirs = getattr(datasets, kind)(tmp_path / "root", train=part is Split.TRAIN, **split)
        images = theirs.data.numpy()
        images = images.swapaxes(1, 2) if "emnist_" in name else images
        ours = SOURCES.get(name).load(tmp_path / "root", part)
        assert (ours.images[:, 0] == images).all()
        assert (ours.labels == theirs.targets.numpy() - first).all()


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["shards", "make", "smoke", *words, "--download"])


def given(tmp_path: Path, name: str = "mnist") -> list[str]:
    values = {"source": name, "root": tmp_path / "root", "store": tmp_path / "store"}
    return [word for k, v in values.items() for word in ("--set", f"data.{k}={v}")]


def test_shards_are_made_of_what_was_downloaded(tmp_path: Path, monkeypatch) -> None:
    net = fake(published.mnist(tmp_path / "net"))
    monkeypatch.setattr(mnist, "download_and_extract_archive", net)
    done = call(*given(tmp_path))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "root" / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").is_file()
    assert list((tmp_path / "store").rglob("manifest.json"))


@pytest.mark.parametrize(
    "problem",
    [
        URLError("[Errno -3] Temporary failure in name resolution"),
        RuntimeError("Error downloading train-images-idx3-ubyte.gz:\nTried a mirror"),
        OSError(28, "No space left on device"),
        gzip.BadGzipFile("Not a gzipped file"),
    ],
)
def test_a_network_that_fails_is_one_clear_line(tmp_path: Path, problem, monkeypatch) -> None:
    def fails(*words: object, **more: object) -> None:
        raise problem

    monkeypatch.setattr(mnist, "download_and_extract_archive", fails)
    done = call(*given(tmp_path))
    assert done.exit_code == 3
    assert "mnist cannot be downloaded: " in done.output
    assert "docs/data.md" in done.output
    assert "Traceback" not in done.output
    assert not list(tmp_path.rglob("manifest.json"))
    with pytest.raises(ShardError):
        download("mnist", tmp_path / "root")


def test_a_source_without_a_download_says_which_have_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--download: got 'npz', want one of: .*cifar10"):
        download("npz", tmp_path)
    done = call(*given(tmp_path, "tiny_imagenet"))
    assert done.exit_code == 2
    assert "--download" in done.output


def test_a_download_needs_a_place() -> None:
    with pytest.raises(ConfigError, match=r"data\.root: got null.*/datasets/svhn"):
        download("svhn", None)


def test_text_is_not_downloaded(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["shards", "make", "lm_smoke", "--download"])
    assert done.exit_code == 2
    assert "a dataset of images" in done.output


def test_nothing_is_downloaded_unless_asked(tmp_path: Path, monkeypatch) -> None:
    def never(*words: object, **more: object) -> None:
        raise AssertionError("asked the net")

    monkeypatch.setattr(mnist, "download_and_extract_archive", never)
    done = CliRunner().invoke(app, ["shards", "make", "smoke", *given(tmp_path)])
    assert done.exit_code == 3
    assert "no such file" in done.output

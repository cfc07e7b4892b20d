"""Are folders and tars of images read as they are, and is everything wrong with them told?"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from data_shards import pictures
from data_shards.manifest import Manifest
from data_shards.sources import SOURCES, Files, Split
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError
from launcher import prepare
from tests import published

WRITERS = {"image_folder": published.image_folder, "webdataset": published.webdataset}


def load(
    name: str, root: Path | None, split: Split = Split.TRAIN, size: int | None = None
) -> Files:
    return SOURCES.get(name).load(root, split, size)


def everything(samples: Files) -> np.ndarray:
    return samples.pixels(np.arange(len(samples.labels)))


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("name", WRITERS)
def test_images_and_labels_are_those_of_the_files(tmp_path: Path, name: str, split: Split) -> None:
    samples = load(name, WRITERS[name](tmp_path), split)
    count = published.COUNTS[split]
    by_class = sorted(range(count), key=lambda row: row % 3)
    order = np.array(by_class if name == "image_folder" else range(count))
    wanted = published.pixels(split, 6, 8, 3).transpose(0, 3, 1, 2)[order]
    assert (samples.labels == order % 3).all()
    assert (everything(samples) == wanted).all()
    assert samples.shape == (3, 6, 8)
    assert samples.users is None
    extension, data = samples.file(4)
    assert extension == "png"
    assert (np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1) == wanted[4]).all()


def test_a_folder_agrees_with_torchvision(tmp_path: Path) -> None:
    root = published.image_folder(tmp_path)
    for kind in ("jpg", "jpeg", "webp", "JPG"):
        Image.open(root / "train" / "ant" / "000.png").save(root / "train" / "bee" / f"x.{kind}")
    theirs, ours = ImageFolder(str(root / "train")), load("image_folder", root)
    assert [str(path) for path, _ in theirs.samples] == list(ours.names)
    assert theirs.targets == ours.labels.tolist()
    images = everything(ours).transpose(0, 2, 3, 1)
    assert all((np.asarray(image) == images[i]).all() for i, (image, _) in enumerate(theirs))


def test_one_tree_is_split_the_same_each_time(tmp_path: Path) -> None:
    root = published.image_folder(tmp_path) / "train"
    train, test = (load("image_folder", root, split) for split in Split)
    assert not set(train.names) & set(test.names)
    assert len({*train.names, *test.names}) == 40
    assert np.bincount(test.labels).tolist() == [3, 3, 3]
    assert load("image_folder", root, Split.TEST).names == test.names


@pytest.mark.parametrize(
    ("name", "held_out"),
    [("image_folder", "val"), ("webdataset", "test/{}.tar"), ("webdataset", "val-{:04d}.tar")],
)
def test_other_names_of_the_test_split(tmp_path: Path, name: str, held_out: str) -> None:
    root = WRITERS[name](tmp_path, held_out)
    assert len(load(name, root, Split.TEST).labels) == 8


@pytest.mark.parametrize("name", WRITERS)
def test_images_are_brought_to_a_size(tmp_path: Path, name: str) -> None:
    samples = load(name, WRITERS[name](tmp_path), size=5)
    assert samples.shape == (3, 5, 5)
    assert everything(samples).shape == (40, 3, 5, 5)


def other_size(root: Path) -> str:
    """The folder's fifth image of the second class, now of another size."""
    path = root / "train" / "bee" / "013.png"
    Image.open(path).resize((7, 6)).save(path)
    return str(path)


def test_images_of_several_sizes_need_one_to_be_brought_to(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pictures, "BLOCK", 3)
    root = published.image_folder(tmp_path)
    Image.new("RGB", (3, 3)).save(root / "train" / "cat" / "002.png")  # a later one
    named = other_size(root)
    with pytest.raises(ShardError, match=r"is 7 x 6, want 8 x 6\. Try data\.size=64") as caught:
        load("image_folder", root)
    assert caught.value.shard == named
    assert everything(load("image_folder", root, size=6)).shape == (40, 3, 6, 6)


def test_members_of_several_sizes_need_one_to_be_brought_to(tmp_path: Path) -> None:
    root = published.webdataset(tmp_path)
    small = published.encoded(Image.new("RGB", (3, 2)))
    published.tar(root / "train-9.tar", [{"__key__": "last", "png": small, "cls": 0}])
    with pytest.raises(ShardError, match=r"train-9\.tar: last\.png: is 3 x 2, want 8 x 6"):
        load("webdataset", root)
    assert load("webdataset", root, size=8).shape == (3, 8, 8)


def test_images_are_grey_if_all_of_training_are(tmp_path: Path) -> None:
    root = published.image_folder(tmp_path, mode="L")
    assert load("image_folder", root).shape == (1, 6, 8)
    assert everything(load("image_folder", root, Split.TEST)).shape == (8, 1, 6, 8)
    path = root / "train" / "cat" / "038.png"
    Image.open(path).convert("RGB").save(path)
    images = everything(load("image_folder", root))
    assert images.shape == (40, 3, 6, 8)
    assert (images == images[:, :1]).all()


def test_nothing_hidden_and_no_link_out_is_followed(tmp_path: Path) -> None:
    root = published.image_folder(tmp_path / "root")
    train, elsewhere = root / "train", published.image_folder(tmp_path / "elsewhere") / "train"
    (train / "ant" / "out.png").symlink_to(elsewhere / "ant" / "000.png")
    (train / "out").symlink_to(elsewhere / "ant")
    (train / "ant" / ".hidden.png").write_bytes(b"no image")
    (train / ".cache").mkdir()
    (train / "ant" / "notes.txt").write_text("no image")
    (train / "ant" / "again.png").symlink_to(train / "bee" / "001.png")  # stays inside
    assert len(load("image_folder", root).labels) == 41
    (tmp_path / "link").symlink_to(root)  # the root itself may lie anywhere
    assert len(load("image_folder", tmp_path / "link").labels) == 41


@pytest.mark.parametrize("name", WRITERS)
def test_without_a_root_there_is_an_example(name: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.root.*Try --set data\.root="):
        load(name, None)


@pytest.mark.parametrize("name", WRITERS)
def test_a_root_without_the_files_is_told_by_name(tmp_path: Path, name: str) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ShardError, match=f"{root}.*no such f.*Try"):
            load(name, root)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: (root / "test").rename(root / "tests"), "no such folder in it: test or val"),
        (lambda root: (root / "train").rename(root / "trein"), "no such folder in it: train"),
        (lambda root: (root / "train" / "dog").mkdir(), "dog: has no .jpg"),
        (lambda root: (root / "test" / "dog").mkdir(), "dog: is a class without training images"),
        (lambda root: (root / "train/ant/x.tiff").touch(), r"x\.tiff: is none of jpg, png and"),
        (lambda root: (root / "train/ant/000.png").write_bytes(b"?"), r"000\.png: is none of"),
        (lambda root: (root / "train/ant/x.jpg").symlink_to(root / "x"), None),
    ],
)
def test_a_folder_that_does_not_fit(tmp_path: Path, change, words: str | None) -> None:
    root = published.image_folder(tmp_path)
    change(root)
    if words is None:  # a link that leads nowhere
        assert len(load("image_folder", root).labels) == 40
        return
    with pytest.raises(ShardError, match=words):
        [load("image_folder", root, split) for split in Split]


def test_a_damaged_image_is_named_when_it_is_read(tmp_path: Path) -> None:
    root = published.image_folder(tmp_path)
    path = root / "train" / "bee" / "004.png"
    path.write_bytes(path.read_bytes()[:-30])
    samples = load("image_folder", root)
    with pytest.raises(ShardError, match=rf"{path}: cannot be decoded"):
        everything(samples)
    path.unlink()
    with pytest.raises(ShardError, match=rf"{path}: cannot be read: No such file"):
        everything(samples)


@pytest.mark.parametrize("users", [["zoe", "ada"], [70, 9]])
def test_users_of_tars_are_numbered(tmp_path: Path, users: list[str | int]) -> None:
    root = published.webdataset(tmp_path, json=lambda row: {"user": users[row % 2], "more": 1})
    samples = load("webdataset", root)
    assert (samples.users == (np.arange(40) + 1) % 2).all()  # ada and 9 come first


def test_unknown_members_of_a_sample_are_left_out(tmp_path: Path) -> None:
    root = published.webdataset(tmp_path, txt=str, json=lambda row: {"no": "user"})
    samples = load("webdataset", root)
    assert samples.users is None
    assert len(samples.labels) == 40


def test_a_tar_by_another_program_is_read_too(tmp_path: Path) -> None:
    root = published.webdataset(tmp_path / "made")
    for number in range(2):
        inside = tmp_path / f"files{number}"
        with tarfile.open(root / f"train-{number}.tar") as tar:
            for member in tar.getmembers():
                inside.mkdir(exist_ok=True)
                (inside / member.name).write_bytes(tar.extractfile(member).read())
        with tarfile.open(root / f"train-{number}.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(inside, "./äé/" + "long/" * 40)
    samples = load("webdataset", root)
    wanted = published.pixels(Split.TRAIN, 6, 8, 3).transpose(0, 3, 1, 2)
    assert sorted(map(bytes, everything(samples))) == sorted(map(bytes, wanted))


def test_tars_without_samples_are_told(tmp_path: Path) -> None:
    root = published.webdataset(tmp_path)
    for number in range(2):
        published.tar(root / f"train-{number}.tar", [])
    with pytest.raises(ShardError, match=rf"{root}: no training images"):
        load("webdataset", root)


GOOD = published.encoded(Image.new("RGB", (8, 6)))


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"png": GOOD}, r"a: has png\. Try cls and one of"),
        ({"cls": 1}, "a: has cls"),
        ({"cls": 1, "txt": "x"}, "a: has cls, txt"),
        ({"cls": 1, "png": GOOD, "jpg": Image.new("RGB", (8, 6))}, "a: has cls, jpg, png"),
        ({"cls": b"-1", "png": GOOD}, r"a\.cls: is b'-1'"),
        ({"cls": b"1.0", "png": GOOD}, r"a\.cls: is b'1\.0'"),
        ({"cls": b"", "png": GOOD}, r"a\.cls: is b''"),
        ({"cls": b"9" * 30, "png": GOOD}, r"a\.cls: is b'999"),
        ({"cls": b"9" * (2**20 + 1), "png": GOOD}, r"a\.cls: has 1,048,577 bytes"),
        ({"cls": 1, "png": b"GIF89a"}, r"a\.png: is none of"),
        ({"cls": 1, "png": GOOD, "json": b"{"}, r"a\.json: is no JSON"),
        ({"cls": 1, "png": GOOD, "json": b"[" * 100_000}, r"a\.json: is no JSON"),
        ({"cls": 1, "png": GOOD, "json": {"user": 1.5}}, r"a\.json: user is 1\.5"),
        ({"cls": 1, "png": GOOD, "json": {"user": True}}, r"a\.json: user is True"),
        ({"cls": 1, "png": GOOD, "json": {"user": "b"}}, "user ids are <U1 .1. for 41 images"),
    ],
)
def test_a_sample_of_another_kind_is_refused(tmp_path: Path, sample, words: str) -> None:
    root = published.webdataset(tmp_path)
    published.tar(root / "train-2.tar", [{"__key__": "a", **sample}])
    with pytest.raises(ShardError, match=rf"train-\d\.tar.*{words}"):
        load("webdataset", root)


def member(name: str, data: bytes = b"0", **facts: object) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in facts.items():
        setattr(info, key, value)
    return info, io.BytesIO(data)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (member("../a.cls"), r"\.\./a\.cls: leads out"),
        (member("b/../../a.cls"), "leads out"),
        (member("/etc/a.cls"), "leads out"),
        (member("a.cls", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "no plain file"),
        (member("a.cls", b"", type=tarfile.LNKTYPE, linkname="000000.cls"), "no plain file"),
        (member("a.cls", b"", type=tarfile.FIFOTYPE), "no plain file"),
    ],
)
def test_a_member_that_leads_elsewhere_is_refused(tmp_path: Path, made, words: str) -> None:
    root = published.webdataset(tmp_path)
    with tarfile.open(root / "train-1.tar", "a") as tar:
        tar.addfile(*made)
    with pytest.raises(ShardError, match=rf"train-1\.tar: .*{words}"):
        load("webdataset", root)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[: 1024 * 4],
        lambda content: content[: 1024 * 4] + b"x" * 512 + content[1024 * 4 + 512 :],
        lambda content: b"<html>404 not found</html>",
        gzip.compress,
    ],
    ids=["empty", "truncated", "between members", "a damaged head", "a web page", "compressed"],
)
def test_a_damaged_tar_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = published.webdataset(tmp_path) / "train-1.tar"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ShardError) as caught:
        load("webdataset", tmp_path)
    assert caught.value.shard.startswith(str(path))
    assert caught.value.try_


def test_a_tar_that_shrinks_while_it_is_used_is_named(tmp_path: Path) -> None:
    samples = load("webdataset", published.webdataset(tmp_path))
    os.truncate(tmp_path / "train-1.tar", 2000)
    with pytest.raises(ShardError, match=r"train-1\.tar: 000039\.png: is cut off: 0 of"):
        samples.pixels(np.array([39]))


@pytest.mark.parametrize("name", WRITERS)
def test_files_become_shards_and_come_back(tmp_path: Path, name: str) -> None:
    root = WRITERS[name](tmp_path / "raw")
    data = {"source": name, "root": str(root), "store": str(tmp_path / "store"), "alpha": 1.0}
    folder = prepare.make(RunConfig.of({"data": data, "clients": {"count": 2}}))
    manifest = Manifest.load(folder)
    assert (manifest.shape, manifest.classes) == ((3, 6, 8), 3)
    test = load(name, root, Split.TEST)
    with tarfile.open(folder / "test" / "00000.tar") as tar:
        stored = {member.name: tar.extractfile(member).read() for member in tar}
    assert [stored[f"{i:08d}.u8"] for i in range(8)] == [x.tobytes() for x in everything(test)]
    assert manifest.test.label_counts == tuple(np.bincount(test.labels))


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("size", [-1024, 300_000])
@pytest.mark.parametrize("first", [True, False])
def test_a_header_that_would_hold_the_reader_for_ever_is_told(
    tmp_path: Path, kind: bytes, size: int, first: bool
) -> None:
    """A size below zero leads back, and an extended header of digits takes a day to parse."""
    if kind == tarfile.REGTYPE and size > 0:
        return
    hostile = tarfile.TarInfo("a.cls")
    hostile.type, hostile.size = kind, max(0, size)
    header = bytearray(hostile.tobuf(tarfile.USTAR_FORMAT))
    if size < 0:
        header[124:136] = size.to_bytes(12, "big", signed=True)  # base 256, as GNU has it
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    good = tarfile.TarInfo("b.cls").tobuf(tarfile.USTAR_FORMAT)
    tar = (b"" if first else good) + bytes(header) + b"1" * max(0, size) + bytes(10_240)
    for name in ("train", "test"):
        (tmp_path / f"{name}.tar").write_bytes(tar)
    with pytest.raises(ShardError, match=r"claims|cut off|damaged"):
        SOURCES.get("webdataset").load(tmp_path, Split.TRAIN, size=8)

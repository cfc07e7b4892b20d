"""Can a name or a small file lead fedcore out of a folder, into a shell, or out of memory?"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data_shards.manifest import Manifest
from data_shards.resident import read_part
from data_shards.sources import Arrays, Source
from data_shards.write import Dealt, write
from fedcore.checkpoint import Checkpoint
from fedcore.checkpoint_index import sealed
from fedcore.checkpoint_writer import Checkpoints, Contents
from fedcore.config import RunConfig
from fedcore.config_text import read_yaml, with_overrides, yaml_of
from fedcore.errors import ConfigError, FedError, ShardError
from fedcore.files import inside, parse_json, plain_name
from fedcore.server.comm import LocalComm
from fedcore.telemetry.targets import Listing
from launcher import cli, prepare
from launcher.cli import Request
from launcher.job import Job
from launcher.rundir import RunDir, make_private
from launcher.suite_results import read as read_list
from launcher.watch_run import runs_of
from tests.unit.checkpoint_test import save

BAD_NAMES = [
    *("", " ", ".", "..", "../x", "a/../../x", "a/..", "/etc/passwd", "//x", "a\0b", "a\nb"),
    *("x" * 256, "é" * 200, "a/" * 3000 + "x", "\ud800", None, 3, ["x"], {"file": "x"}),
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_a_name_that_leads_out_of_its_folder_is_told(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ShardError, match="names"):
        inside(tmp_path, name)


def test_links_are_followed_before_they_are_judged(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "file").touch()
    (tmp_path / "secret").touch()
    folder = tmp_path / "folder"
    folder.symlink_to("disk")  # data on another disk
    (folder / "near").symlink_to("file")
    (folder / "out").symlink_to("../secret")
    (folder / "round").symlink_to("round")
    assert inside(folder, "file").is_file()
    assert inside(folder, "near").is_file()
    assert inside(folder, "not there").parent == folder
    for name in ("out", "round"):
        with pytest.raises(ShardError, match=r"a link out of it|leads nowhere"):
            inside(folder, name)


@pytest.mark.parametrize("name", BAD_NAMES[:13], ids=lambda name: repr(name)[:20])
def test_no_index_names_a_file_outside_of_its_checkpoint(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1)
    index = json.loads((folder / "index.json").read_text())
    for entry in index["files"]:
        kept, entry["file"] = entry["file"], name
        (folder / "index.json").write_text(json.dumps(sealed(index)))
        with pytest.raises(ShardError):
            Checkpoint(folder)
        entry["file"] = kept


def test_no_link_in_a_checkpoint_leads_out_of_it(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    moved = tmp_path / "elsewhere"
    (folder / "server-00000.safetensors").rename(moved)
    (folder / "server-00000.safetensors").symlink_to(moved)
    with pytest.raises(ShardError, match="a link out of it"):
        Checkpoint(folder)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (9, 1, 4, 4), dtype=np.uint8)
    arrays = Arrays(images, np.arange(9, dtype=np.int64) % 3)
    source = Source(lambda root, split: arrays, kind="digits", about="")
    place = tmp_path / "store" / "toy"
    write(place, "toy", source, arrays, arrays, [Dealt(np.arange(9))], {})
    return place


def replace_tar(shards: Path, content: bytes) -> Path:
    """Another first tar, which the manifest says is as it was written."""
    path = shards / "client_00000" / "00000.tar"
    path.write_bytes(content)
    said = json.loads((shards / "manifest.json").read_text())
    entry = said["clients"][0]["shards"][0]
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (shards / "manifest.json").write_text(json.dumps(said))
    return path


def read_first(shards: Path) -> Any:
    manifest = Manifest.load(shards)
    return read_part(shards, manifest, manifest.clients[0])


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def test_a_path_is_never_a_command(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Path("pipe:touch owned; cat {a,b}")
    shutil.copytree(shards, store)
    assert len(read_first(store).labels) == 9
    assert not (tmp_path / "owned").exists()


def test_a_packed_tar_is_not_unpacked(shards: Path) -> None:
    good = (shards / "client_00000" / "00000.tar").read_bytes()
    replace_tar(shards, gzip.compress(good))
    with pytest.raises(ShardError, match="cannot be read"):
        read_first(shards)


def test_a_tar_holds_plain_files_only(shards: Path, tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
        info = tarfile.TarInfo("00000000.u8")
        info.type, info.linkname = kind, "/etc/passwd"
        replace_tar(shards, tar_of((info, b"")))
        with pytest.raises(ShardError, match="no plain file"):
            read_first(shards)


@pytest.mark.parametrize("folder", ["", "sub/", "../../", "/", "/tmp/", "sub/../"])
def test_names_in_a_tar_make_no_files_and_code_in_it_is_not_run(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = b"cos\nsystem\n(S'touch owned'\ntR."
    members = []
    for row in range(9):
        label = json.dumps({"label": row % 3}).encode()
        for end, data in (("u8", bytes(16)), ("json", label), ("pyd", pickled), ("pth", pickled)):
            members.append((tarfile.TarInfo(f"{folder}{row}.{end}"), data))
    replace_tar(shards, tar_of(*members))
    before = sorted(tmp_path.rglob("*"))
    if folder in ("", "sub/"):
        assert read_first(shards).labels.tolist() == [0, 1, 2] * 3
    else:
        with pytest.raises(ShardError, match="lies outside of the tar"):
            read_first(shards)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [60_000, 60_000, 60_000]},
        {"shape": [1, 0, 4]},
        {"mean": [float("nan")]},
        {"std": [0.0]},
        {"std": [float("inf")]},
        {"classes": 10**12},
    ],
    ids=str,
)
def test_a_small_manifest_asks_for_no_huge_memory(shards: Path, change: dict[str, Any]) -> None:
    said = json.loads((shards / "manifest.json").read_text()) | change
    (shards / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(ShardError):
        Manifest.load(shards)


def test_claimed_samples_must_be_there(shards: Path) -> None:
    said = json.loads((shards / "manifest.json").read_text())
    part = said["clients"][0]
    many = 10**12
    part |= {"samples": many, "label_counts": [many, 0, 0]}
    part["shards"][0]["samples"] = many
    (shards / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(ShardError, match=r"1,000,000,000,000 samples of 16 bytes in"):
        Manifest.load(shards)
    part["shards"][0]["bytes"] = 16 * many
    (shards / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(ShardError, match="truncated or altered"):
        read_first(shards)


def test_labels_that_the_manifest_does_not_count_are_told(shards: Path) -> None:
    for label in (-1, 3, 2, 10**30, "x", None):
        text = json.dumps({"label": label}).encode()
        rows = [
            (tarfile.TarInfo(f"{row}.{end}"), data)
            for row in range(9)
            for end, data in (("u8", bytes(16)), ("json", text))
        ]
        replace_tar(shards, tar_of(*rows))
        with pytest.raises(ShardError):
            read_first(shards)


LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "&a [*a]",
        "&a {b: *a}",
        "[" * 5_000,
        "{a: " * 5_000,
        "2020-99-99",
        "0x_",
        "!!python/object/apply:os.system ['true']",
        "!!float {}",
        "1" * 10_000,
        "- " * 3_000_000,
    ],
    ids=lambda text: text[:12],
)
def test_yaml_that_is_too_much_or_no_value_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        yaml_of(text)
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError):
        read_yaml(tmp_path / "x.yaml")
    if len(text) < 10_000:
        with pytest.raises(ConfigError):
            with_overrides({}, [f"algorithm.terms={text}"])


def test_aliases_in_reason_are_read(tmp_path: Path) -> None:
    assert yaml_of("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}")["c"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\xff", '{"a":' * 100_000, "1" * 10_000])
def test_json_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"deeply|Expecting|digits"):
        parse_json(text)


def test_no_name_in_a_configuration_leaves_the_folder_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for word in ("../../../evil", "/evil", "a\nb", "x" * 400, "..", ""):
        given = cli.parser().parse_args(["--config", "smoke"])
        given.overrides = [f"algorithm.name={json.dumps(word)}"]
        request = cli.request(given)
        assert request.run_dir.parent == Path("runs")
        assert Job(request)() == 2
        config = cli.load_config("smoke", [f"data.source={json.dumps(word)}"])
        with pytest.raises(ConfigError, match=r"data\.source"):
            prepare.store_dir(config)
    assert [p.name for p in tmp_path.iterdir()] == ["cwd"]
    assert {p.name for p in (tmp_path / "cwd").iterdir()} == {"runs"}


@pytest.mark.parametrize("word", ["../x", "..", "a/b", "", "...", "x" * 300, "a\0b"])
def test_a_plain_name_is_one_part_of_a_path(word: str) -> None:
    name = plain_name(word)
    assert Path("runs", name).parts == ("runs", name)
    assert len(name) <= 80
    assert plain_name("lm_small-s0.5=x") == "lm_small-s0.5=x"


@pytest.mark.parametrize("key", ["data.store", "data.root", "metrics.targets", "metrics.key"])
@pytest.mark.parametrize("path", ["a\0b", "x" * 256])
def test_a_path_that_can_lie_nowhere_is_told_by_its_key(key: str, path: str) -> None:
    section, name = key.split(".")
    with pytest.raises(ConfigError, match=key):
        RunConfig.of({section: {name: path}})


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_a_list_names_runs_of_its_own_folder(tmp_path: Path, name: Any) -> None:
    (tmp_path / "suite.json").write_text(json.dumps({"runs": [{"name": name}]}))
    assert runs_of(tmp_path) == []
    with pytest.raises(ConfigError, match=r"suite\.json"):
        read_list(tmp_path)


def test_a_run_is_private_and_what_was_there_keeps_its_mode(tmp_path: Path) -> None:
    places = [f"data.store={tmp_path / 'store'}", f"metrics.targets={tmp_path / 'targets'}"]
    config = cli.load_config("smoke", [*places, "rounds=1", "metrics.enabled=false"])
    before = os.umask(0o022)
    try:
        run = tmp_path / "runs" / "x"
        assert Job(Request(config, "smoke", run, "never"))() == 0
        assert run.stat().st_mode & 0o777 == 0o700
        assert run.parent.stat().st_mode & 0o777 == 0o755, "the way to the target files"
        Listing(run / "x.json", tmp_path / "targets", [(0, "node", "node:1")], "x")
        (target,) = (tmp_path / "targets").iterdir()
        modes = [path.stat().st_mode & 0o777 for path in (target.parent, target)]
        assert modes == [0o755, 0o644], "Prometheus reads them"
        shared = tmp_path / "shared"
        shared.mkdir(mode=0o755)
        RunDir(shared).write_summary({"status": "failed"})
        make_private(shared)
        assert shared.stat().st_mode & 0o777 == 0o755
        Checkpoints(tmp_path / "c", LocalComm(), 1).save(Contents(shared={}, facts={}), 1)
        with pytest.raises(FedError):
            Checkpoint(tmp_path / "c" / "nowhere")
    finally:
        os.umask(before)

"""Is a file of another format refused with both numbers and a way out, or else read?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_shards.manifest import Manifest
from data_shards.text.manifest import TokenManifest
from fedcore import checkpoint
from fedcore.checkpoint import Checkpoint
from fedcore.config import RunConfig
from fedcore.config_text import FORMAT
from fedcore.errors import FedError
from launcher import cli, entry, prepare, prepare_text
from launcher.rundir import RunDir

ROOT = Path(__file__).parent.parent.parent
Of = Callable[[Path, Any], tuple[Path, Callable[[], object]]]


def stored(folder: Path, name: str, key: str, number: Any, said: dict[str, Any]) -> Path:
    """A file of that folder that gives itself this number."""
    file = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(said | {key: number}))
    return file


def a_checkpoint(folder: Path, number: Any) -> tuple[Path, Callable[[], object]]:
    file = stored(folder, "index.json", "format", number, {"facts": {}, "files": []})
    return file, lambda: Checkpoint(folder)


def a_configuration(folder: Path, number: Any) -> tuple[Path, Callable[[], object]]:
    file = stored(folder, "config.yaml", "format", number, {"rounds": 3})
    return file, lambda: RunConfig.load(file)


def images(folder: Path, number: Any) -> tuple[Path, Callable[[], object]]:
    data = {"source": "digits", "store": str(folder)}
    made = Path(prepare.make(RunConfig.of({"clients": {"count": 2}, "data": data})))
    said = json.loads((made / "manifest.json").read_text())
    return stored(made, "manifest.json", "format_version", number, said), lambda: Manifest.load(
        made
    )


def text(folder: Path, number: Any) -> tuple[Path, Callable[[], object]]:
    (folder / "a.txt").parent.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("the sea is wide. " * 400 + "\f")
    (folder / "b.txt").write_text("the sky is high. " * 400)
    lm = {"data": {"text": str(folder)}}
    store = {"store": str(folder.parent / "store")}
    made = Path(prepare_text.make(RunConfig.of({"lm": lm, "data": store})))
    said = json.loads((made / "manifest.json").read_text())
    file = stored(made, "manifest.json", "format_version", number, said)
    return file, lambda: TokenManifest.load(made)


KINDS: dict[str, tuple[Of, list[int]]] = {
    "checkpoint": (a_checkpoint, [checkpoint.FORMAT]),
    "configuration": (a_configuration, [FORMAT]),
    "shards of images": (images, [1, 2]),
    "shards of text": (text, [1]),
}
"""What writes a file of each kind, and the formats that are read: CHANGELOG.md has both."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_format_is_refused_in_plain_words(kind: str, tmp_path: Path) -> None:
    make, ours = KINDS[kind]
    file, read = make(tmp_path / "there", max(ours) + 1)
    with pytest.raises(FedError) as caught:
        read()
    said = str(caught.value)
    assert str(file) in said
    numbers = " and ".join(map(str, ours))
    assert f"is of format {max(ours) + 1}, and this fedcore reads {numbers}" in said
    assert "Try a newer fedcore" in said
    assert caught.value.exit_code in (2, 3)


@pytest.mark.parametrize("number", [0, -1, "2", 1.5, None, [1]])
@pytest.mark.parametrize("kind", ["checkpoint", "configuration", "shards of images"])
def test_what_is_no_number_of_ours_is_refused(kind: str, number: Any, tmp_path: Path) -> None:
    file, read = KINDS[kind][0](tmp_path / "there", number)
    with pytest.raises(FedError) as caught:
        read()
    assert str(file) in str(caught.value)
    assert "Try the fedcore that wrote it" in str(caught.value)


def test_shards_of_format_1_are_read(tmp_path: Path) -> None:
    _, read = images(tmp_path / "there", 1)
    assert read()


def test_a_configuration_without_a_number_is_of_format_1(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("rounds: 3\n")
    assert RunConfig.load(file) == RunConfig.of({"rounds": 3})
    assert yaml.safe_load(RunConfig.load(file).dump())["format"] == FORMAT


def test_the_number_is_none_of_the_digest() -> None:
    assert "format" not in cli.load_config("default", []).decisive()


def test_a_run_directory_of_a_newer_fedcore_is_not_gone_on_with(tmp_path: Path) -> None:
    file = stored(tmp_path / "run", "config.yaml", "format", FORMAT + 1, {})
    with pytest.raises(FedError, match="is of format 2, and this fedcore reads 1") as caught:
        entry.check_stored(RunDir(file.parent), {})
    assert caught.value.exit_code == 2


def test_the_table_of_formats_is_true() -> None:
    table = (ROOT / "CHANGELOG.md").read_text()
    assert f"`format` in `index.json` | {checkpoint.FORMAT} |" in table
    assert f"`format` in `config.yaml` | {FORMAT} |" in table
    newest = Manifest.model_fields["format_version"].default
    assert f"shards of images: `format_version` in `manifest.json` | {newest} |" in table
    newest = TokenManifest.model_fields["format_version"].default
    assert f"shards of text: `format_version` in `manifest.json` | {newest} |" in table

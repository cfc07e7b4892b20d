"""Raw data -> partition -> shards, once. The launcher does it by itself for bundled datasets."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from data_shards.content import content_of, listed, remembered
from data_shards.folder import Folder, Remote, folder_of, holds
from data_shards.manifest import NAME, Manifest
from data_shards.partition import partition, with_validation
from data_shards.skew import skewed_by_client, skewed_shape, skewed_test
from data_shards.sources import SOURCES, Source, Split, checked, loaded, named
from data_shards.write import Dealt, Tick, write
from fedcore.config import RunConfig
from fedcore.config_data import DataConfig
from fedcore.errors import ConfigError, ShardError
from fedcore.extensions import behind, sha256
from launcher.elsewhere import given, local_store, outside, stored, verified
from launcher.once import once

LONG = 2**30  # bytes of raw files: hashing more is shown
IN_NAME = ("name", "clients", "seed", "alpha", "labels_per_client", "content")


def settings(config: RunConfig) -> dict[str, Any]:
    """What the shards depend on, besides the source: the manifest stores it."""
    data, chosen = config.data, dealing(config)
    if data.root is not None and not SOURCES.get(data.source).bundled:
        chosen["content"] = content(data.root, data.cache)
    return chosen | _loader(config)


def _loader(config: RunConfig) -> dict[str, str]:
    """The text of a source's own file, if that is an extension: mended, it may load other data."""
    source = SOURCES.get(config.data.source)
    module = inspect.getmodule(inspect.unwrap(getattr(source.load, "func", source.load)))
    files = behind(module.__name__, config.extensions) if module else []
    return {"loader": sha256(files[0])} if files else {}


def dealing(config: RunConfig) -> dict[str, Any]:
    """How samples are dealt out: all settings but the raw files."""
    data = config.data
    chosen: dict[str, Any] = {
        "name": data.partition,
        "clients": config.clients.count,
        "seed": config.partition_seed,
    }
    if data.partition in ("dirichlet", "quantity"):
        chosen["alpha"] = data.alpha
    if data.partition == "by_label":
        chosen["labels_per_client"] = data.labels_per_client
    return chosen | _unusual(data) | _taken(SOURCES.get(data.source), data)


def _unusual(data: DataConfig) -> dict[str, Any]:
    """Settings that shards depend on if they are not as they usually are."""
    keys = ["min_samples", "validation", "skew", "encoding"]
    if data.skew != "none":
        keys.append("domains")
    if data.skew == "noise":
        keys.append("strength")
    usual = DataConfig()
    chosen = {key: getattr(data, key) for key in keys}
    always = ("domains", "strength")
    return {k: v for k, v in chosen.items() if k in always or v != getattr(usual, k)}


def _taken(source: Source, data: DataConfig) -> dict[str, Any]:
    """What the source itself depends on."""
    plain = data.model_dump(mode="json", include=set(source.takes))
    return {key: plain[key] for key in source.takes}


@functools.lru_cache(maxsize=8)
def content(root: Path, cache: Path) -> str:
    """SHA-256 of a raw file, or of the names and bytes of all files below a raw folder.

    The data count by what they are and not by where they lie: a file may move, and a changed one
    under its old name is another dataset. What was hashed is remembered in the cache while no file
    changes. Raises `ShardError` if there is nothing at `root`.
    """
    files = listed(root)
    pairs = [(entry.name, entry.path) for entry in files]

    def hashed() -> str:
        if sum(entry.size for entry in files) < LONG:
            return content_of(pairs)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"hashing {root}", total=len(files))
            return content_of(pairs, lambda: bar.advance(task))

    return remembered(root, files, cache, hashed)


def store_dir(config: RunConfig) -> Folder:
    """The folder of this configuration's shards: data.shards, or in data.store by name."""
    source = SOURCES.get(config.data.source)  # it names a folder: only one that is known
    if config.data.shards is not None:
        return folder_of(config.data.shards, config.data.cache)
    store = folder_of(config.data.store, config.data.cache)
    if not source.bundled:
        outside(store, config.data.root, "raw files")
    chosen = settings(config)
    detail = chosen.get("alpha", chosen.get("labels_per_client", ""))
    root = f"-{chosen['content'][:8]}" if "content" in chosen else ""
    rest = {key: value for key, value in chosen.items() if key not in IN_NAME}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    name = (
        f"{config.data.source}{root}-{chosen['name']}{detail}"
        f"-{chosen['clients']}clients-s{chosen['seed']}" + (f"-{digest[:8]}" if rest else "")
    )
    return store / name


def make(config: RunConfig, tick: Tick = lambda name: None, *, repair: bool = False) -> Folder:
    """The folder of shards, made unless it is there already; safe with many callers at once.

    repair: hash what is there, and make it anew if a shard or the manifest is damaged. Raises
    `ShardError` for a folder of that name with other settings, `StorageError` without room. What
    is remote or given by data.shards is never written.
    """
    folder = store_dir(config)
    if config.data.shards is not None:
        return _given(config, folder, repair)
    if isinstance(folder, Remote):
        return stored(folder, Manifest, settings(config), command(config))
    work = functools.partial(_write, config, folder, tick)
    return once(folder, Manifest, settings(config), work, repair=repair)


def _given(config: RunConfig, folder: Folder, repair: bool) -> Folder:
    """The folder of data.shards, if it is of this configuration."""
    manifest, source = Manifest.load(folder), config.data.source
    if manifest.source != source:
        want = f"{manifest.source!r}, as the shards in {folder} were made"
        raise ConfigError("data.source", source, want, f"data.source={manifest.source}")
    keys = {"name": "data.partition", "clients": "clients.count"}
    given(folder, manifest, dealing(config), keys)
    if len(manifest.clients) != config.clients.count:
        problem = f"{len(manifest.clients)} clients, and says {config.clients.count}"
        raise ShardError(str(folder), problem, "other data.shards")
    if repair:
        verified(folder, manifest)
    return folder


def _write(config: RunConfig, folder: Path, tick: Tick) -> None:
    data = config.data
    source = named(SOURCES.get(data.source), data.root)
    train, test = loaded(source, data, Split.TRAIN), loaded(source, data, Split.TEST)
    count, seed = config.clients.count, config.partition_seed
    checked(data.source, source, train, test)
    if data.encoding == "original" and train.file(0) is None:
        want = f"a source whose images are files, which those of {data.source} are not"
        raise ConfigError("data.encoding", "original", want, "data.encoding=raw")
    parts = partition(train.labels, data, count, seed, train.users)
    if data.skew != "none":  # its colours are others than the source's
        source = replace(source, mean=None, std=None)
    shown = skewed_by_client(train, parts, data, seed)
    dealt = [Dealt(rows) for rows in parts]
    if data.validation:
        dealt = [Dealt(*pair) for pair in with_validation(parts, data.validation, seed)]
    write(
        folder,
        data.source,
        source,
        shown,
        skewed_test(test, data, seed),
        dealt,
        settings(config),
        tick,
        original=data.encoding == "original",
    )


def steps(config: RunConfig) -> int:
    """How many parts `make` tells of: training and validation of each client, the test split."""
    return config.clients.count * (2 if config.data.validation else 1) + 1


def ensure(config: RunConfig) -> Folder:
    """The shards of a run: made if missing and bundled, else asked for by name."""
    folder, source = store_dir(config), SOURCES.get(config.data.source)
    is_asked_for = isinstance(folder, Path) and config.data.shards is None and not source.bundled
    if is_asked_for and not holds(folder, NAME):
        raise ShardError(str(folder), "no shards of this configuration", f"`{command(config)}`")
    return make(config)


def command(config: RunConfig) -> str:
    """The line that makes exactly these shards, whatever file the configuration came from."""
    data = config.data
    values: dict[str, Any] = {
        "data.source": data.source,
        "data.root": data.root,
        "data.store": local_store(config),
        "data.partition": data.partition,
        "data.alpha": data.alpha,
        "data.labels_per_client": data.labels_per_client,
        "data.seed": config.partition_seed,
        "clients.count": config.clients.count,
        "extensions": in_one_word(config.extensions),
    }
    others = _unusual(data) | _taken(SOURCES.get(data.source), data)
    values |= {f"data.{key}": _as_text(value) for key, value in others.items()}
    words = [f"--set {shlex.quote(f'{k}={v}')}" for k, v in values.items() if v is not None]
    return " ".join(["fedcore shards make default", *words])


def in_one_word(files: Sequence[Path]) -> str | None:
    """Paths as YAML takes them in one word; None for no paths."""
    return json.dumps([str(file) for file in files]) if files else None


def _as_text(value: Any) -> Any:
    """A mapping as YAML takes it in one word."""
    return json.dumps(value) if isinstance(value, dict) else value


def shape_and_classes(config: RunConfig) -> tuple[tuple[int, int, int], int]:
    """Image shape and number of classes: as the source declares, else of the shards or files."""
    source = SOURCES.get(config.data.source)
    if source.shape and source.classes:
        return skewed_shape(source.shape, config.data), source.classes
    if config.data.shards is not None:
        manifest = Manifest.load(store_dir(config))
        return manifest.shape, manifest.classes
    train = loaded(source, config.data, Split.TRAIN)
    return skewed_shape(train.shape, config.data), source.classes or int(train.labels.max()) + 1

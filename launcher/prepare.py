"""Raw data -> partition -> shards, once. The launcher does it by itself for bundled datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from filelock import FileLock

from data_shards.manifest import NAME, Manifest
from data_shards.partition import partition
from data_shards.sources import SOURCES, Split
from data_shards.write import Tick, write
from fedcore.config import RunConfig
from fedcore.errors import ShardError, StorageError


def settings(config: RunConfig) -> dict[str, Any]:
    """What the shards depend on, besides the source: the manifest stores it."""
    data = config.data
    chosen: dict[str, Any] = {
        "name": data.partition,
        "clients": config.clients.count,
        "seed": config.partition_seed,
    }
    if data.partition == "dirichlet":
        chosen["alpha"] = data.alpha
    if data.partition == "by_label":
        chosen["labels_per_client"] = data.labels_per_client
    if data.root is not None:
        chosen["root"] = str(data.root)
    return chosen


def store_dir(config: RunConfig) -> Path:
    """The folder of this configuration's shards."""
    chosen = settings(config)
    detail = chosen.get("alpha", chosen.get("labels_per_client", ""))
    root = f"-{config.data.root.stem}" if config.data.root else ""
    name = (
        f"{config.data.source}{root}-{chosen['name']}{detail}"
        f"-{chosen['clients']}clients-s{chosen['seed']}"
    )
    return config.data.store / name


def make(config: RunConfig, tick: Tick = lambda name: None) -> Path:
    """The folder of shards, made unless it is there already; safe with many callers at once.

    Raises `ShardError` for a folder of that name with other settings.
    """
    folder = store_dir(config)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(str(folder), str(error), "another data.store") from error
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if (folder / NAME).is_file():
            _same_settings(config, folder)
            return folder
        source = SOURCES.get(config.data.source)
        train = source.load(config.data.root, Split.TRAIN)
        test = source.load(config.data.root, Split.TEST)
        parts = partition(train.labels, config.data, config.clients.count, config.partition_seed)
        write(folder, config.data.source, source, train, test, parts, settings(config), tick)
    return folder


def _same_settings(config: RunConfig, folder: Path) -> None:
    found, wanted = Manifest.load(folder).partition, settings(config)
    if found != wanted:
        problem = f"was made with {found}, this configuration wants {wanted}"
        raise ShardError(str(folder), problem, "another data.store, or removing that folder")


def ensure(config: RunConfig) -> Path:
    """The shards of a run: made if missing and bundled, else asked for by name."""
    folder = store_dir(config)
    source = SOURCES.get(config.data.source)
    if not source.bundled and not (folder / NAME).is_file():
        command = "`fedcore shards make CONFIG` with the run's --set values"
        raise ShardError(str(folder), "no shards of this configuration", command)
    return make(config)


def shape_and_classes(config: RunConfig) -> tuple[tuple[int, int, int], int]:
    """Image shape and number of classes: from the shards if made, else as the source declares.

    A source that declares neither, not yet made, is taken as 32x32 colour with 10 classes.
    """
    folder = store_dir(config)
    if (folder / NAME).is_file():
        manifest = Manifest.load(folder)
        return manifest.shape, manifest.classes
    source = SOURCES.get(config.data.source)
    return source.shape or (3, 32, 32), source.classes or 10

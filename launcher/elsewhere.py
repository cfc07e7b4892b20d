"""Shards that this run only reads: behind a URL, or in a folder that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_shards.folder import Folder, Remote, holds
from data_shards.manifest import NAME, Stored
from data_shards.tars import problems
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError

RAW = {"content", "vocabulary", "loader"}  # hashes of raw files, which need not be there


def stored(folder: Remote, kind: type[Stored], settings: dict[str, Any], command: str) -> Remote:
    """The folder in a remote store, which is never written.

    Raises `ShardError` that says how it is made if it is not there, or made of other settings.
    """
    how = f"`{command}`, then copying {folder.name} to {folder.url.rpartition('/')[0]}/"
    if not holds(folder, NAME):
        raise ShardError(str(folder), "no shards of this configuration", how)
    made_with = kind.load(folder).made_with
    if made_with != settings:
        problem = f"was made with {made_with}, this configuration wants {settings}"
        raise ShardError(str(folder), problem, how)
    return folder


def given(
    folder: Folder, manifest: Stored, settings: Mapping[str, Any], keys: Mapping[str, str]
) -> Folder:
    """The folder of `data.shards`; `ConfigError` where the configuration says otherwise.

    settings: those of the configuration, all but `RAW`. keys: the dotted key of each that is not
    in `data` under its own name.
    """
    made_with = {k: v for k, v in manifest.made_with.items() if k not in RAW}
    for name in [*made_with, *(k for k in settings if k not in made_with)]:
        has, wants = made_with.get(name), settings.get(name)
        if has != wants:
            key = keys.get(name, f"data.{name}")
            want = f"{has!r}, as the shards in {folder} were made"
            raise ConfigError(key, wants, want, f"{key}={has}, or other data.shards")
    return folder


def verified(folder: Folder, manifest: Stored) -> None:
    """`ShardError` for the first file that is not as it was written."""
    for problem in problems(folder, manifest):
        raise problem


def outside(store: Folder, raw: Path | None, what: str) -> None:
    """`ConfigError` for a store among what it is made of, which its shards would change."""
    if raw is None or not isinstance(store, Path) or not raw.is_dir():
        return
    if store.resolve().is_relative_to(raw.resolve()):
        want = f"a folder outside of the {what} in {raw}"
        raise ConfigError("data.store", str(store), want, "--set data.store=/another/folder")


def local_store(config: RunConfig) -> Path:
    """Where shards are made: data.store, unless that is remote."""
    store = config.data.store
    return store if isinstance(store, Path) else Path("data_shards/store")

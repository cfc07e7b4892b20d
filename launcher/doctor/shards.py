"""Looks at the shards of data: can each manifest be read, and does a remote store answer?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from data_shards.fetch import Patience
from data_shards.folder import Folder, Remote, holds
from fedcore.config import RunConfig
from fedcore.errors import FedError, ShardError
from launcher.doctor.check import Check

QUICK = Patience(tries=2, connect=5.0, read=10.0)


def of_run(config: RunConfig) -> Iterator[Check]:
    """Where a run of this configuration would look: data.shards, or data.store."""
    from launcher import prepare, prepare_text

    place = config.data.shards or config.data.store
    if config.data.shards is None and isinstance(place, Path):
        yield from shards(place)
        return
    folder = prepare_text.store_dir(config) if config.lm else prepare.store_dir(config)
    if isinstance(folder, Remote):
        folder = replace(folder, patience=QUICK)
    yield _readable(folder, "another data.shards" if config.data.shards else "copying them there")


def shards(store: Path) -> Iterator[Check]:
    """A finding for each manifest below the store."""
    manifests = sorted(store.rglob("manifest.json"))
    if not manifests:
        found = f"none in {store}"
        yield Check("shards", False, found, "nothing: a run makes its own", needed=False)
    for path in manifests:
        yield _readable(path.parent, f"rm -r {path.parent}")


def _readable(folder: Folder, way_out: str) -> Check:
    from data_shards.manifest import NAME
    from data_shards.text.manifest import load_any

    name = f"shards {folder.name}"
    try:
        if isinstance(folder, Remote) and not holds(folder, NAME):
            raise ShardError(str(folder), "the server answers; no shards there", way_out)
        manifest = load_any(folder)
        return Check(name, True, f"{manifest.source}, {len(manifest.clients)} clients")
    except FedError as error:
        return Check(name, False, str(error), way_out)

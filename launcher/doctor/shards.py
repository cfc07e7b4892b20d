"""Looks at the shards of data: can each manifest be read?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedcore.errors import FedError
from launcher.doctor.check import Check


def shards(store: Path) -> Iterator[Check]:
    """A finding for each manifest below the store."""
    from data_shards.text.manifest import load_any

    manifests = sorted(store.rglob("manifest.json"))
    if not manifests:
        found = f"none in {store}"
        yield Check("shards", False, found, "nothing: a run makes its own", needed=False)
    for path in manifests:
        name = f"shards {path.parent.name}"
        try:
            manifest = load_any(path.parent)
            yield Check(name, True, f"{manifest.source}, {len(manifest.clients)} clients")
        except FedError as error:
            yield Check(name, False, str(error), f"rm -r {path.parent}")

"""Looks at those who watch: Prometheus, and the folder in which it finds the ranks."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.doctor.check import Check

PROMETHEUS = "http://127.0.0.1:9090"
TIMEOUT = 5.0  # seconds

Get = Callable[[str], str]


def get(url: str) -> str:
    """The body at a URL."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        text: str = answer.read().decode()
        return text


def prometheus(url: str | None, get: Get = get) -> Iterator[Check]:
    """Whether Prometheus answers and what it scrapes of ours. url: None = where it usually is."""
    base, asked = (url or PROMETHEUS).rstrip("/"), url is not None
    way_out = "--prometheus URL, or starting it (docs/operations.md); runs do without"
    try:
        get(f"{base}/-/healthy")
        said: dict[str, Any] = json.loads(get(f"{base}/api/v1/targets?state=active"))
        targets = said["data"]["activeTargets"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = f"{base}: {getattr(error, 'reason', None) or error}"
        yield Check("Prometheus", False, found, way_out, needed=asked)
        return
    ours = [target for target in targets if "rank" in target.get("labels", {})]
    down = [target for target in ours if target.get("health") == "down"]
    found = f"{base} answers; {len(ours)} ranks scraped, {len(down)} of them down"
    way_out = "the errors on its page /targets: a firewall, metrics.bind, or a lost run"
    yield Check("Prometheus", not down, found, way_out, needed=False)


def targets(folder: Path | None) -> Iterator[Check]:
    """Whether another user, such as Prometheus, may read the target files of runs."""
    if folder is None:
        found = "metrics.targets=null: only in the run directories"
        yield Check("targets folder", True, found)
        return
    place = Path(os.path.abspath(folder))  # noqa: PTH100 - a folder that is not there yet, too
    closed = [p for p in place.parents if p.exists() and not _open(p, stat.S_IXOTH)]
    if place.exists() and not _open(place, stat.S_IROTH | stat.S_IXOTH):
        closed.insert(0, place)
    found = f"others cannot enter {closed[0]}" if closed else f"{folder} can be read by others"
    way_out = f"chmod o+rx {closed[0]}" if closed else ""
    yield Check("targets folder", not closed, found, way_out, needed=False)


def _open(folder: Path, rights: int) -> bool:
    return folder.stat().st_mode & rights == rights


def torchrun() -> Iterator[Check]:
    """Where torchrun is: beside this Python as well, a virtual environment need not be active."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which("torchrun", path=places)
    way_out = "python -m torch.distributed.run"
    yield Check("torchrun", path is not None, path or "not found", way_out, needed=False)

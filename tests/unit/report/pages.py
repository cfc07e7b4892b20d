"""Run directories that never were, and their pages as a browser reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fedcore.checkpoint_writer import Checkpoints, Contents
from fedcore.config import RunConfig
from fedcore.objective.anchors import ANCHORS
from fedcore.server.comm import LocalComm
from fedcore.telemetry.events import Event
from fedcore.telemetry.jsonl import last_of_each, read_events
from launcher.report.notices import notices
from launcher.report.stored import Stored
from launcher.rundir import RunDir
from tests.unit.telemetry.made_up import recorded, whole_run


@dataclass
class Page(HTMLParser):
    """What a browser would make of a page: its data, its addresses and its text."""

    file: Path
    data: dict[str, Any] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "data", "action")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and not self.data and data.startswith("{"):
            self.data = json.loads(data)
        elif not self.tags or self.tags[-1] not in ("style", "script"):
            self.text += data + "\n"


def stored(folder: Path, events: Sequence[Event], config: dict[str, Any] | None = None) -> Path:
    """A run directory with these lines and, if given, that configuration."""
    recorded(folder, events)
    if config is not None:
        (folder / "config.yaml").write_text(RunConfig.of(config).dump())
    return folder


def complete(folder: Path, **more: Any) -> Path:
    """Its summary, as of a run that is done."""
    facts = {"status": "completed", "exit_code": 0, "kind": "federated", **more}
    RunDir(folder).write_summary(facts)
    return folder


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What counts of the file."""
    found = last_of_each(read_events(folder / "metrics.jsonl"))
    return [r for r in found if r["event"] == kind]


def words(run: Stored) -> str:
    return "\n".join(notice.words for notice in notices(run))


V14 = {"algorithm": {"name": "v14"}, "clients": {"count": 3}}


def keep_checkpoint(folder: Path, classes: int, width: int = 8) -> Path:
    anchors = ANCHORS.get("etf").points(classes, width, 0)
    tensors = {"server": {"prototypes": 3 * anchors, "anchors": anchors}}
    checkpoints = Checkpoints(folder / "checkpoints", LocalComm(), 1)
    return checkpoints.save(Contents(shared=tensors, facts={}), 4)


def with_everything(folder: Path, rounds: int) -> Path:
    """A run of three clients with every file but the summary."""
    stored(folder, whole_run(3, rounds), V14)
    RunDir(folder).write_clients(4, [[5, 0, 0, 3], [0, 9, 0, 0], [1, 1, 1, 1]])
    (folder / "environment.json").write_text('{"python": "3.11", "command": ["main.py", "a b"]}')
    keep_checkpoint(folder, 4)
    return folder

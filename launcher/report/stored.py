"""Runs as they lie in their directories: what a report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from fedcore.algorithms import Algorithm, resolve
from fedcore.checkpoint import Checkpoint, candidates
from fedcore.config import RunConfig
from fedcore.config_text import yaml_of
from fedcore.errors import ConfigError, FedError
from fedcore.files import read_bytes
from fedcore.registry import nearest
from fedcore.telemetry.events import fits
from fedcore.telemetry.history import History
from fedcore.telemetry.jsonl import last_of_each, read_events
from launcher.rundir import RunDir
from launcher.suite_state import UNFINISHED, State, state

Record = dict[str, Any]
FEDERATED, LM = "federated", "lm"
SHOWN = {"round": "round", "client": "round", "lm_step": "step"}
"""Events without which there is nothing to show, and what places them."""
PLACED = {**SHOWN, "lm_eval": "step", "lm_client": "step"}


@dataclass(frozen=True)
class Stored:
    """One run, as the report reads it from its directory."""

    run_dir: Path
    name: str  # as the page calls it: no other run on it has that name
    records: list[Record]  # of metrics.jsonl; a repeated one as it was last
    repeated: list[int]  # rounds or steps that stand there more than once, as counted there
    unread: int  # lines left out: of no known kind, or not of its shape
    said: Record  # config.yaml, nested; empty if it cannot be read
    config: RunConfig | None  # the same, if this fedcore understands it
    environment: Record
    state: State

    @classmethod
    def of(cls, run_dir: Path) -> Stored:
        """Read a run directory; `ConfigError` if there is none or nothing is recorded in it."""
        if not run_dir.is_dir():
            beside = [p.name for p in run_dir.parent.glob("*") if p.is_dir()]
            match = nearest(run_dir.name, beside) if beside else "runs/..."
            way_out = str(run_dir.parent / match) if match in beside else match
            raise ConfigError("RUN", str(run_dir), "a run directory", way_out)
        there = _lines(run_dir)
        lines = [r for r in there if _is_placed(r)]
        found = state(run_dir)
        if not any(r.get("event") in SHOWN for r in lines):
            raise ConfigError("RUN", str(run_dir), _nothing(found), _way_out(found))
        said = _mapping(run_dir / "config.yaml")
        environment = _mapping(run_dir / "environment.json")
        config, name = _understood(said), run_dir.resolve().name or "run"
        last, twice = last_of_each(lines), _repeated(lines)
        unread = len(there) - len(lines)
        return cls(run_dir, name, last, twice, unread, said, config, environment, found)

    @property
    def kind(self) -> str:
        """federated or lm, by what is recorded."""
        return LM if any(r.get("event") == "lm_step" for r in self.records) else FEDERATED

    @property
    def summary(self) -> Record:
        """summary.json; empty while the run is not over."""
        return self.state.summary

    @property
    def is_over(self) -> bool:
        """Whether the run has left a summary."""
        return self.state.status != UNFINISHED

    @cached_property
    def history(self) -> History:
        """Rounds and clients as arrays."""
        return History.of_records(self.name, self.records)

    @cached_property
    def algorithm(self) -> Algorithm | None:
        """What the configuration declares; None if that is not known here."""
        if self.config is None or self.config.lm is not None:
            return None
        try:
            return resolve(self.config.algorithm)
        except FedError:
            return None

    @property
    def limit(self) -> float | None:
        """lambda_max, above which a learned lambda has exploded; None if none is learned."""
        rule = self.algorithm.rule if self.algorithm else None
        return rule.limit if rule and rule.learner is not None else None

    @cached_property
    def label_counts(self) -> list[list[int]] | None:
        """Samples of each class of each client [N][C]; None if the run does not say."""
        return RunDir(self.run_dir).read_clients()

    def events(self, kind: str) -> list[Record]:
        """The records of one kind."""
        return [r for r in self.records if r.get("event") == kind]

    @property
    def times(self) -> list[float]:
        """Unix time of each line that has one."""
        return [r["time"] for r in self.records if isinstance(r.get("time"), int | float)]

    def server(self) -> tuple[dict[str, Tensor], str]:
        """What the server kept in the newest good checkpoint and its name, or ({}, why not)."""
        why = "there is no checkpoint"
        for folder in candidates(RunDir(self.run_dir).checkpoints):
            try:
                return Checkpoint(folder).shared("server"), folder.name
            except (FedError, OSError) as error:
                why = str(error)
        return {}, why


def _lines(run_dir: Path) -> list[Record]:
    """Lines of metrics.jsonl; none if the file is not there."""
    file = RunDir(run_dir).metrics
    try:
        return read_events(file) if file.is_file() else []
    except OSError as error:
        want = f"a run whose metrics.jsonl can be read ({error.strerror})"
        raise ConfigError("RUN", str(run_dir), want, "chmod, or another copy") from None


def _is_placed(record: Record) -> bool:
    """Whether a record has its kind's shape and says where it belongs, if it belongs somewhere."""
    place = PLACED.get(str(record.get("event")))
    return fits(record) and (place is None or place in record)


def _repeated(lines: Sequence[Record]) -> list[int]:
    seen: set[int] = set()
    ends = [r[PLACED[r["event"]]] for r in lines if r["event"] in ("round", "lm_step")]
    return sorted({n for n in ends if n in seen or seen.add(n)})  # type: ignore[func-returns-value]


def _nothing(found: State) -> str:
    """What is wrong with a run of which nothing can be shown."""
    said = found.summary.get("message")
    return f"a run with a finished round or step; it is {found.words()}" + (
        f": {said}" if said else ""
    )


def _way_out(found: State) -> str:
    return "running it again" if found.code else "again later"


def _mapping(file: Path) -> Record:
    """A YAML or JSON file as a mapping; empty if it cannot be read."""
    try:
        values = yaml_of(read_bytes(file).decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def _understood(said: Record) -> RunConfig | None:
    try:
        return RunConfig.of(said) if said else None
    except FedError:
        return None

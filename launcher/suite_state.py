"""How the runs of a list stand, read from their directories: what to skip and what to tell."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcore import extensions
from fedcore.checkpoint import candidates, write_atomically
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, Diverged, FedError
from launcher.entry import check_stored
from launcher.experiments import Run, changes, placed
from launcher.rundir import LIST, RunDir, make_private, storage

COMPLETED, DIVERGED, FAILED = "completed", "diverged", "failed"
STOPPED, UNFINISHED, WAITING = "stopped", "unfinished", "waiting"
OVER = (COMPLETED, DIVERGED, FAILED)


@dataclass(frozen=True)
class State:
    """How far a run of a list has come."""

    status: str
    code: int | None = None  # exit code, once it ended
    changed: bool = False  # it ended badly with another configuration: it starts anew
    summary: dict[str, Any] = field(default_factory=dict)

    def words(self) -> str:
        """The status, and where it was left."""
        detail = {
            DIVERGED: f" ({place(self.summary)})",
            FAILED: f" (exit code {self.code})",
        }.get(self.status, "")
        return self.status + detail + (", with another configuration" if self.changed else "")


def place(summary: dict[str, Any]) -> str:
    """Up to where a summary says that its run went; rounds count from 1."""
    if summary.get("kind") == "lm":
        return f"after step {summary.get('steps', 0):,}"
    return f"round {summary.get('rounds', 0) + 1}"


def state(run_dir: Path, config: RunConfig | None = None) -> State:
    """How the run in that directory stands, for that configuration."""
    run = RunDir(run_dir)
    summary = run.read_summary()
    if summary is None:
        return State(UNFINISHED if run.is_ours else WAITING)
    status, code = str(summary["status"]), int(summary.get("exit_code", 1))
    changed = config is not None and _is_other(run, config)
    return State(status, code, changed, summary)


def _is_other(run: RunDir, config: RunConfig) -> bool:
    """Whether the directory holds a run of another configuration."""
    file = run.path / "config.yaml"
    try:
        return file.is_file() and RunConfig.load(file).decisive() != config.decisive()
    except FedError:
        return True


def check_directories(runs: Sequence[Run]) -> None:
    """`ConfigError` for work in a directory that belongs to another configuration.

    What came to nothing under another configuration is no work: it is set aside later.
    """
    for run in runs:
        found = state(run.run_dir, run.config)
        if is_nothing(run, found):
            continue
        try:
            check_stored(RunDir(run.run_dir), _mine(run, found))
        except ConfigError as error:
            way_out = "another --run-dir, another name for the experiment, or --resume never"
            raise placed(run.name, ConfigError(error.key, error.got, error.want, way_out)) from None


def is_nothing(run: Run, found: State) -> bool:
    """Whether the run diverged, or failed without a checkpoint: there is nothing to go on from."""
    checkpoints = RunDir(run.run_dir).checkpoints
    return found.status == DIVERGED or (found.status == FAILED and not candidates(checkpoints))


def _mine(run: Run, found: State) -> dict[str, Any]:
    """The identity; the data are compared when the run is entered, and here taken as they stand."""
    stored = found.summary.get("identity") or {}
    data = {k: v for k, v in stored.items() if k.startswith("data (")}
    return run.config.decisive() | extensions.hashes(run.config.extensions) | data


def is_settled(found: State) -> bool:
    """Whether to pass a run over that ended badly: it would diverge again, bit for bit."""
    return found.status == DIVERGED and not found.changed


def record(runs: Sequence[Run], out: Path, codes: Mapping[str, int]) -> None:
    """Write suite.json: every run and how it stands. codes: how runs ended just now, by name."""
    rows = [_row(run, runs[0], codes.get(run.name)) for run in runs]
    with storage(out):
        make_private(out)
        write_atomically(out / NAME, json.dumps({"runs": rows}, indent=1) + "\n")


NAME = LIST


def _row(run: Run, first: Run, code: int | None) -> dict[str, Any]:
    found = state(run.run_dir, run.config)
    status = WAITING if found.changed else found.status
    if code and code != found.code:  # it could not even begin: the directory tells of another run
        status, found = FAILED, State(FAILED, code)
    return {
        "name": run.name,
        "experiment": run.experiment,
        "seed": run.config.seed,
        "kind": "federated" if run.config.lm is None else "lm",
        "status": status,
        "exit_code": None if status == WAITING else found.code,
        "changes": changes(run, first),
    }


def exit_code(codes: Collection[int]) -> int:
    """Of a list: 0 all completed; else the first failure's own code, or 4 for a divergence."""
    failed = [code for code in codes if code not in (0, Diverged.exit_code)]
    return failed[0] if failed else max(codes, default=0)

"""What the runs of a list came to: numbers of each language-model run, and rows over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Required

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedcore.errors import ConfigError, ShardError
from fedcore.files import inside, read_json
from fedcore.telemetry.events import fits
from fedcore.telemetry.jsonl import last_of_each, read_events
from launcher.suite_state import COMPLETED, FAILED, NAME, State, state

Array = npt.NDArray[np.float64]
MAIN_GROUPS = ("muon", "decay", "no_decay")
"""Parameter groups, the one first in which most weights are."""


@dataclass(frozen=True)
class Trial:
    """One run: what suite.json says of it, and its directory."""

    said: dict[str, Any]
    run_dir: Path

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.said["seed"])

    @cached_property
    def state(self) -> State:
        """How it stands now, unless the list knows better: it could not begin."""
        status, code = self.said["status"], self.said["exit_code"]
        now = state(self.run_dir)
        return State(FAILED, code) if status == FAILED and now.status == COMPLETED else now

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Its lines of metrics.jsonl; a repeated one counts as it was last."""
        file = self.run_dir / "metrics.jsonl"
        return last_of_each(filter(fits, read_events(file))) if file.is_file() else []

    def curve(self, kind: str) -> tuple[Array, Array]:
        """Tokens [n] and losses [n], of `lm_step` (training) or `lm_eval` (held-out) lines."""
        lines = [e for e in self.events if e.get("event") == kind and e.get("loss") is not None]
        table = [(e["step"] * self._tokens_a_step, e["loss"]) for e in lines]
        values = np.array(table, dtype=np.float64).reshape(-1, 2)
        return values[:, 0], values[:, 1]

    @cached_property
    def _tokens_a_step(self) -> float:
        steps = [e for e in self.events if e.get("event") == "lm_step"]
        return steps[-1]["tokens"] / steps[-1]["step"] if steps else 1.0

    def number(self, name: str) -> float | None:
        """One of `MEASURES`, of a completed run."""
        if self.state.status != COMPLETED:
            return None
        value = self._drift() if name == "rms_drift" else self.state.summary.get(name)
        return None if value is None else float(value)

    def _drift(self) -> float | None:
        """RMS of the main group's weights at the last measurement over that at the first."""
        lines = [e["weight_rms"] for e in self.events if e.get("weight_rms")]
        group = next((g for g in MAIN_GROUPS if lines and g in lines[0]), None)
        first = lines[0][group] if group else None
        return lines[-1][group] / first if first else None


@dataclass(frozen=True)
class Row:
    """One experiment over its seeds."""

    name: str
    trials: tuple[Trial, ...]

    @property
    def changes(self) -> dict[str, Any]:
        """Dotted keys in which it differs from the first experiment."""
        found: dict[str, Any] = self.trials[0].said["changes"]
        return found

    def numbers(self, name: str) -> dict[int, float]:
        """One of `MEASURES` by seed, of the completed runs."""
        found = {trial.seed: trial.number(name) for trial in self.trials}
        return {seed: value for seed, value in found.items() if value is not None}

    def status(self) -> str:
        """How it stands, and of several seeds how many completed and what became of the others."""
        if len(self.trials) == 1:
            return self.trials[0].state.words()
        bad = [t for t in self.trials if t.state.status != COMPLETED]
        if not bad:
            return COMPLETED
        done = f"{len(self.trials) - len(bad)} of {len(self.trials)} completed"
        return "; ".join([done, *(f"seed {t.seed} {t.state.words()}" for t in bad)])


@dataclass(frozen=True)
class Measure:
    """A column: its title, and how its numbers are written."""

    title: str
    text: Callable[[float], str]


class _Said(TypedDict, total=False):
    """What suite.json says of a run: launcher/suite_state.py. A report needs the name only."""

    name: Required[str]
    experiment: str
    seed: int
    kind: Literal["federated", "lm"]
    status: str
    exit_code: int | None
    changes: dict[str, Any]


_SAID = TypeAdapter(Annotated[list[_Said], Field(min_length=1)])

MEASURES = {
    "parameters": Measure("parameters", lambda x: f"{x:,.0f}"),
    "final_loss": Measure("loss", lambda x: f"{x:.4f}"),
    "final_eval_loss": Measure("held-out loss", lambda x: f"{x:.4f}"),
    "perplexity": Measure("perplexity", lambda x: f"{x:.2f}"),
    "bits_per_byte": Measure("bits/byte", lambda x: f"{x:.3f}"),
    "rms_drift": Measure("RMS drift", lambda x: f"{x:.3f}"),
    "tokens_per_second": Measure("tokens/s", lambda x: f"{x:,.0f}"),
}


def read(out: Path) -> list[dict[str, Any]]:
    """What suite.json says of each run; `ConfigError` if there is none in that directory."""
    try:
        runs: list[dict[str, Any]] = read_json(out / NAME)["runs"]
        _SAID.validate_python(runs)
        for said in runs:
            inside(out, said["name"])
    except (OSError, ValueError, KeyError, TypeError, ShardError):
        want = f"the directory of a list of experiments, with a {NAME}"
        raise ConfigError("RUN_DIR", str(out), want, "runs/<configuration>") from None
    return runs


def rows(out: Path) -> list[Row]:
    """A row for each experiment, in the order of the list."""
    found: dict[str, list[Trial]] = {}
    for said in read(out):
        if _Said.__annotations__.keys() - said.keys():
            want = f"a {NAME} that says all of each run"
            raise ConfigError("RUN_DIR", str(out), want, "running the list again")
        found.setdefault(said["experiment"], []).append(Trial(said, out / said["name"]))
    return [Row(name, tuple(trials)) for name, trials in found.items()]


def as_json(found: Sequence[Row]) -> dict[str, Any]:
    """All numbers by seed, and how every run stands."""
    return {"first": found[0].name, "experiments": [_row_as_json(row) for row in found]}


def _row_as_json(row: Row) -> dict[str, Any]:
    from launcher.compare import mean_and_std

    numbers = {}
    for name in MEASURES:
        by_seed = row.numbers(name)
        mean, std = mean_and_std(by_seed)
        numbers[name] = {
            "mean": mean,
            "std": std,
            "by_seed": {str(k): v for k, v in by_seed.items()},
        }
    runs = [
        {"seed": t.seed, "status": t.state.status, "exit_code": t.state.code, "run": t.said["name"]}
        for t in row.trials
    ]
    return {"name": row.name, "changes": row.changes, "numbers": numbers, "runs": runs}

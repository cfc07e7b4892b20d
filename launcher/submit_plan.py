"""What a submission would run: one run, or a list of experiments; checked before it is queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedcore.config_text import read_yaml, with_overrides
from fedcore.errors import ConfigError, FedError
from launcher import cli, experiments
from launcher.experiments import Run
from launcher.job import kind_of
from launcher.suite_state import COMPLETED, check_directories, is_settled, state


@dataclass(frozen=True)
class Plan:
    """A run or a list of runs, resolved."""

    name: str
    config: str  # YAML, with the overrides put in
    runs: list[Run]
    out: Path  # run directory, or the folder of the list
    is_array: bool

    def left(self) -> list[Run]:
        """The runs that are neither completed nor diverged: the others would end at once."""
        found = [(run, state(run.run_dir, run.config)) for run in self.runs]
        return [run for run, seen in found if seen.status != COMPLETED and not is_settled(seen)]


def plan(config: str, overrides: Sequence[str], array: str | None, run_dir: Path | None) -> Plan:
    """The plan for a configuration, with the experiments of `array` if that is given.

    A configuration that lists experiments is one for itself. Raises `ConfigError` for whatever
    launcher/main.py would.
    """
    values = read_yaml(cli.config_path(config))
    if array is not None:
        values = merged(values, _experiments(array))
    values = with_overrides(values, overrides)
    text = yaml.safe_dump(values, sort_keys=False)
    if cli.LISTED in values:
        name = cli.stem(array or config)
        out = (run_dir or Path("runs") / name).absolute()
        return Plan(name, text, experiments.resolve(values, overrides, out), out, True)
    request = cli.parse(_words(config, overrides))
    out = (run_dir or request.run_dir).absolute()
    return Plan(out.name, text, [Run(0, request.name, request.config, out)], out, False)


def _words(config: str, overrides: Sequence[str]) -> list[str]:
    return ["--config", config, *(["--set", *overrides] if overrides else [])]


def _experiments(array: str) -> dict[str, Any]:
    values = read_yaml(cli.config_path(array))
    if cli.LISTED not in values:
        want = f"a YAML file with `{cli.LISTED}`, as docs/ablations.md has them"
        raise ConfigError("--array", array, want, "lm/cs336, for a look")
    return values


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one; where both say something, `above` is heard."""
    both = {k: merged(below[k], v) if _nest(below.get(k), v) else v for k, v in above.items()}
    return {**below, **both}


def _nest(one: Any, other: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(other, Mapping)


def check(plan: Plan) -> list[str]:
    """Build each run without data, so that no mistake costs time in the queue; what to know of it.

    Raises `ConfigError` for a mistake, or for work in a directory of another configuration.
    """
    check_directories(plan.runs)
    found = []
    for run in plan.runs:
        try:
            kind_of(run.config).dry_run()
        except FedError as error:
            raise experiments.placed(run.name, error) if plan.is_array else error from None
        except (MemoryError, RuntimeError) as error:  # the nodes may be larger than this machine
            words = str(error).splitlines()[0] if str(error) else "no memory"
            found.append(
                f"{run.name} cannot be built on this machine, only its keys are checked: {words}"
            )
    return found

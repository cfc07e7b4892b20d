"""One YAML file that means many runs: the list resolved into runs, or its mistakes told.

Beside the ordinary keys, which all runs share, the file has the sections of experiment_sections.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedcore.config import RunConfig
from fedcore.config_text import explain, flatten, put
from fedcore.errors import ConfigError, ConfigErrors, FedError
from fedcore.files import plain_name
from fedcore.registry import nearest
from launcher import cli
from launcher.experiment_sections import NAME, NAMED, Suite

SHARED = ("device", "threads", "server")
"""Sections that are settled once, when the ranks join: all experiments have them in common."""


@dataclass(frozen=True)
class Run:
    """One run of a list: an experiment with a seed."""

    number: int
    experiment: str
    config: RunConfig
    run_dir: Path

    @property
    def name(self) -> str:
        """Of its folder, and for `--experiment`."""
        return self.run_dir.name


def read(name: str, overrides: Sequence[str], out: Path) -> list[Run]:
    """All runs of the list of that name in order, resolved; run directories below `out`.

    Raises `ConfigError` or `ConfigErrors` that name the experiment and the key.
    """
    return resolve(cli.read_values(name, overrides), overrides, out)


def resolve(given: Mapping[str, Any], overrides: Sequence[str], out: Path) -> list[Run]:
    """The same of values that are read already, with the overrides put in."""
    values = dict(given)
    listed = {key: values.pop(key) for key in Suite.model_fields if key in values}
    try:
        suite = Suite.model_validate(listed)
    except ValidationError as error:
        raise explain(error, Suite) from None
    seeds = suite.seeds or [_seed(values)]
    _no_key_twice(suite, overrides)
    found: dict[str, Run] = {}
    for index, entry in enumerate(suite.experiments):
        for title, changes in entry.variants():
            place = f"experiments[{index}] ({title})"
            _is_new(place, title, found)
            for seed in seeds:
                config = _resolved(place, values, {"seed": seed} | changes)
                _is_apart(place, changes, suite)
                folder = f"{title}-{plain_name(f's{config.seed}')}"
                found[folder] = Run(len(found), title, config, out / folder)
    runs = list(found.values())
    _share_a_world(runs)
    return runs


def _seed(values: Mapping[str, Any]) -> Any:
    return values.get("seed", RunConfig().seed)


def _is_new(place: str, title: str, found: Mapping[str, Run]) -> None:
    if not NAME.fullmatch(title):
        raise ConfigError(place, title, NAMED, "a shorter name, or fewer keys in `each`")
    if any(run.experiment == title for run in found.values()):
        raise ConfigError(place, title, "a name that no other experiment has", "another name")


def _is_apart(place: str, changes: Mapping[str, Any], suite: Suite) -> None:
    if "seed" in changes and suite.seeds is not None:
        want = "a key that `seeds` leaves free"
        raise ConfigError(f"{place}: seed", changes["seed"], want, "leaving one of them out")


def _resolved(place: str, base: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """The configuration of an experiment; its mistakes bear its name, those of all do not."""
    values = deepcopy(dict(base))
    for key, value in changes.items():
        put(values, key, deepcopy(value))
    try:
        return cli.checked(values)
    except FedError as error:
        _blame_base(base, error)
        raise placed(place, error) from None


def _blame_base(base: Mapping[str, Any], met: FedError) -> None:
    """Raise the mistake as it is if the keys that all experiments share already have it."""
    try:
        cli.checked(base)
    except FedError as error:
        if str(error) == str(met):
            raise


def placed(place: str, error: FedError) -> FedError:
    """The same error with the experiment it is in."""
    if isinstance(error, ConfigError):
        return replace(error, key=f"{place}: {error.key}")
    if isinstance(error, ConfigErrors):
        lines = error.errors.splitlines()
        return replace(error, errors="\n".join(f"{place}: {line}" for line in lines))
    return error


def _no_key_twice(suite: Suite, overrides: Sequence[str]) -> None:
    """`ConfigError` for a key that --set and an experiment both want to decide."""
    decided = {k: e.name for e in suite.experiments for k in (*e.set, *e.each)}
    if suite.seeds is not None:
        decided["seed"] = "seeds"
    for override in overrides:
        key = override.partition("=")[0]
        for own, name in decided.items():
            if key == own or key.startswith(f"{own}."):
                want = f"a key that the experiments leave free: {name} sets {own}"
                way_out = "'seeds=[0]'" if own == "seed" else "a copy of the file"
                raise ConfigError("--set", override, want, way_out)


def _share_a_world(runs: Sequence[Run]) -> None:
    """`ConfigError` for an experiment that wants to join the other ranks in a way of its own."""
    first = runs[0].config
    for run in runs:
        if (run.config.lm is None) != (first.lm is None):
            want = "all experiments federated, or all language models: they share a table"
            raise ConfigError(f"{run.experiment}: lm", "the other kind", want, "a list of its own")
        for key in SHARED:
            if getattr(run.config, key) != getattr(first, key):
                want = "the same in all experiments: the ranks join once"
                place = f"{run.experiment}: {key}"
                raise ConfigError(place, str(getattr(run.config, key)), want, "a list of its own")


def changes(run: Run, first: Run) -> dict[str, Any]:
    """Dotted keys in which a run's configuration differs from the first one's; seeds apart."""
    mine, other = flatten(run.config.plain()), flatten(first.config.plain())
    keys = [k for k in mine.keys() | other.keys() if mine.get(k) != other.get(k)]
    return {k: mine.get(k) for k in sorted(keys) if k not in ("seed", *TENTHS)}


TENTHS = ("evaluate.every", "checkpoint.every")
"""Follow from the number of steps unless they are set."""


def chosen(runs: Sequence[Run], word: str) -> list[Run]:
    """The runs that `--experiment` means: a number of `--list`, an experiment, or one of its seeds.

    `ConfigError` with the nearest name if there is none.
    """
    if word.isdigit() and int(word) < len(runs):
        return [runs[int(word)]]
    found = [run for run in runs if word in (run.experiment, run.name)]
    if not found:
        names = [*dict.fromkeys(run.experiment for run in runs), *(run.name for run in runs)]
        want = f"a number below {len(runs)} or the name of an experiment"
        raise ConfigError("--experiment", word, want, nearest(word, names))
    return found

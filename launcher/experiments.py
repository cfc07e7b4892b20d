"""A list of experiments: one YAML file that means many runs.

Beside the ordinary keys, which all runs share, the file has `experiments:` and may have `seeds:`.
An experiment is a name, the keys it sets, and the keys it tries several values of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictInt, ValidationError, field_validator

from fedcore.config import RunConfig
from fedcore.config_section import Section
from fedcore.config_text import explain, flatten, put
from fedcore.errors import ConfigError, ConfigErrors, FedError
from fedcore.registry import nearest
from launcher import cli

NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._=-]{0,119}")
NAMED = "letters, digits and . _ = -, at most 120, a letter among them (it names a folder)"
SHARED = ("device", "threads", "server")
"""Sections that are settled once, when the ranks join: all experiments have them in common."""


class Experiment(Section):
    """One entry of the list."""

    name: str
    """Names its folder and its row in the table."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys and the values they take."""
    each: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Dotted keys and lists of values: one experiment for every combination."""

    @field_validator("name")
    @classmethod
    def _is_a_word(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(NAMED)
        return value

    def variants(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and dotted values of each combination, the last key moving fastest."""
        short = _short(list(self.each))
        for values in product(*self.each.values()):
            words = [f"{short[k]}={_word(v)}" for k, v in zip(self.each, values, strict=True)]
            chosen = dict(zip(self.each, values, strict=True))
            yield "-".join([self.name, *words]), self.set | chosen


def _short(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or the last two where keys share it."""
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: own if last.count(own) == 1 else ".".join(key.split(".")[-2:])
        for key, own in zip(keys, last, strict=True)
    }


def _word(value: Any) -> str:
    """A value as a part of a folder's name; YAML's words for null and the two truths."""
    words = {None: "null", True: "true", False: "false"}
    plain = value is None or isinstance(value, bool)
    text = words[value] if plain else str(value)
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", text)


class Suite(Section):
    """The part of a file that makes it a list."""

    experiments: Annotated[list[Experiment], Field(min_length=1)]
    """What is run, in this order."""
    seeds: Annotated[list[StrictInt], Field(min_length=1)] | None = None
    """Seeds that every experiment is run with; null = the configuration's own."""

    @field_validator("seeds")
    @classmethod
    def _once_each(cls, value: list[int] | None) -> list[int] | None:
        if value and len(set(value)) < len(value):
            raise ValueError("each seed once")
        return value


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
    """All runs of a list in order, resolved; run directories below `out`.

    Raises `ConfigError` or `ConfigErrors` that name the experiment and the key.
    """
    values = cli.read_values(name, overrides)
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
                folder = f"{title}-s{config.seed}"
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
        return RunConfig.of(values)
    except FedError as error:
        _blame_base(base, error)
        raise placed(place, error) from None


def _blame_base(base: Mapping[str, Any], met: FedError) -> None:
    """Raise the mistake as it is if the keys that all experiments share already have it."""
    try:
        RunConfig.of(base)
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

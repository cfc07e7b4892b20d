"""Configurations and environments as tables: of one run by section, of several by difference."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedcore.config import RunConfig
from fedcore.config_text import flatten
from fedcore.errors import FedError
from launcher.report.section import Section, Table
from launcher.report.stored import Stored

ABSENT = "-"


def configuration(runs: Sequence[Stored]) -> Section:
    """What the runs were told; runs without a readable config.yaml are named."""
    known = [run for run in runs if run.said]
    section = Section("configuration", "Configuration", "")
    section.notes.extend(
        f"config.yaml of {run.name} is missing or cannot be read." for run in runs if not run.said
    )
    if len(known) == 1:
        section.tables.extend(_single(known[0]))
    elif known:
        section.tables.extend(_several(known))
    section.tables.extend(_formulas(runs))
    return section


def _single(run: Stored) -> list[Table]:
    """What is not the default, and folded all keys by section."""
    usual = defaults(run)
    flat = flatten(run.said)
    changed = {k: v for k, v in flat.items() if k in usual and usual[k] != v}
    rows = [[key, word(value), word(usual[key])] for key, value in changed.items()]
    every = [
        [section if i == 0 else "", key, word(value)]
        for section, values in _by_section(run.said).items()
        for i, (key, value) in enumerate(values.items())
    ]
    other = Table(["key", "value", "default"], rows, "Keys that are not the default.", wraps=True)
    titles = ["section", "key", "value"]
    return [other, Table(titles, every, "", f"All {len(every)} keys", wraps=True)]


def defaults(run: Stored) -> dict[str, Any]:
    """The default values of a run of this kind, by dotted key."""
    values: dict[str, Any] = {"lm": {}} if "lm" in run.said else {}
    federated = (run.said.get("lm") or {}).get("federated") if values else None
    if federated:
        values["lm"]["federated"] = {}
    try:
        return flatten(RunConfig.of(values).plain())
    except FedError:
        return {}


def _by_section(said: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Dotted keys by their first part; what has none stands under `run`."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in flatten(said).items():
        parts = key.split(".")
        head = ".".join(parts[:-1][:2]) if parts[0] == "lm" else parts[0]
        found.setdefault(head if len(parts) > 1 else "run", {})[key] = value
    return found


def differences(runs: Sequence[Stored]) -> dict[str, list[Any]]:
    """Dotted keys that are not the same in all runs, and the value in each."""
    flat = [flatten(run.said) for run in runs]
    keys = list(dict.fromkeys(key for values in flat for key in values))
    missing = object()
    rows = {key: [values.get(key, missing) for values in flat] for key in keys}
    return {
        key: [ABSENT if v is missing else v for v in values]
        for key, values in rows.items()
        if any(value != values[0] for value in values)
    }


def _several(runs: Sequence[Stored]) -> list[Table]:
    apart = differences(runs)
    rows = [[key, *map(word, values)] for key, values in apart.items()]
    same = {k: v for k, v in flatten(runs[0].said).items() if k not in apart}
    titles = ["key", *(run.name for run in runs)]
    words = "What differs." if rows else "Nothing differs: the runs were told the same."
    rest = [[key, word(value)] for key, value in same.items()]
    common = Table(["key", "value"], rest, "", f"{len(rest)} keys that are the same", wraps=True)
    return [Table(titles, rows, words, wraps=True), common]


def word(value: Any) -> str:
    """A value as it would stand in YAML, in one line."""
    if isinstance(value, str):
        return value
    return "null" if value is None else json.dumps(value, ensure_ascii=False)


def _formulas(runs: Sequence[Stored]) -> list[Table]:
    """What each algorithm minimises."""
    from fedcore.algorithms.describe import formulas

    found: dict[str, list[str]] = {}
    for run in runs:
        if run.algorithm is not None and run.config is not None:
            told = found.setdefault("\n".join(formulas(run.algorithm)), [])
            told.append(run.name if len(runs) > 1 else run.config.algorithm.name)
    return [
        Table(
            [", ".join(names)], [[line] for line in text.split("\n")], "", _minimised(names), True
        )
        for text, names in found.items()
    ]


def _minimised(names: Sequence[str]) -> str:
    return f"What {', '.join(names)} minimises, and where λ rests"


def environment(runs: Sequence[Stored]) -> Section:
    """Versions, commit, devices and commands."""
    about = "What the runs ran on, as they found it at their start."
    section = Section("environment", "Environment", about)
    known = [run for run in runs if run.environment]
    section.notes.extend(
        f"environment.json of {run.name} is missing or cannot be read."
        for run in runs
        if not run.environment
    )
    if known:
        flat = [flatten(_shown(run.environment)) for run in known]
        keys = list(dict.fromkeys(key for values in flat for key in values))
        rows = [[key, *(word(values.get(key, ABSENT)) for values in flat)] for key in keys]
        titles = ["", *(run.name for run in known)]
        section.tables.append(Table(titles, rows, wraps=True))
    return section


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """The command as it would be typed."""
    command = values.get("command")
    said = shlex.join(map(str, command)) if isinstance(command, list) else command
    return {**values, "command": said}

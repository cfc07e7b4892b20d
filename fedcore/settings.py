"""Settings of what a registry holds: keyword arguments of a function, or fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

from fedcore.errors import ConfigError
from fedcore.registry import nearest

ABOVE_0 = "above 0"
Divisor = Annotated[float, ABOVE_0]
"""The type of a setting that may not be 0: something is divided by it."""

LARGEST = 1e5
LEAST = 1e-9  # of what is above 0


def check_settings(thing: Callable[..., Any], given: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The settings as `thing` takes them; `ConfigError` unless each is one of its and in range.

    A setting is a number from 0 to 100,000: whole if its default is, above 0 if it is a `Divisor`;
    or true or false, where its default is. Whole ones come out as int: YAML's 3.0 is no range.
    """
    taken: dict[str, Any] = {}
    defaults = defaults_of(thing)
    kinds = get_type_hints(_annotated(thing), include_extras=True)
    for name, value in given.items():
        if name not in defaults:
            way_out = nearest(name, list(defaults)) if defaults else "none: it has no settings"
            raise ConfigError(f"{key}.{name}", value, "a known setting", way_out)
        if isinstance(defaults[name], bool):
            if not isinstance(value, bool):
                raise ConfigError(
                    f"{key}.{name}", value, "true or false", str(defaults[name]).lower()
                )
            taken[name] = value
            continue
        least = LEAST if ABOVE_0 in getattr(kinds.get(name), "__metadata__", ()) else 0.0
        whole = isinstance(defaults[name], int)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= LARGEST or (whole and value != int(value)):
            want = f"a {'whole ' if whole else ''}number from {least:g} to {LARGEST:g}"
            raise ConfigError(f"{key}.{name}", value, want, str(defaults[name]))
        taken[name] = int(value) if whole else float(value)
    return taken


def defaults_of(thing: Callable[..., Any]) -> dict[str, Any]:
    """By name: the fields of a dataclass's object, the arguments of a function with a default."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return {f.name: getattr(thing, f.name) for f in fields(thing)}
    parameters = inspect.signature(thing).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _annotated(thing: Callable[..., Any]) -> Callable[..., Any]:
    """What the annotations of its settings stand on."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return type(thing)
    return _annotated(thing.func) if isinstance(thing, functools.partial) else thing

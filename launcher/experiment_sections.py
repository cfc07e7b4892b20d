"""The sections `experiments:` and `seeds:`, which make a configuration a list.

An experiment is a name, the keys it sets, and the keys it tries several values of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Any

from pydantic import Field, StrictInt, field_validator

from fedcore.config_section import Section

NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._=-]{0,119}")
NAMED = "letters, digits and . _ = -, at most 120, a letter among them (it names a folder)"


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

"""What every section of the configuration is made of: the base class and the kinds of numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
)
from pydantic_core import PydanticCustomError

from fedcore.files import LONGEST


def _no_switch(value: Any) -> Any:
    """YAML's true would pass as the number 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("switch", "a number, not true or false")
    return value


Positive = Annotated[int, BeforeValidator(_no_switch), Field(ge=1, le=1_000_000_000)]
Count = Annotated[int, BeforeValidator(_no_switch), Field(ge=0, le=1_000_000_000)]
Number = Annotated[float, BeforeValidator(_no_switch)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


def _is_named(value: Any) -> Any:
    """In words of its own: a union would be answered once for each of its members."""
    settings = list(value.values()) if isinstance(value, dict) else [{}]
    numbers = [n for each in settings if isinstance(each, dict) for n in each.values()]
    plain = isinstance(value, str | dict) and all(isinstance(each, dict) for each in settings)
    if not plain or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise ValueError("a name, or a name with settings: {NAME: {SETTING: number}}")
    return value


Named = Annotated[str | dict[str, dict[str, float]], BeforeValidator(_is_named)]
"""What a registry holds: its name, or its name with settings, {NAME: {SETTING: value}}."""


def _can_lie_there(value: Path) -> Path:
    """What no file system has a place for would end in an error far from its key."""
    parts = [part.encode(errors="surrogateescape") for part in value.parts]
    if "\0" in str(value) or any(len(part) > LONGEST for part in parts):
        raise ValueError(f"a path of names of at most {LONGEST} bytes")
    return value


Place = Annotated[Path, AfterValidator(_can_lie_there)]
REMOTE = re.compile(r"(https?://[\w.~:/%+=,-]+|(s3|gs)://[\w.-]+(/[\w.~:/@%+=,-]*)?)")
URL_WANTED = "a URL http://, https://, s3://bucket or gs://bucket, without user and password"


def is_remote(text: str) -> bool:
    """Whether it is the URL of a store; never a command (`pipe:`) or a chain of them (`::`).

    Nor one with a password in it: the words of a run stand in its files and in lists of processes.
    """
    return REMOTE.fullmatch(text) is not None and "::" not in text


def _place_or_url(value: Any) -> Path | str:
    """A path, or the URL of a store."""
    text = str(value) if isinstance(value, str | Path) else ""
    scheme = re.match(r"[A-Za-z][\w+.-]*:", text) or "::" in text
    if scheme and is_remote(text):
        return text.rstrip("/")
    if scheme or not text:
        raise ValueError(f"a folder, or {URL_WANTED}")
    return _can_lie_there(Path(text))


PlaceOrUrl = Annotated[Path | str, PlainValidator(_place_or_url)]


class Section(BaseModel):
    """A part of the configuration: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )

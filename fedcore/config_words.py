"""Every key of a configuration in words: what it may be, its default, its effect.

Read from the JSON schema of the pydantic models, so it says what is checked. docs/config.md and the
errors are made of it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

Schema = Mapping[str, Any]
UNBOUNDED = 1_000_000_000  # a limit that only keeps numbers sane


class Key(NamedTuple):
    """A key that takes a value."""

    name: str  # dotted
    values: str  # what it may be
    default: str
    about: str  # unit and effect


class Part(NamedTuple):
    """A section, with the keys in it that are no sections."""

    name: str  # dotted; "" for the whole
    about: str
    keys: list[Key]


def parts(model: type[BaseModel]) -> Iterator[Part]:
    """All sections, outer ones before those in them."""
    whole = model.model_json_schema()
    yield from _parts("", whole, whole["$defs"])


@functools.cache
def keys_of(model: type[BaseModel]) -> Mapping[str, Key]:
    """All keys that take a value, by dotted name."""
    return {key.name: key for part in parts(model) for key in part.keys}


def _parts(name: str, section: Schema, known: Schema) -> Iterator[Part]:
    inner, keys = [], []
    for word, field in section["properties"].items():
        dotted = f"{name}.{word}" if name else word
        if (below := _section_of(field, known)) is None:
            keys.append(Key(dotted, _values(field), _default(field), _line(field)))
        else:
            inner.append((dotted, field, below))
    yield Part(name, _line(section), keys)
    for dotted, field, below in inner:
        about = " ".join(filter(None, (_line(below), _line(field), _if_absent(field))))
        yield from _parts(dotted, {**below, "description": about}, known)


def _section_of(field: Schema, known: Schema) -> Schema | None:
    """The section that the field holds, if it holds one."""
    for part in (field, *field.get("anyOf", ())):
        if "$ref" in part:
            found: Schema = known[part["$ref"].rpartition("/")[2]]
            return found
    return None


def _if_absent(field: Schema) -> str:
    nothing = any(part.get("type") == "null" for part in field.get("anyOf", ()))
    return "Absent unless given." if nothing else ""


def _line(described: Schema) -> str:
    return " ".join(described.get("description", "").split())


def _default(field: Schema) -> str:
    """As YAML; "" if the key must be given."""
    if "default" not in field:
        return "{}" if field.get("type") == "object" else ""
    return json.dumps(field["default"]).replace('"', "")


def _values(field: Schema) -> str:
    """In words."""
    if "anyOf" in field:
        return " or ".join(_values(part) for part in field["anyOf"])
    if "enum" in field or "const" in field:
        return " or ".join(_plain(x) for x in field.get("enum", [field.get("const")]))
    kind = str(field.get("type"))
    if kind in ("integer", "number"):
        return _number(field, "a whole number" if kind == "integer" else "a number")
    if kind == "array":
        return _list(field)
    words = {"boolean": "true or false", "object": "a mapping", "string": "a text"}
    if kind in words or kind == "null":
        return "a path" if field.get("format") == "path" else words.get(kind, kind)
    return "a folder, or a URL http(s)://, s3:// or gs:// without user and password"


def _list(field: Schema) -> str:
    each = "sections" if "$ref" in field["items"] else _values(field["items"]).removeprefix("a ")
    each = {"path": "paths", "text": "names"}.get(each, each)
    least = field.get("minItems", 0)
    return f"a list of {each}" + (f", at least {least}" if least else "")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(field: Schema, kind: str) -> str:
    bounds = []
    for sign, names in (
        ("≥", ("minimum", "ge")),
        (">", ("exclusiveMinimum", "gt")),
        ("≤", ("maximum", "le")),
        ("<", ("exclusiveMaximum", "lt")),
    ):
        found = [field[n] for n in names if field.get(n, UNBOUNDED) != UNBOUNDED]
        bounds += [f"{sign} {int(x) if x == int(x) else x:,}" for x in found]
    return " ".join([kind, " and ".join(bounds)]).rstrip()

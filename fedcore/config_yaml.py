"""Why a text is no YAML, in the words of somebody who looks at the text."""

from __future__ import annotations

import re
from typing import Any

import yaml

SHORT = 40  # characters of a value that is shown


def reason(error: Exception) -> str:
    """Where and what, without the library's terms."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} (0x{error.object[error.start]:02x}) is no UTF-8"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1} (0x{error.character:02x}) is none of a text"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + _problem(error.problem or "")


def _problem(said: str) -> str:
    if "'\\t'" in said:
        return "a tab, where YAML wants spaces"
    if tag := re.search(r"constructor for the tag '(.*)'", said):
        return f"the tag {tag[1]}: only plain values are read"
    if "another document" in said:
        return "a second document begins"
    if "<block end>" in said:
        return "an indentation, or a sign, that does not fit the lines above"
    return re.sub(r"'?<(.*?)>'?", r"the \1", said)


def held(value: Any) -> str:
    """What a file holds that should hold keys."""
    kind = "a list" if isinstance(value, list) else "one value"
    text = repr(value)
    return f"{kind}, {text if len(text) <= SHORT else text[:SHORT] + '...'}"

"""What a section of the page is: words, pictures and tables, as the template takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

FOLDED = 20  # rows above which a table of many rows is folded


@dataclass(frozen=True)
class Picture:
    """A figure of the report."""

    alt: str
    source: Markup  # a data URI
    caption: str = ""


@dataclass(frozen=True)
class Table:
    """Titles and rows of text."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: str = ""  # if not empty, the line behind which the table is folded
    wraps: bool = False  # cells are text, which may be broken


@dataclass(frozen=True)
class Section:
    """One chapter of the page."""

    id: str
    title: str
    about: str  # what is shown, and how to read it
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

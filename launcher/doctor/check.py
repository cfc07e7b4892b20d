"""One finding of the doctor, and how a look that fails becomes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """What the doctor found at one look."""

    name: str
    ok: bool
    detail: str
    way_out: str = ""
    needed: bool = True  # False: good to have, fedcore works without it
    figures: Mapping[str, float] = field(default_factory=dict)  # what was measured, in SI units

    @property
    def bad(self) -> bool:
        """Whether a run would suffer by it."""
        return self.needed and not self.ok

    @property
    def mark(self) -> str:
        """`ok`, `bad`, or `-` for what is good to have and is not there."""
        return "ok" if self.ok else "bad" if self.needed else "-"

    def to_json(self) -> dict[str, Any]:
        """The fields, as they travel between ranks."""
        return asdict(self)


Look = Callable[[], Iterable[Check]]


def tried(name: str, look: Look, way_out: str = "installing fedcore anew") -> list[Check]:
    """What a look found; one that fails unexpectedly is itself a finding, and keeps the others."""
    found: list[Check] = []
    try:
        found.extend(look())
    except Exception as error:
        found.append(Check(name, False, _words(error), way_out))
    return found


def _words(error: Exception) -> str:
    """The first line of an error, with its kind."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def size(count: float) -> str:
    """Bytes as a person says them: `64 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"

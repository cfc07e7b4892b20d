"""The bundled text: sources and documentation of the Python standard library on this machine."""

from __future__ import annotations

import os
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = {
    *("site-packages", "dist-packages", "__pycache__"),  # not the standard library, or no text
    *("test", "tests", "idle_test"),  # they repeat themselves, and hold broken files on purpose
}
TOPICS = "pydoc_data/topics.py"  # one file of reference manual: a document for each topic


def stdlib() -> Iterator[tuple[str, str, str]]:
    """(name, group, text) of each module and text file, sorted by name; the group is the package.

    The sources are read as Python reads them, so that those in latin-1 are text too.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in names(root):
        group = name.partition("/")[0] if "/" in name else "."
        if name == TOPICS:
            yield from ((f"{name}:{topic}", group, text) for topic, text in _topics())
            continue
        with tokenize.open(root / name) as file:
            text = file.read()
        if text.strip():
            yield name, group, text


def names(root: Path) -> list[str]:
    """Paths below the library's root of all that is read, sorted."""
    found = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in LEFT_OUT and name[:7] != "config-"]
        here = Path(folder).relative_to(root)
        found += [(here / name).as_posix() for name in files if _is_text(name)]
    return sorted(name for name in found if not (root / name).is_symlink())


def _is_text(name: str) -> bool:
    generated = name.startswith("_sysconfigdata")  # paths of this machine
    return name.endswith((".py", ".txt")) and not generated


def _topics() -> list[tuple[str, str]]:
    from pydoc_data.topics import topics

    return sorted(topics.items())


def version() -> str:
    """Names and sizes of all that is read: another Python is another corpus."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return repr([(name, (root / name).stat().st_size) for name in names(root)])

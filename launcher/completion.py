"""What the shell offers after `fedcore` and a tab. Nothing here imports torch: a tab is not waited
for."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

import fedcore
from fedcore.config import RunConfig
from fedcore.config_text import known_keys
from fedcore.config_words import keys_of
from launcher import cli

CODE = Path(next(iter(fedcore.__path__)))
RUNS = ("config.yaml", "suite.json")  # files of a run directory, of the folder of a list
KEY = "_FEDCORE_COMPLETE_KEY"  # the key whose value is to be completed


class Completing(TyperGroup):
    """The group of all commands."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As usual, once the words to complete are those that the user sees."""
        join_words()
        return super().main(*args, **kwargs)


def join_words() -> None:
    """Bash hands over `a.b=c` as three words, and puts what it is offered in the place of the last:
    make those before the cursor one again, and leave of the one at the cursor the value."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    if os.environ.get("_FEDCORE_COMPLETE") != "complete_bash" or "=" not in words:
        return
    joined: list[str] = []
    glue = False
    for word in words[: int(os.environ["COMP_CWORD"]) + 1]:
        if joined and (glue or word == "="):
            joined[-1] += word
        else:
            joined.append(word)
        glue = word == "="
    if "=" in joined[-1] and not joined[-1].startswith("-"):
        os.environ[KEY], _, joined[-1] = joined[-1].partition("=")
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(joined) - 1)}


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def configs(incomplete: str) -> list[str]:
    """Shipped configurations; for other files there is the shell's own completion."""
    return _starting(cli.shipped_configs(), incomplete)


def keys(incomplete: str) -> list[str]:
    """Keys and sections of a configuration."""
    return _starting(known_keys(RunConfig), incomplete)


def overrides(incomplete: str) -> list[str]:
    """`a.b=` of all keys; of the only one that fits, with its values."""
    if key := os.environ.get(KEY):
        return _starting(_values(key), incomplete)
    if "=" in incomplete:
        key = incomplete.partition("=")[0]
        return _starting((f"{key}={word}" for word in _values(key)), incomplete)
    found = _starting(keys_of(RunConfig), incomplete)
    if len(found) == 1:
        # with two to choose from, the shell puts no space behind the `=`
        return [f"{found[0]}=", *(f"{found[0]}={word}" for word in _values(found[0]))]
    return [f"{key}=" for key in found]


def _values(key: str) -> list[str]:
    """Words that the key may be set to, or else its default."""
    if key == "algorithm.name":
        return algorithms("")
    if key == "data.source":
        from data_shards.sources import SOURCES

        return SOURCES.names()
    known = keys_of(RunConfig).get(key)
    if known is None:
        return []
    words = known.values.split(" or ")
    listed = all(word.replace("_", "").isalnum() for word in words) and len(words) > 1
    return words if listed else [known.default]


def algorithms(incomplete: str) -> list[str]:
    """Names of all algorithms."""
    files = (CODE / "algorithms").glob("*.py")
    names = sorted(name for file in files for name in added(file, "ALGORITHMS"))
    return _starting(names, incomplete)


def readouts(incomplete: str) -> list[str]:
    """What runs can be compared by."""
    return _starting(["own", "best", *added(CODE / "readouts.py", "READOUTS")], incomplete)


def added(file: Path, registry: str) -> Iterator[str]:
    """The names that a file adds to a registry, read from its text: its import would load torch."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        for call in ast.walk(node):
            match call:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=owner), attr="add"), args=[name, *_]
                ) if owner == registry:
                    yield from _names(name, node)


def _names(name: ast.expr, statement: ast.stmt) -> Iterator[str]:
    """The word itself; for the variable of a loop the first word of each turn."""
    turns: list[Any] = [name]
    match statement:
        case ast.For(iter=ast.Call(func=ast.Attribute(value=ast.Dict(keys=words)))):
            turns = words
        case ast.For(iter=ast.Tuple(elts=rows)):
            turns = [row.elts[0] for row in rows if isinstance(row, ast.Tuple)]
    yield from (str(turn.value) for turn in turns if isinstance(turn, ast.Constant))


def one_of(*words: str) -> Callable[[str], list[str]]:
    """What offers these words."""

    def offered(incomplete: str) -> list[str]:
        return _starting(words, incomplete)

    return offered


def resume(incomplete: str) -> list[str]:
    """Words for `--resume`, and run directories."""
    return [*_starting(("auto", "never"), incomplete), *runs(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Run directories below `runs`; for others there is the shell's own completion."""
    folders = [*Path("runs").glob("*"), *Path("runs").glob("*/*")]
    found = [str(f) for f in sorted(folders) if any((f / name).is_file() for name in RUNS)]
    return _starting(found, incomplete)

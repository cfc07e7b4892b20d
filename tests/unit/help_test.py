"""Does every command's help show examples that the command understands?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from launcher import cli
from launcher.commands import app

APP: Any = get_command(app)


def commands(found: Any = APP, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All groups and commands with the words that lead to them."""
    yield path, found
    for name, below in getattr(found, "commands", {}).items():
        yield from commands(below, (*path, name))


COMMANDS = {" ".join(("fedcore", *path)): command for path, command in commands()}


def examples(command: Any) -> list[str]:
    """The lines that the help shows as examples."""
    return (command.help or "").partition("\b\nExamples:\n")[2].splitlines()


EXAMPLES = [line for command in COMMANDS.values() for line in examples(command)]
TRAINING = [line.strip() for line in cli.EXAMPLES.splitlines()[1:]]


@pytest.mark.parametrize("words", COMMANDS)
def test_help_shows_one_to_three_examples_of_the_command(words: str) -> None:
    lines = examples(COMMANDS[words])
    assert 1 <= len(lines) <= 3, lines
    assert any(line.startswith(f"{words} ") or line == words for line in lines)
    said = CliRunner().invoke(app, [*words.split()[1:], "--help"], env={"COLUMNS": "80"}).output
    assert all(line in said for line in lines), "an example that is too long is broken in two"


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_command_of_an_example_takes_its_words(line: str) -> None:
    words = shlex.split(line)
    if "launcher.doctor" in words:
        words = ["fedcore", "doctor", *words[words.index("launcher.doctor") + 1 :]]
    program, *rest = words
    found = APP
    while hasattr(found, "commands"):
        found = found.commands[rest.pop(0)]
    assert program == "fedcore"
    context = found.make_context(line, rest)  # raises for what it does not know
    for value in context.params.get("overrides") or []:
        assert cli.load_config(context.params.get("config") or "lm_small", [value])


@pytest.mark.parametrize("line", TRAINING)
def test_the_training_command_takes_its_examples(line: str) -> None:
    assert re.match(r"torchrun --nproc_per_node=\d launcher/main.py", line)
    given = cli.parser().parse_args(shlex.split(line.partition("launcher/main.py")[2]))
    assert cli.read_values(given.config, given.overrides) is not None
    assert line in cli.parser().format_help()

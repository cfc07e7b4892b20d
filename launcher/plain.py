"""What the commands share: usual arguments, examples, and a user's mistake told in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, ParamSpec

import typer

from fedcore.errors import FedError
from launcher import completion

P = ParamSpec("P")
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="a.b=value",
        help="Override a key (repeatable).",
        autocompletion=completion.overrides,
    ),
]
Config = Annotated[
    str,
    typer.Argument(
        help="A name in launcher/configs, or a YAML file.", autocompletion=completion.configs
    ),
]


@contextmanager
def plain_errors() -> Iterator[None]:
    """A user's mistake ends in one line and its exit code."""
    try:
        yield
    except FedError as error:
        typer.echo(f"fedcore: {error}", err=True)
        raise typer.Exit(error.exit_code) from None


def plain(command: Callable[P, None]) -> Callable[P, None]:
    """The command, whose user's mistakes end in one line and their exit code."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        with plain_errors():
            command(*args, **kwargs)

    wrapped.__doc__ = with_examples(command.__doc__ or "")
    return wrapped


def with_examples(text: str) -> str:
    """A help text whose lines from `Examples:` on are shown as they are, one below the other."""
    return inspect.cleandoc(text).replace("\n\nExamples:\n", "\n\n\b\nExamples:\n")

"""What the commands share: their usual arguments, and a user's mistake told in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, ParamSpec

import typer

from fedcore.errors import FedError

P = ParamSpec("P")
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=value", help="Override a key (repeatable)."),
]
Config = Annotated[str, typer.Argument(help="A name in launcher/configs, or a YAML file.")]


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

    return wrapped

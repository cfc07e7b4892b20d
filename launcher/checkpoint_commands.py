"""`fedcore checkpoint`: verify, show and export what a run has saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedcore.errors import FedError, ShardError
from launcher import completion
from launcher.plain import plain, with_examples

checkpoint = typer.Typer(
    help=with_examples(
        """Checkpoints: verify, show, export.

        Examples:
        fedcore checkpoint show runs/default-v14-s0-1a2b3c4d
        """
    ),
    no_args_is_help=True,
)
Place = Annotated[
    Path,
    typer.Argument(help="A run directory, or a checkpoint in it.", autocompletion=completion.runs),
]
OLDER = "an older checkpoint: --resume DIR"


@checkpoint.command()
@plain
def verify(place: Place) -> None:
    """Hash every file of one or all checkpoints again and name each bad one (exit code 3).

    Examples:
    fedcore checkpoint verify runs/default-v14-s0-1a2b3c4d
    """
    from launcher.checkpoint_stored import all_in

    table = Table("checkpoint", "file", "size", "clients", "", box=None)
    table.columns[1].overflow = "fold"
    folders = all_in(place)
    bad = [words for folder in folders for words in _verified(folder, table)]
    Console().print(table)
    for words in bad:
        typer.echo(words, err=True)
    if bad:
        raise ShardError(str(place), f"{len(bad)} bad of {table.row_count} files", OLDER)
    typer.echo(f"{place}: {len(folders)} checkpoints, {table.row_count} files, all as written")


def _verified(folder: Path, table: Table) -> list[str]:
    """A row for each file of a checkpoint; a sentence about each bad one."""
    from fedcore.checkpoint import Checkpoint
    from launcher.checkpoint_stored import problem

    try:
        entries = Checkpoint(folder).files
    except FedError as error:
        table.add_row(folder.name, "index.json", _size(folder / "index.json"), "", "[red]bad[/]")
        return [str(error)]
    bad = []
    for entry in entries:
        wrong = problem(folder, entry)
        clients = str(len(entry.get("clients", []))) if "clients" in entry else "all share"
        mark = "[red]bad[/]" if wrong else "[green]good[/]"
        name = str(entry["file"])
        table.add_row(folder.name, escape(name), _size(folder / name), clients, mark)
        bad += [f"{folder / name}: {wrong}"] if wrong else []
    return bad


def _size(path: Path) -> str:
    from launcher.words import size

    try:
        return size(path.stat().st_size)
    except (OSError, ValueError):
        return "-"


@checkpoint.command()
@plain
def show(place: Place) -> None:
    """The checkpoints of a run; of one checkpoint its facts and every tensor.

    Examples:
    fedcore checkpoint show runs/default-v14-s0-1a2b3c4d
    fedcore checkpoint show runs/default-v14-s0-1a2b3c4d/checkpoints/round_00010
    """
    from launcher import checkpoint_tables
    from launcher.checkpoint_stored import all_in

    if (place / "index.json").is_file():
        Console().print(checkpoint_tables.facts(place))
        Console().print(checkpoint_tables.tensors(place))
    else:
        Console().print(checkpoint_tables.listed(all_in(place)))


@checkpoint.command()
@plain
def export(
    place: Place,
    what: Annotated[
        str,
        typer.Option(
            help="averaged, ensemble or prototypes.",
            autocompletion=completion.one_of("averaged", "ensemble", "prototypes"),
        ),
    ] = "averaged",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="safetensors or onnx.",
            autocompletion=completion.one_of("safetensors", "onnx"),
        ),
    ] = "safetensors",
    out: Annotated[
        Path | None, typer.Option(help="Default: WHAT-CHECKPOINT.FORMAT in the run directory.")
    ] = None,
    best: Annotated[bool, typer.Option(help="Of a run, the best checkpoint.")] = False,
) -> None:
    """Write what a federated run learned to one file. docs/export.md shows how to load it.

    Examples:
    fedcore checkpoint export runs/default-v14-s0-1a2b3c4d
    fedcore checkpoint export runs/default-v14-s0-1a2b3c4d --what ensemble
    """
    from launcher.checkpoint_stored import chosen
    from launcher.exporting import Exporter, format_of, what_of

    content, kind = what_of(what), format_of(form)
    typer.echo(Exporter(chosen(place, best)).write(content, kind, out))

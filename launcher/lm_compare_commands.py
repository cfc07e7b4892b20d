"""`fedcore lm compare`: the table of a list of experiments, on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher import completion
from launcher.plain import plain


@plain
def compare(
    run_dir: Annotated[
        Path,
        typer.Argument(
            help="The run directory of a list of experiments.", autocompletion=completion.runs
        ),
    ],
) -> None:
    """Table and curves of a list of experiments, of what has been run so far.

    Examples:
    fedcore lm compare runs/cs336
    """
    from launcher import suite_table

    suite_table.write_and_show(run_dir)

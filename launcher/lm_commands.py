"""`fedcore lm ...`: what there is to know of language-model runs beside training them."""

from __future__ import annotations

import typer

from launcher import lm_compare_commands

lm = typer.Typer(help="Language models: what a configuration means.", no_args_is_help=True)
lm.callback()(lambda: None)  # a group even with one command
lm.command()(lm_compare_commands.compare)

"""`fedcore lm ...`: language models before and after training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedcore.config_lm import LMConfig
from fedcore.errors import ConfigError
from launcher import cli, lm_compare_commands, lm_model_commands
from launcher.plain import Config, Overrides, plain, with_examples

lm = typer.Typer(
    help=with_examples(
        """Language models: what a configuration means, and what a run left.

        Examples:
        fedcore lm params lm_small
        """
    ),
    no_args_is_help=True,
)
for command in (
    lm_model_commands.params,
    lm_compare_commands.compare,
    lm_model_commands.sample,
    lm_model_commands.export,
):
    lm.command()(command)


def lm_config(name: str, overrides: list[str]) -> LMConfig:
    """The `lm:` section of a configuration; `ConfigError` if it has none."""
    section = cli.load_config(name, overrides).lm
    if section is None:
        raise ConfigError(
            "lm", None, f"a language-model run; {name} is a federated one", "lm_small"
        )
    return section


@lm.command()
@plain
def memory(
    config: Config,
    overrides: Overrides = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Instead of lm.steps.")] = None,
    epoch: Annotated[
        int | None, typer.Option(min=10, help="Steps of one pass over the data, if several.")
    ] = None,
    gradient_std: Annotated[
        float | None, typer.Option(min=0.0, help="Of a single gradient entry, for sgdm.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Default: runs/memory-CONFIG.")] = None,
) -> None:
    """What a run will remember of its steps and its start, before it is trained.

    Writes memory.png and memory.json.

    Examples:
    fedcore lm memory lm_small
    fedcore lm memory lm_small --set lm.schedule.name=ema_constant_wd
    """
    from fedcore.lm.memory_report import Report, rows
    from launcher.rundir import storage

    said = [*(overrides or []), *([f"lm.steps={steps}"] if steps else [])]
    report = Report.of(lm_config(config, said), gradient_std, epoch)
    table = Table("", "", title=f"{cli.stem(config)}: {report.config.steps:,} steps")
    table.show_header = False
    for row in rows(report.memory):
        table.add_row(*row)
    tenths = "  ".join(f"{weight:.2g}" for weight in report.tenths)
    table.add_row("weight of each tenth of the data", tenths)
    Console().print(table)
    for sentence in report.sentences():
        typer.echo(f"- {sentence}")
    folder = out or Path("runs") / f"memory-{cli.stem(config)}"
    with storage(folder):
        for path in report.write(folder):
            typer.echo(path)


@lm.command()
@plain
def schedules() -> None:
    """The schedules of eta and lam (lm.schedule.name in a configuration).

    Examples:
    fedcore lm schedules
    """
    from fedcore.lm.schedules import LM_SCHEDULES

    table = Table("name", "lam", "about", box=None)
    for name, schedule in LM_SCHEDULES:
        table.add_row(name, schedule.decay or "as set", escape(schedule.about))
    Console().print(table)

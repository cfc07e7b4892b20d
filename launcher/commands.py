"""`fedcore`: everything that is not a training process."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launcher import cli, completion
from launcher.checkpoint_commands import checkpoint
from launcher.completion import Completing
from launcher.doctor.command import doctor
from launcher.lm_commands import lm
from launcher.plain import Overrides, plain, with_examples
from launcher.shard_commands import shards
from launcher.submit_commands import jobs, submit

app = typer.Typer(
    name="fedcore",
    cls=Completing,
    help=with_examples(
        """Prepare data for, look into and check federated runs. Training: launcher/main.py.

        Examples:
        fedcore doctor
        fedcore algorithms v14
        fedcore report runs/v12 runs/v14
        """
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(shards, name="shards")
study = typer.Typer(
    help=with_examples(
        """Runs and a report on one question.

        Examples:
        fedcore study lambda --quick
        """
    ),
    no_args_is_help=True,
)
app.add_typer(study, name="study")
app.add_typer(lm, name="lm")
app.command()(doctor)
app.add_typer(checkpoint, name="checkpoint")
app.command()(submit)
app.command()(jobs)


@app.command()
@plain
def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(help="Explain this one.", autocompletion=completion.algorithms),
    ] = None,
    extension: Annotated[
        list[Path] | None, typer.Option(help="Your own file with algorithms (repeatable).")
    ] = None,
) -> None:
    """The declared algorithms (algorithm.name in a configuration), or one of them in full.

    Examples:
    fedcore algorithms
    fedcore algorithms v13
    """
    from fedcore import extensions
    from fedcore.algorithms import ALGORITHMS

    extensions.load(extension or [])

    if name is not None:
        _explain(name)
        return
    table = Table("name", "mode", "read-out", "about", box=None)
    for known, algorithm in ALGORITHMS:
        table.add_row(known, algorithm.mode, algorithm.readout, escape(algorithm.about))
    Console().print(table)


def _explain(name: str) -> None:
    """Formulas, closed form and settings of one algorithm."""
    from fedcore.algorithms import ALGORITHMS
    from fedcore.algorithms.describe import formulas, settings

    algorithm = ALGORITHMS.get(name)
    typer.echo(f"{name}: {algorithm.about}\n")
    typer.echo("\n".join(formulas(algorithm)))
    if place := _place_of(algorithm):
        typer.echo(f"\nTo change it in a file of your own (docs/extending.md): {place}")
    typer.echo("\nThe same in a configuration; every key may be changed:\n")
    said = {"algorithm": {"name": name, **settings(algorithm)}}
    typer.echo(yaml.safe_dump(said, sort_keys=False, default_flow_style=None))
    rule = said["algorithm"].get("rule")
    if rule and (own := {"start", "anneal", "guard"} - rule.keys()):
        typer.echo(f"# {', '.join(sorted(own))}: of a class of its own, set where it is declared")


def _place_of(algorithm: object) -> str:
    """How a file of a user's imports the declaration; empty if it has no name of its own."""
    for module in [m for name, m in sys.modules.items() if name.startswith("fedcore.algorithms.")]:
        for name, value in vars(module).items():
            if value is algorithm and name.isupper() and not name.startswith("_"):
                return f"from {module.__name__} import {name}"
    return ""


@app.command()
@plain
def metrics() -> None:
    """Every metric that a rank serves, as a Markdown table (docs/metrics.md).

    Examples:
    fedcore metrics
    """
    from fedcore.telemetry.catalogue import table

    typer.echo(table(), nl=False)


@app.command()
@plain
def config(
    key: Annotated[
        str | None,
        typer.Argument(help="Explain this key or section only.", autocompletion=completion.keys),
    ] = None,
    schema: Annotated[bool, typer.Option(help="The JSON schema, for editors.")] = False,
) -> None:
    """Every key of a configuration with its values, default and effect (docs/config.md).

    Examples:
    fedcore config clients.width
    fedcore config --schema
    """
    from launcher import reference

    if schema:
        typer.echo(reference.schema())
    else:
        typer.echo(
            reference.page() if key is None else reference.explained(key), nl=key is not None
        )


@app.command()
@plain
def watch(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run directory, or the folder of a list of runs.", autocompletion=completion.runs
        ),
    ],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option(help="One picture, and end.")] = False,
) -> None:
    """Show a run live, from any shell that sees its directory; its lines where no terminal is.

    Ends with the run.

    Examples:
    fedcore watch runs/default-v14-s0-1a2b3c4d
    fedcore watch runs/default-v14-s0-1a2b3c4d --once
    """
    from launcher.watch import main

    main(run, sys.stdout, every, once)


@app.command()
@plain
def plot(
    run: Annotated[Path, typer.Argument(help="A run directory.", autocompletion=completion.runs)],
    out: Annotated[Path | None, typer.Option(help="Default: RUN/lambda.png.")] = None,
) -> None:
    """Draw lambda against its equilibrium, the losses and the accuracy of a run.

    Examples:
    fedcore plot runs/default-v14-s0-1a2b3c4d --out lambda.png
    """
    from fedcore.telemetry.plots import plot_lambda

    typer.echo(plot_lambda([run], out or run / "lambda.png"))


@app.command()
@plain
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run directories, or lists of experiments.", autocompletion=completion.runs
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="A .html file or a directory. Default: RUN/report, or runs/report-RUNS."),
    ] = None,
) -> None:
    """Write one HTML file about a run, or about several side by side. See docs/reports.md.

    Examples:
    fedcore report runs/default-v14-s0-1a2b3c4d
    fedcore report runs/v12 runs/v14 --out runs/v12-v14.html
    """
    from launcher.report.report import report

    typer.echo(report(runs, out))


@app.command()
@plain
def compare(
    configs: Annotated[
        list[str],
        typer.Argument(
            help="Names in launcher/configs, or YAML files.", autocompletion=completion.configs
        ),
    ],
    algorithm: Annotated[
        list[str] | None,
        typer.Option(help="A row (repeatable).", autocompletion=completion.algorithms),
    ] = None,
    alpha: Annotated[list[float] | None, typer.Option(help="A group (repeatable).")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each: seeds 0, 1, ...")] = 3,
    overrides: Overrides = None,
    ranks: Annotated[int, typer.Option(min=1, help="Processes of a run.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Default: runs/compare-CONFIGS.")] = None,
    readout: Annotated[
        str,
        typer.Option(help="Compared: own, best or a name.", autocompletion=completion.readouts),
    ] = "own",
    baseline: Annotated[str | None, typer.Option(help="Row to compare with; the first.")] = None,
    dry_run: Annotated[bool, typer.Option(help="List the runs and end.")] = False,
) -> None:
    """Train algorithms x alphas x seeds and put them into one table, paired by seed.

    Stopped, it goes on when it is called again.

    Examples:
    fedcore compare default --algorithm v4 --algorithm v14 --seeds 3 --jobs 2
    fedcore compare default --alpha 0.05 --alpha 0.5 --dry-run
    """
    from launcher import comparing
    from launcher.grid import grid

    folder = out or Path("runs") / ("compare-" + "-".join(cli.stem(c) for c in configs))
    cells = grid(
        configs,
        folder,
        algorithms=algorithm or [],
        alphas=alpha or [],
        seeds=seeds,
        overrides=overrides or [],
        ranks=ranks,
    )
    code = comparing.main(cells, folder, jobs, readout, baseline, dry_run=dry_run)
    raise typer.Exit(code)


@study.command("lambda")
@plain
def study_lambda(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each version.")] = 3,
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Default: runs/study-lambda.")] = None,
    quick: Annotated[bool, typer.Option(help="One seed of a small dataset, for a look.")] = False,
) -> None:
    """What a learned lambda does in v10 ... v14: runs, and a report in one HTML file.

    Stopped, it goes on when it is called again. See docs/studies.md.

    Examples:
    fedcore study lambda --quick
    fedcore study lambda --seeds 3 --jobs 2
    """
    from launcher.study import lambda_study

    folder = out or Path("runs") / ("study-lambda-quick" if quick else "study-lambda")
    cells = lambda_study.cells(seeds, folder, overrides or [], quick=quick)
    raise typer.Exit(lambda_study.main(cells, folder, jobs, shlex.join(["fedcore", *sys.argv[1:]])))


if __name__ == "__main__":
    app()

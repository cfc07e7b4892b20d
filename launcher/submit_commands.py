"""`fedcore submit` and `fedcore jobs`: training as jobs of a Slurm cluster."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from launcher import completion
from launcher.plain import Config, Overrides, plain

Words = list[str] | None


class After(StrEnum):
    """When the report is written."""

    any = "any"
    ok = "ok"


@plain
def submit(
    config: Config,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of a run.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs of each; 0 = CPU only.")] = 8,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Default: one per GPU, or one.")
    ] = None,
    cpus_per_task: Annotated[
        int | None, typer.Option(min=1, help="Cores of each node. Default: `threads` + 1 a rank.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="As for sbatch, like the next four.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Limit of one attempt: 24:00:00.")] = None,
    account: Annotated[str | None, typer.Option()] = None,
    qos: Annotated[str | None, typer.Option()] = None,
    mem: Annotated[str | None, typer.Option(help="Memory of each node: 64G.")] = None,
    sbatch: Annotated[
        Words, typer.Option(metavar="--OPTION=VALUE", help="Any other option (repeatable).")
    ] = None,
    array: Annotated[
        str | None, typer.Option(help="Experiments on top of CONFIG, each a task of an array.")
    ] = None,
    array_limit: Annotated[int | None, typer.Option(min=1, help="Tasks at once.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Default: as launcher/main.py.")] = None,
    resume: Annotated[
        str,
        typer.Option(
            help="auto, never, or a directory to start from.", autocompletion=completion.resume
        ),
    ] = "auto",
    report: Annotated[bool, typer.Option(help="A job that writes the report afterwards.")] = True,
    report_after: Annotated[
        After, typer.Option(help="any = however the run ended; ok = if it completed.")
    ] = After.any,
    module: Annotated[Words, typer.Option(help="`module load` this (repeatable).")] = None,
    prolog: Annotated[Path | None, typer.Option(help="Shell file sourced before the run.")] = None,
    container: Annotated[
        str | None, typer.Option(help="Image to run in: a .sif (Apptainer), else for pyxis.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="Default: this one; `python` in a container.")
    ] = None,
    interface: Annotated[
        str | None, typer.Option(help="Network between the nodes (NCCL, gloo): ib0.")
    ] = None,
    scrape: Annotated[
        bool, typer.Option(help="Open the ranks' metrics to a Prometheus on another machine.")
    ] = True,
    notice: Annotated[
        int, typer.Option(min=60, help="Seconds before the time limit at which a run stops.")
    ] = 120,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restarts within a job after a lost rank.")
    ] = 1,
    requeues: Annotated[
        int, typer.Option(min=0, help="After a lost rank, without a new checkpoint in between.")
    ] = 3,
    dry_run: Annotated[bool, typer.Option(help="Print the scripts and end.")] = False,
) -> None:
    """Check a configuration and submit it to Slurm; see docs/operations.md, Slurm.

    Examples:
    fedcore submit default --nodes 4 --time 24:00:00
    fedcore submit lm/cs336 --array-limit 4
    fedcore submit smoke --gpus-per-node 0 --ranks-per-node 2 --dry-run
    """
    from launcher import submit as submitting
    from launcher.submit_plan import check
    from launcher.submit_plan import plan as planned
    from launcher.submit_script import Resources

    plan = planned(config, overrides or [], array, run_dir)
    for words in check(plan):
        typer.echo(f"warning: {words}", err=True)
    ranks = ranks_per_node or gpus_per_node or 1
    named = {"partition": partition, "time": time, "account": account, "qos": qos, "mem": mem}
    asked = Resources(
        nodes=nodes,
        gpus=gpus_per_node,
        ranks=ranks,
        cpus=cpus_per_task or ranks * (plan.runs[0].config.threads + 1),
        options=[*(f"--{k}={v}" for k, v in named.items() if v is not None), *(sbatch or [])],
        modules=module or [],
        prolog=prolog.absolute() if prolog else None,
        container=container,
        python=python or ("python" if container else sys.executable),
        interface=interface,
        scrape=scrape,
        notice=notice,
        max_restarts=max_restarts,
        requeues=requeues,
    )
    wanted = submitting.Wanted(
        command=shlex.join(["fedcore", *sys.argv[1:]]),
        cwd=Path.cwd(),
        resume=resume,
        at_once=array_limit,
        report=f"after{report_after.value}" if report else None,
    )
    if dry_run:
        typer.echo("\n".join(submitting.scripts(plan, asked, wanted).values()), nl=False)
        return
    for line in submitting.submit(plan, asked, wanted):
        typer.echo(line)


@plain
def jobs(
    folder: Annotated[Path, typer.Argument(help="Where the runs lie.")] = Path("runs"),
    all_: Annotated[bool, typer.Option("--all", help="Also runs that ended days ago.")] = False,
) -> None:
    """This user's runs: job, state in the queue, how far, how well, how often resumed, where.

    Without Slurm, the runs in FOLDER.

    Examples:
    fedcore jobs --all
    """
    from launcher import jobs as found
    from launcher import jobs_table, slurm

    queue = slurm.queue()
    if queue is None:
        typer.echo("no Slurm here, or it does not answer: only what the runs say", err=True)
    rows = found.rows(folder, queue or [])
    shown = [row for row in rows if all_ or row.is_current]
    jobs_table.show(shown, sys.stdout)
    if len(shown) < len(rows):
        typer.echo(f"{len(rows) - len(shown)} older runs: --all", err=True)

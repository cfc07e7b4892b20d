"""The words of the doctor's command: `fedcore doctor`, and `-m launcher.doctor` under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from launcher import cli, completion
from launcher.doctor.main import Options, visit
from launcher.plain import Overrides, plain

VERDICT = "FEDCORE_DOCTOR_VERDICT"  # a file for the exit code: torchrun would add its own report


@plain
def doctor(
    ranks: Annotated[int, typer.Option(min=1, help="Start so many ranks on this machine.")] = 1,
    config: Annotated[
        str,
        typer.Option(
            help="A name in launcher/configs, or a file.", autocompletion=completion.configs
        ),
    ] = "default",
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option(help="Of runs. Default: runs, or here.")] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds a step may take before a rank counts as hanging.")
    ] = 30.0,
    megabytes: Annotated[
        int, typer.Option(min=1, help="MiB of the large all_reduce and of the file written.")
    ] = 64,
    prometheus: Annotated[
        str | None, typer.Option(help="URL that must answer. Default: a look at 127.0.0.1:9090.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Check what this machine, or a cluster, has for fedcore; exit code 1 if something is missing.

    On all ranks of a job it is a module, launcher.doctor. See docs/operations.md.

    Examples:
    fedcore doctor --ranks 2
    torchrun --nproc_per_node=8 -m launcher.doctor
    srun python -m launcher.doctor
    """
    if ranks > 1:
        raise typer.Exit(start(ranks, sys.argv[1:]))
    where = folder or (Path("runs") if Path("runs").is_dir() else Path())
    options = Options(
        cli.load_config(config, overrides or []),
        where.absolute(),
        patience,
        megabytes,
        prometheus,
        as_json,
    )
    code = visit(options)
    if verdict := os.environ.get(VERDICT):
        Path(verdict).write_text(str(code))
        code = 0
    raise typer.Exit(code)


def start(ranks: int, words: list[str]) -> int:
    """The verdict of so many ranks of this machine, started by a torchrun of our own."""
    with tempfile.TemporaryDirectory() as folder:
        verdict = Path(folder) / "verdict"
        agent = ["torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        env = {"OMP_NUM_THREADS": "1", **os.environ, VERDICT: str(verdict)}
        command = [sys.executable, "-m", *agent, "-m", "launcher.doctor", *without_ranks(words)]
        ended = subprocess.run(command, env=env).returncode
        return int(verdict.read_text()) if verdict.is_file() and not ended else 1


def without_ranks(words: list[str]) -> list[str]:
    """The words for each rank: those after `doctor`, without `--ranks N`."""
    rest = words[1:] if words[:1] == ["doctor"] else list(words)
    kept = []
    while rest:
        word = rest.pop(0)
        if word == "--ranks":
            rest[:1] = []
        elif not word.startswith("--ranks="):
            kept.append(word)
    return kept


def run() -> int:
    """The exit code of this rank."""
    try:
        typer.run(doctor)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0

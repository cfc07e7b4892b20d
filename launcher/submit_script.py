"""sbatch scripts from the templates in deploy/slurm: values in, text out; nothing is touched."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedcore.errors import ConfigError
from launcher.slurm import MARK

TEMPLATES = Path(__file__).parent.parent / "deploy" / "slurm"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a job asks Slurm for, and how its ranks are started."""

    nodes: int = 1
    gpus: int = 8  # of each node; 0 = none
    ranks: int = 8  # on each node
    cpus: int = 16  # of each node
    options: Sequence[str] = ()  # further words for #SBATCH: --partition=main
    modules: Sequence[str] = ()
    prolog: Path | None = None  # sourced by the script before anything is started
    container: str | None = None  # image: .sif for Apptainer, else for pyxis (enroot)
    python: str = "python"
    interface: str | None = None  # network between the nodes
    scrape: bool = True  # open the metrics' ports to a Prometheus on another machine
    notice: int = 120  # seconds before the time limit, and for a checkpoint
    max_restarts: int = 1  # of all ranks within the job, after one was lost
    requeues: int = 3  # of the job, without a new checkpoint in between


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is run, and where its files lie. Paths are absolute."""

    name: str
    command: str  # that wrote the script
    cwd: Path
    files: Path  # folder of the script, its log and its configuration
    config: str  # YAML
    runs: Sequence[Path]  # run directories; of an array one for each task, by its number
    words: Sequence[str]  # for launcher/main.py
    tasks: Sequence[int] | None = None  # numbers of an array's tasks; None = no array
    at_once: int | None = None  # tasks of the array that may run at a time
    threads: int = 1  # of a rank


def run_script(script: Script, asked: Resources) -> str:
    """The script of a run, or of an array of runs: one torchrun agent on each node."""
    prefix, srun = container_words(asked.container, script.cwd)
    experiment = ' --experiment "$SLURM_ARRAY_TASK_ID"' if script.tasks is not None else ""
    log = "log-%j.txt" if script.tasks is None else "log-%A_%a.txt"
    values = {
        **_common(script, asked),
        "title": _title(script, asked),
        "log": f"{_escaped(script.files)}/{log}",
        "array": None if script.tasks is None else _array(script.tasks, script.at_once),
        "runs": [str(run) for run in script.runs],
        "config": script.config.rstrip("\n") + "\n",
        "words": shlex.join(script.words) + experiment,
        "container": prefix,
        "srun": srun,
        "threads": script.threads,
    }
    return render("run.sbatch", vars(asked) | values, [script.name, *asked.options])


def report_script(script: Script, asked: Resources) -> str:
    """The script of the job that writes the report once the run or the whole array is over."""
    prefix, srun = container_words(asked.container, script.cwd)
    values = {
        **_common(script, asked),
        "log": f"{_escaped(script.files)}/report-%j.txt",
        "run": str(script.files.parent),
        "container": prefix,
        "srun": srun,
    }
    return render("report.sbatch", vars(asked) | values, [script.name, *asked.options])


def _common(script: Script, asked: Resources) -> dict[str, Any]:
    return {
        "name": script.name,
        "command": " ".join(script.command.split()),
        "comment": f"{MARK}{script.files.parent}",
        "cwd": str(script.cwd),
        "files": str(script.files),
    }


def _title(script: Script, asked: Resources) -> str:
    many = "" if script.tasks is None else f"{len(script.tasks)} runs, each on "
    return f"{script.name}: {many}{asked.nodes} node(s) x {asked.ranks} rank(s)"


def _array(tasks: Sequence[int], at_once: int | None) -> str:
    """As --array wants it: 0,2,3%2."""
    return ",".join(map(str, tasks)) + (f"%{at_once}" if at_once else "")


def _escaped(path: Path) -> str:
    """A path in which Slurm replaces nothing."""
    return str(path).replace("%", "%%")


def container_words(image: str | None, cwd: Path) -> tuple[str, str]:
    """What stands before the command on each node, and among srun's options, for an image."""
    if image is None:
        return "", ""
    here = shlex.quote(str(cwd))
    if image.endswith(".sif"):
        words = f" apptainer exec --nv --bind {here} --pwd {here} {shlex.quote(image)}"
        return words, ""
    mounts = shlex.quote(f"--container-mounts={cwd}:{cwd}")
    return "", f" --container-image={shlex.quote(image)} {mounts} --container-workdir={here}"


def render(template: str, values: Mapping[str, Any], told: Sequence[str] = ()) -> str:
    """The script; `ConfigError` for a value that would break out of its line."""
    lines = [v for k, v in values.items() if isinstance(v, str) and k != "config"]
    for text in (*told, *lines):
        if not text.isprintable():
            raise ConfigError("sbatch", text, "one line of printable text", "another name")
    return _templates().get_template(template).render(**values)


def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",  # the usual one is part of ${#array[@]}
        comment_end_string="#>",
        autoescape=False,  # shell, not HTML: the filters quote
    )
    templates.filters["q"] = lambda value: shlex.quote(str(value))
    templates.filters["directive"] = directive
    return templates


def directive(text: str) -> str:
    """A value in an #SBATCH line; in quotes where it has to be."""
    plain = all(c.isalnum() or c in "-_=.,:/%+@[]*" for c in text)
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

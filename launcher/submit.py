"""`fedcore submit`: a checked configuration becomes a job, an array of jobs and a report job."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from fedcore.checkpoint import write_atomically
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.telemetry.targets import is_loopback
from launcher import slurm
from launcher.entry import set_aside
from launcher.frozen import values_of_copies
from launcher.rundir import RunDir, storage
from launcher.submit_plan import Plan
from launcher.submit_script import Resources, Script, report_script, run_script

FILES = "slurm"  # folder in the run directory: scripts, logs, jobs.json
RECORD = "jobs.json"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is wanted of a submission besides the resources."""

    command: str  # as it was given
    cwd: Path
    resume: str = "auto"  # auto, never or a directory
    at_once: int | None = None  # tasks of an array that may run at a time
    report: str | None = "afterany"  # how the report job depends on the runs; None = no report


def scripts(plan: Plan, asked: Resources, wanted: Wanted) -> dict[str, str]:
    """The text of each script by its file name."""
    files = plan.out / FILES
    config = plan.runs[0].config
    _check_devices(config, asked)
    if asked.prolog and not asked.prolog.is_file():
        raise ConfigError("--prolog", str(asked.prolog), "a file for the shell", "another path")
    asked = replace(asked, scrape=asked.scrape and _may_open(config))
    script = Script(
        name=plan.name,
        command=wanted.command,
        cwd=wanted.cwd,
        files=files,
        config=plan.config,
        runs=[run.run_dir for run in plan.runs],
        words=["--run-dir", str(plan.out), *_resumed(plan, wanted.resume)],
        tasks=[run.number for run in plan.left() or plan.runs] if plan.is_array else None,
        at_once=wanted.at_once,
        threads=config.threads,
    )
    found = {"job.sbatch": run_script(script, asked)}
    if wanted.report:
        found["report.sbatch"] = report_script(script, asked)
    return found


def _resumed(plan: Plan, resume: str) -> list[str]:
    """Words about where to go on from. `never` is settled before the job: a requeue must go on."""
    if resume in ("auto", "never"):
        return []
    folder = Path(resume).absolute()
    if plan.is_array or folder.is_relative_to(plan.out) or not folder.is_dir():
        want = "auto, never, or for one run a checkpoint or run directory elsewhere"
        raise ConfigError("--resume", resume, want, "--resume auto")
    return ["--resume", str(folder)]


def _may_open(config: RunConfig) -> bool:
    """Whether the ranks' ports are to be opened: served, and no address was chosen."""
    return config.metrics.enabled and is_loopback(config.metrics.bind)


def _check_devices(config: RunConfig, asked: Resources) -> None:
    """`ConfigError` for a job whose ranks would find no device, or leave those they have idle."""
    if config.device == "cpu" and asked.gpus:
        want = "0, since the configuration says device=cpu"
        raise ConfigError("--gpus-per-node", asked.gpus, want, "--gpus-per-node 0")
    if config.device == "cuda" and asked.ranks > asked.gpus:
        want = f"a GPU for each of {asked.ranks} ranks, since the configuration says device=cuda"
        raise ConfigError("--gpus-per-node", asked.gpus, want, f"--gpus-per-node {asked.ranks}")


def submit(plan: Plan, asked: Resources, wanted: Wanted) -> Iterator[str]:
    """Write the scripts into the run directory and hand them to Slurm; lines about it.

    Raises `ConfigError` if a job for the directory is in the queue, or Slurm refuses this one.
    """
    _check_queue(plan)
    if wanted.resume == "never":
        _clear(plan)
    if not plan.left():
        yield f"{plan.out} is over, nothing was submitted; to run it anew: --resume never"
        return
    files = _folder(plan)
    plan = replace(plan, config=_of_copies(plan.config, files))
    _write(files, scripts(plan, asked, wanted))
    job = slurm.sbatch(files / "job.sbatch")
    _record(files, {"job": job, **_facts(plan, asked)})
    yield _told(plan, job, asked)
    if wanted.report:
        # afterok of a job that failed never comes true
        words = (f"--dependency={wanted.report}:{job}", "--kill-on-invalid-dep=yes")
        report = slurm.sbatch(files / "report.sbatch", *words)
        when = "once it is over" if wanted.report == "afterany" else "if it completes"
        yield f"job {report}: the report on it, {when}"
    yield from _ways(plan, job)


def _check_queue(plan: Plan) -> None:
    for queued in slurm.queue() or []:
        if queued.run == plan.out:
            want = f"a directory without a job in the queue; {queued.job} is {queued.state}"
            way_out = f"scancel {queued.job.partition('_')[0]}, or another --run-dir"
            raise ConfigError("--run-dir", str(plan.out), want, way_out)


def _clear(plan: Plan) -> None:
    """Set aside what lies where the runs go."""
    for run in plan.runs:
        if RunDir(run.run_dir).is_ours:
            set_aside(RunDir(run.run_dir))


def _folder(plan: Plan) -> Path:
    """The folder of the scripts, in the run directory."""
    files = plan.out / FILES
    with storage(files):
        plan.out.parent.mkdir(parents=True, exist_ok=True)
        for folder in (plan.out, files):  # others have no business in them
            folder.mkdir(mode=0o700, exist_ok=True)
    return files


def _of_copies(config: str, files: Path) -> str:
    """The YAML with copies of its extensions: a job that waits runs what was submitted."""
    return yaml.safe_dump(values_of_copies(yaml.safe_load(config), files), sort_keys=False)


def _write(files: Path, texts: Mapping[str, str]) -> None:
    with storage(files):
        for name, text in texts.items():
            write_atomically(files / name, text)


def _facts(plan: Plan, asked: Resources) -> dict[str, Any]:
    runs = [run.name for run in plan.runs] if plan.is_array else None
    return {"submitted": time.time(), "nodes": asked.nodes, "ranks": asked.ranks, "runs": runs}


def _record(files: Path, job: Mapping[str, Any]) -> None:
    """Add a job to jobs.json, by which `fedcore jobs` knows it once it is out of the queue."""
    with storage(files), FileLock(files / f".{RECORD}.lock"):
        jobs = [*submitted(files), dict(job)]
        write_atomically(files / RECORD, json.dumps({"jobs": jobs}, indent=1) + "\n")


def submitted(files: Path) -> list[dict[str, Any]]:
    """The jobs of a run directory, oldest first. files: its folder of that name."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        jobs = json.loads((files / RECORD).read_text(encoding="utf-8"))["jobs"]
        return [job for job in jobs if isinstance(job, dict) and isinstance(job.get("job"), str)]
    return []


def _told(plan: Plan, job: str, asked: Resources) -> str:
    each = f"array of {len(plan.left())} runs, each on " if plan.is_array else ""
    nodes = f"{asked.nodes} node{'' if asked.nodes == 1 else 's'} x {asked.ranks} rank(s)"
    return f"job {job}: {plan.name}, {each}{nodes}"


def _ways(plan: Plan, job: str) -> Iterator[str]:
    """How to look at the job, and to end it."""
    log = "log-{}_*.txt" if plan.is_array else "log-{}.txt"
    yield "  fedcore jobs"
    yield f"  fedcore watch {shlex.quote(str(plan.out))}"
    yield f"  tail -F {shlex.quote(f'{plan.out / FILES}/{log.format(job)}')}"
    yield f"  scancel {job}   (stops with a checkpoint; the same fedcore submit goes on)"

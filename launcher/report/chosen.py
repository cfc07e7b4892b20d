"""Which runs a page is of: run directories, and those below a list or a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedcore.errors import ConfigError
from launcher import suite_results
from launcher.report.stored import Stored
from launcher.rundir import RunDir
from launcher.suite_state import NAME as SUITE
from launcher.suite_state import state

DEPTHS = ("*/", "*/*/")
"""How far below the folder of a comparison its runs lie."""
MOST = 16  # runs on a page: a list fits; with more the lines cannot be told apart


def collect(paths: Sequence[Path]) -> tuple[list[Stored], list[str]]:
    """The runs of directories of runs or lists of experiments, and what was left out, in words."""
    found = {inner.resolve(): inner for path in paths for inner in listed(path) or [path]}
    if len(found) > MOST:
        way_out = f"fewer of them{_instead(paths)}"
        raise ConfigError("RUN", f"{len(found)} runs", f"at most {MOST} on a page", way_out)
    runs: list[Stored] = []
    left_out = []
    for run_dir in found.values():
        try:
            runs.append(Stored.of(run_dir))
        except ConfigError:
            if run_dir in paths:
                raise
            left_out.append(f"{run_dir.name} is left out: it is {state(run_dir).words()}.")
    if not runs:
        shown = ", ".join(map(str, paths))
        raise ConfigError("RUN", shown, "runs with a finished round or step", "again later")
    return named_apart(runs), left_out


def _instead(paths: Sequence[Path]) -> str:
    """Where else so many runs are side by side: a table that is there, or how to get one."""
    folders = dict.fromkeys(folder for path in paths for folder in (path, path.parent))
    table = next((f"{f}/table.md" for f in folders if (f / "table.md").is_file()), None)
    if table:
        return f"; all of them are in {table} and in the pictures beside it"
    found = next((folder for folder in folders if (folder / SUITE).is_file()), None)
    return f"; fedcore lm compare {found} has no limit" if found else ""


def listed(folder: Path) -> list[Path]:
    """The run directories of a list of experiments or a comparison; empty for anything else."""
    if (folder / SUITE).is_file():
        return [folder / said["name"] for said in suite_results.read(folder)]
    if not folder.is_dir() or RunDir(folder).is_ours:
        return []
    inner = [p for depth in DEPTHS for p in folder.glob(f"{depth}metrics.jsonl")]
    return sorted(path.parent for path in inner)


def named_apart(runs: Sequence[Stored]) -> list[Stored]:
    """The runs with as much of their paths in their names as tells them apart."""
    found = [run.run_dir.resolve().parts for run in runs]
    names = [run.name for run in runs]
    for length in range(1, max(map(len, found)) + 1):
        names = ["/".join(parts[-length:]) for parts in found]
        if len(set(names)) == len(names):
            break
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]

"""The page of one run, or of several side by side."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from launcher.page import write_page
from launcher.report import language, lm_weights
from launcher.report.accuracy import accuracy
from launcher.report.chosen import collect
from launcher.report.clients import clients
from launcher.report.figures import side_by_side
from launcher.report.geometry import Geometry, geometry, prototypes
from launcher.report.lambdas import weights
from launcher.report.losses import losses
from launcher.report.notices import notices
from launcher.report.section import Section
from launcher.report.series import series
from launcher.report.settings import configuration, environment
from launcher.report.speed import speed
from launcher.report.stored import FEDERATED, LM, Stored
from launcher.words import moment

KINDS = {FEDERATED: "Federated runs", LM: "Language models"}
LONGEST = 80  # characters of the default file's name


@dataclass(frozen=True)
class Group:
    """The runs of one kind, and their sections."""

    kind: str
    title: str
    runs: list[Stored]
    figures: list[list[str]]
    sections: list[Section]


def report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of these run directories or lists of experiments: its file."""
    runs, left_out = collect(paths)
    found = {run.name: geometry(run) for run in runs if run.kind == FEDERATED}
    values = _values(runs, found, left_out)
    return write_page("report.html.j2", place(paths, runs, out), "another --out", **values)


def place(paths: Sequence[Path], runs: Sequence[Stored], out: Path | None) -> Path:
    """Where the page goes: --out, a file or a directory; else into the run, or into runs/."""
    if out is not None:
        return out if out.suffix == ".html" else out / "index.html"
    if len(paths) == 1:
        return paths[0] / "report" / "index.html"
    names = "-".join(run.name for run in runs)
    if len(names) > LONGEST:
        names = f"{runs[0].name}-and-{len(runs) - 1}-more"
    plain = re.sub(r"[^\w.-]+", "_", names)[: 2 * LONGEST]
    return Path("runs") / f"report-{plain}.html"


def _values(
    runs: Sequence[Stored], found: dict[str, Geometry | str], left_out: Sequence[str]
) -> dict[str, Any]:
    """What the template asks for."""
    return {
        "title": runs[0].name if len(runs) == 1 else " · ".join(run.name for run in runs),
        "subtitle": _subtitle(runs),
        "runs": runs,
        "groups": list(_groups(runs, found)),
        "notices": {run.name: notices(run) for run in runs},
        "left_out": left_out,
        "data": {"runs": [series(run, found.get(run.name)) for run in runs]},
    }


def _subtitle(runs: Sequence[Stored]) -> str:
    times = [t for run in runs for t in run.times]
    when = f"{moment(min(times))} to {moment(max(times))}. " if times else ""
    return f"{when}Page made {moment(time.time())} by fedcore {metadata.version('fedcore')}."


def _groups(runs: Sequence[Stored], found: dict[str, Geometry | str]) -> Iterator[Group]:
    """One for each kind of run that is there, in this order."""
    kinds = [kind for kind in KINDS if any(run.kind == kind for run in runs)]
    for kind in kinds:
        mine = [run for run in runs if run.kind == kind]
        title = KINDS[kind] if len(kinds) > 1 else ""
        sections = _language(mine) if kind == LM else _federated(mine, found)
        shown = [_without_run(s) if len(mine) == 1 else s for s in sections if s is not None]
        yield Group(kind, title, mine, side_by_side(mine), shown)


def _without_run(section: Section) -> Section:
    """Of a run that is alone, tables need not say which it is."""
    tables = [
        replace(t, titles=t.titles[1:], rows=[row[1:] for row in t.rows])
        if t.titles[0] == "run"
        else t
        for t in section.tables
    ]
    return replace(section, tables=tables)


def _federated(runs: list[Stored], found: dict[str, Geometry | str]) -> Iterator[Section | None]:
    yield accuracy(runs)
    yield weights(runs)
    yield losses(runs)
    yield prototypes(runs, [found[run.name] for run in runs])
    yield clients(runs)
    yield speed(runs)
    yield configuration(runs)
    yield environment(runs)


LANGUAGE: tuple[Callable[[Sequence[Stored]], Section | None], ...] = (
    language.loss,
    language.rates,
    lm_weights.weights,
    lm_weights.memory,
    language.lm_clients,
    language.speed,
    configuration,
    environment,
)


def _language(runs: list[Stored]) -> Iterator[Section | None]:
    return (section(runs) for section in LANGUAGE)

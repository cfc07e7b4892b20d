"""The committed dashboards as data: their panels, and their queries as Grafana would send them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.deploy.stack import DEPLOY, Stack

FOLDER = DEPLOY / "grafana" / "dashboards"
NAMES = ("federation", "lm", "cluster")

Panel = dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """The time that is looked at, in unix seconds, and the seconds between two points."""

    start: float
    end: float
    step: float = 1.0

    @property
    def builtins(self) -> dict[str, str]:
        """What Grafana itself fills in; its rate interval is four scrapes at least."""
        return {
            "__rate_interval": f"{max(4, round(4 * self.step))}s",
            "__interval": f"{max(1, round(self.step))}s",
            "__range": f"{max(1, round(self.end - self.start))}s",
        }


def read(name: str) -> dict[str, Any]:
    """One dashboard."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def everything(board: Mapping[str, Any]) -> list[Panel]:
    """Its panels and the headings of rows, those in folded rows too."""
    return [p for outer in board["panels"] for p in (outer, *(outer.get("panels") or []))]


def panels(board: Mapping[str, Any]) -> list[Panel]:
    """Its panels without the headings of rows."""
    return [panel for panel in everything(board) if panel["type"] != "row"]


def targets(board: Mapping[str, Any]) -> Iterator[tuple[Panel, dict[str, Any]]]:
    """Each query with its panel."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel, target


def filled(expression: str, values: Mapping[str, str], moment: Moment) -> str:
    """The expression with its variables replaced. Raises `KeyError` for one that nobody defines."""
    known = {**values, **moment.builtins}
    return re.sub(r"\$(\w+)", lambda found: known[found[1]], expression)


def ask(
    stack: Stack, target: Mapping[str, Any], values: Mapping[str, str], moment: Moment
) -> list[dict[str, Any]]:
    """The series that a query of a panel finds: values over time, or one if it is instant."""
    expression = filled(target["expr"], values, moment)
    if target.get("instant"):
        return stack.query(expression)
    return stack.query_range(expression, moment.start, moment.end, moment.step)

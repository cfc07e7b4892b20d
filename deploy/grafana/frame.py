"""What surrounds the panels of a dashboard: rows, variables, links."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard as Built,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana.panels import DOCS, SOURCE, Panel

TAG = "fedcore"


def framed(
    uid: str,
    title: str,
    about: str,
    variables: Sequence[QueryVariable],
    rows: dict[str, Sequence[Panel]],
    folded: dict[str, Sequence[Panel]] | None = None,
) -> Built:
    """The dashboard, its panels numbered and laid out from left to right, row by row.

    folded: rows at the end that ask nothing until they are opened.
    """
    board = Dashboard(title).uid(uid).description(about).tags([TAG]).time("now-1h", "now")
    board = board.refresh("10s").tooltip(DashboardCursorSync.CROSSHAIR).editable()
    board.with_variable(DatasourceVariable("datasource").label("Data").type("prometheus"))
    for variable in variables:
        board.with_variable(variable)
    for link in _links():
        board.link(link)
    numbers = count(1)
    for name, panels in rows.items():
        board.with_row(Row(name).id(next(numbers)))
        for panel in panels:
            board.with_panel(panel.id(next(numbers)))
    for name, panels in (folded or {}).items():
        row = Row(name).id(next(numbers)).collapsed(True)
        for panel in panels:
            row.with_panel(panel.id(next(numbers)))
        board.with_row(row)
    return board.build()


def algorithm(kind: str = "") -> QueryVariable:
    """Algorithms of the runs there are; kind: federated or lm."""
    chosen = f'{{kind="{kind}"}}' if kind else ""
    return _many(
        "algorithm", "Algorithm", f"label_values(fedcore_run_info{chosen}, algorithm)"
    ).all_value(".*")


def run(kind: str = "") -> QueryVariable:
    """Runs of the algorithms chosen: one of a kind, or any number of any kind."""
    chosen = f'kind="{kind}", ' if kind else ""
    asked = f'label_values(fedcore_run_info{{{chosen}algorithm=~"$algorithm"}}, run)'
    # no value of its own for All: it must leave out runs of other algorithms
    return _one("run", "Run", asked) if kind else _many("run", "Run", asked)


def client(metric: str) -> QueryVariable:
    """Clients of the run that have a series each, or quantiles."""
    asked = f'label_values({metric}{{run="$run"}}, client)'
    return _many("client", "Client", asked).all_value(".*").sort(VariableSort.NUMERICAL_ASC)


def _one(name: str, label: str, query: str) -> QueryVariable:
    variable = QueryVariable(name).label(label).query(query).datasource(SOURCE)
    # what ran in the time that is looked at, not only what runs now
    variable = variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.sort(VariableSort.ALPHABETICAL_ASC)


def _many(name: str, label: str, query: str) -> QueryVariable:
    everything = VariableOption(selected=True, text=["All"], value=["$__all"])
    return _one(name, label, query).multi(True).include_all(True).current(everything)


def _links() -> list[DashboardLink]:
    others = DashboardLink("fedcore").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    runbook = DashboardLink("Runbook").type(DashboardLinkType.LINK).icon("doc")
    return [
        others.keep_time(True).include_vars(False).as_dropdown(False),
        runbook.url(f"{DOCS}/operations.md").target_blank(True),
    ]

"""Are the dashboards what the code says, and does every panel of them show something?"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import build
from deploy.grafana.panels import DOCS
from fedcore.telemetry.catalogue import CATALOGUE, Kind
from tests.deploy import boards, stack
from tests.procs import runs

LABELS = {m.full_name: {*m.labels, "run", "rank", "node", "job"} for m in CATALOGUE.values()}
INFO = {"kind", "algorithm", "dataset", "model", "weighting", "seed", "digest"}
PROMETHEUS_OWN = {"up", "ALERTS", "scrape_duration_seconds", "scrape_samples_scraped"}
every_board = pytest.mark.parametrize("name", boards.NAMES)


def test_the_committed_dashboards_are_what_the_code_builds() -> None:
    committed = {file.name: file.read_text() for file in boards.FOLDER.iterdir()}
    assert committed == build.texts(), "run `make dash`"


@every_board
def test_grafanas_own_model_knows_every_key(name: str) -> None:
    """from_json passes over what it does not know: nothing may be missing afterwards."""
    register_default_plugins()
    board = boards.read(name)
    again = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert set(_keys(board)) == set(_keys(again))


def _keys(value: Any, place: str = "") -> Iterator[str]:
    """Path of each key."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield f"{place}.{key}"
            yield from _keys(below, f"{place}.{key}")
    elif isinstance(value, list):
        for i, below in enumerate(value):
            yield from _keys(below, f"{place}[{i}]")


@every_board
def test_panels_have_a_number_and_a_place_of_their_own(name: str) -> None:
    found = boards.everything(boards.read(name))
    numbers = [panel["id"] for panel in found]
    assert len(set(numbers)) == len(numbers)
    for a, b in combinations(found, 2):
        assert not _overlap(a["gridPos"], b["gridPos"]), (a["title"], b["title"])
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in found)


def _overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    return not (beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"])


@every_board
def test_every_panel_asks_something_and_says_what_it_means(name: str) -> None:
    for panel in boards.panels(boards.read(name)):
        assert panel["targets"], panel["title"]
        assert all(t["expr"] for t in panel["targets"]), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len(panel["description"]) > 20, panel["title"]


@every_board
def test_links_lead_into_the_docs(name: str) -> None:
    text = (boards.FOLDER / f"{name}.json").read_text()
    found = set(re.findall(rf"{DOCS}/([\w.]+)(?:#([\w-]+))?", text))
    assert ("operations.md", "") in found
    for page, anchor in found:
        titles = re.findall(r"^#+ (.*)", (stack.ROOT / "docs" / page).read_text(), re.M)
        anchors = {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}
        assert not anchor or anchor in anchors, (page, anchor)


@every_board
def test_queries_name_metrics_and_labels_that_there_are(name: str) -> None:
    kinds = {series: m for m in CATALOGUE.values() for series in m.series}
    for expression in _expressions(boards.read(name)):
        bare = re.sub(r'"[^"]*"', '""', expression)
        used = set(re.findall(r"\b(fedcore_\w+|scrape_\w+|up\b|ALERTS\b)", bare))
        assert used <= kinds.keys() | PROMETHEUS_OWN, expression
        for metric, inside in re.findall(r"\b(fedcore_\w+)\{([^}]*)\}", bare):
            info = INFO if kinds[metric].kind is Kind.INFO else set()
            allowed = LABELS[kinds[metric].full_name] | info
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)) <= allowed, expression


@every_board
def test_rates_are_of_counters_and_gauges_are_not_summed_over_ranks(name: str) -> None:
    gauges = {m.full_name for m in CATALOGUE.values() if m.kind is Kind.GAUGE}
    for expression in _expressions(boards.read(name)):
        assert not set(re.findall(r"(?:rate|increase)\((\w+)", expression)) & gauges
        assert not set(re.findall(r"sum(?: by \([^)]*\))? \((fedcore_\w+)", expression)) & gauges


@every_board
def test_variables_are_defined_and_used(name: str) -> None:
    board = boards.read(name)
    defined = [v["name"] for v in board["templating"]["list"]]
    assert defined[:3] == ["datasource", "algorithm", "run"]
    text = json.dumps(board)
    used = set(re.findall(r"\$\{?(?!_)(\w+)", text))
    assert used == set(defined)


def _expressions(board: dict[str, Any]) -> Iterator[str]:
    yield from (target["expr"] for _, target in boards.targets(board))
    asked = (v["query"] for v in board["templating"]["list"] if v["type"] == "query")
    yield from (re.sub(r"label_values\((.*), \w+\)", r"\1", query) for query in asked)


# -- real runs behind a real Prometheus

# an alert that fires for each run, so that there is one to show
ALWAYS = {
    "alert": "Always",
    "expr": "max by (run) (fedcore_ranks) > 0",
    "labels": {"severity": "info"},
}
OFTEN = ("lm.steps=100000", "evaluate.every=20", "checkpoint.every=20")
LM = ("--config", "lm_smoke", "--set", *OFTEN, "lm.monitor.every=5")
DILOCO = ("--config", "lm/diloco", "--set", *OFTEN, "lm.federated.local_steps=10")
DILOCO += ("lm.federated.clients=3", "lm.data.limit=300_000", "lm.batch_size=2")
FEDERATED = ("--config", "smoke", "--set", "rounds=4000", "clients.count=16", "data.alpha=10")
LM_TINY = ("lm.model.layers=1", "lm.model.width=16", "lm.model.context=16", "lm.model.heads=2")
JOBS: dict[str, tuple[int, tuple[str, ...]]] = {
    "eight": (8, FEDERATED),
    "quantiles": (2, (*FEDERATED, "metrics.per_client_limit=0", "clients.count=6")),
    "lm": (2, (*LM, *LM_TINY)),
    "diloco": (0, (*DILOCO, *LM_TINY)),
}
PATIENCE = 20  # seconds that a panel may take to show something
FIRST = {
    "eight": "count(fedcore_lambda_effective) >= 16",
    "quantiles": "fedcore_test_accuracy",
    "lm": 'fedcore_lm_weight_rms_ratio and on (run) fedcore_lm_loss{split="held_out"}',
    "diloco": "fedcore_lm_client_loss",
}


@dataclass(frozen=True)
class Seen:
    """Real runs that are running, and the Prometheus that reads them."""

    stack: stack.Stack
    start: float

    def missing(self, board: str, run: str, empty: set[str]) -> set[str]:
        """Titles of panels with a query that finds nothing; waits for all but those in `empty`."""
        left = list(boards.targets(boards.read(board)))
        values = {"run": run, "algorithm": ".*", "client": ".*"}
        until = time.monotonic() + PATIENCE
        while {p["title"] for p, _ in left} > empty and time.monotonic() < until:
            moment = boards.Moment(self.start, time.time())
            left = [(p, t) for p, t in left if not boards.ask(self.stack, t, values, moment)]
        return {panel["title"] for panel, _ in left}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("boards")
    rules = folder / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "own", "rules": [ALWAYS]}]}))
    start = time.time()
    with stack.running(folder / "stack", [rules]) as servers:
        own = (f"metrics.targets={servers.targets}", "metrics.linger=0")
        begun = [
            runs.start(ranks, folder / name, *words, *own) for name, (ranks, words) in JOBS.items()
        ]
        try:
            for name, expression in FIRST.items():
                runs.wait_for(
                    lambda e=expression: servers.query(e), f"{name} in Prometheus", limit=120
                )
            yield Seen(servers, start)
        finally:
            for process in begun:
                process.terminate()
            for process in begun:
                runs.finish(process, limit=60)


# panels that are empty in one kind of run, and why
ONLY_LEARNED_ALONE = {"Weight RMS by group", "Weight RMS over its prediction"}  # no prediction
ONLY_MANY_RANKS = {"Bytes handed to collectives", "Share of time in collectives"}
ONLY_MANY_RANKS |= {"Time of a collective"}
ONLY_FEDERATED = {"Loss by client", "Drift by client", "Loss over clients"}


@pytest.mark.procs
@pytest.mark.prometheus
def test_a_real_prometheus_scrapes_all_clients_of_eight_ranks(seen: Seen) -> None:
    found = seen.stack.query('fedcore_lambda_effective{run="eight"}')
    labels = [s["metric"] for s in found]
    assert len(found) == 16
    assert {m["client"] for m in labels} == {str(k) for k in range(16)}
    assert {m["rank"] for m in labels} == {str(r) for r in range(8)}


@pytest.mark.procs
@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("board", "run", "empty"),
    [
        ("federation", "eight", set()),
        ("federation", "quantiles", set()),
        ("lm", "lm", ONLY_FEDERATED),
        ("lm", "diloco", ONLY_LEARNED_ALONE | ONLY_MANY_RANKS),
        ("cluster", ".*", set()),
    ],
)
def test_every_panel_shows_something(seen: Seen, board: str, run: str, empty: set[str]) -> None:
    assert seen.missing(board, run, empty) == empty


@pytest.mark.procs
@pytest.mark.prometheus
def test_quantiles_over_ranks_are_five_lines_between_the_extremes(seen: Seen) -> None:
    """A line per quantile whatever the ranks, and the median within them."""
    panel = next(
        t
        for p, t in boards.targets(boards.read("federation"))
        if p["title"].startswith("Effective")
    )
    values, moment = {"run": "quantiles", "client": ".*"}, boards.Moment(0, 0)
    lines = seen.stack.query(boards.filled(panel["expr"], values, moment))
    found = {s["metric"]["client"]: float(s["value"][1]) for s in lines}
    assert sorted(found) == ["q0", "q0.25", "q0.5", "q0.75", "q1"]
    raw = seen.stack.query('fedcore_lambda_effective{run="quantiles"}')
    each = [float(s["value"][1]) for s in raw]
    assert len(each) == 10
    assert found["q0"] <= found["q0.5"] <= found["q1"]

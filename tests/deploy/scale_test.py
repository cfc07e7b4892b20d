"""Are the dashboards readable, and their extremes right, at 10,000 clients on 100 ranks?

Readings as such a run would have them are written into a Prometheus; then the panels are asked.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from fedcore.telemetry.catalogue import CATALOGUE, Kind, Metric
from fedcore.telemetry.prometheus import QUANTILES
from tests.deploy import boards, stack

pytestmark = [pytest.mark.procs, pytest.mark.prometheus]

RANKS, CLIENTS = 100, 10_000
SCRAPES, STEP = 6, 10  # times, and seconds between them
VALUES = {
    "term": ("base", "align", "cross_entropy", "supcon", "proto_feature", "proto_separation"),
    "task": ("local", "align"),
    "readout": ("iffi", "feature_ensemble", "local_mean"),
    "phase": ("order", "train", "collect", "evaluate", "checkpoint"),
    "op": ("gather", "broadcast", "sum"),
    "status": ("running", "completed", "stopped", "diverged", "failed"),
    "split": ("train", "held_out"),
    "group": ("decay", "no_decay"),
    "kind": ("T1", "T2", "T3"),
}
INFO = 'kind="federated",algorithm="v14",dataset="digits",model="small_cnn"'


@dataclass(frozen=True)
class Crowd:
    """A Prometheus with the run `many` of 10,000 clients and `few`, of 300 with lines each."""

    stack: stack.Stack
    moment: boards.Moment
    weights: np.ndarray  # [CLIENTS] lambda of each client of `many`

    def ask(self, board: str, run: str) -> Iterator[tuple[str, list[dict]]]:
        """Title of the panel, and the series, of each query."""
        values = {"run": run, "algorithm": ".*", "client": ".*"}
        for panel, target in boards.targets(boards.read(board)):
            yield panel["title"], boards.ask(self.stack, target, values, self.moment)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    folder = tmp_path_factory.mktemp("crowd")
    end = int(time.time()) - STEP
    moment = boards.Moment(end - SCRAPES * STEP, end, STEP)
    weights = np.random.default_rng(0).lognormal(size=CLIENTS)
    text = folder / "readings.txt"
    with text.open("w") as file:
        file.writelines(f"{line}\n" for line in _readings(moment, weights))
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", text, folder / "prometheus"]
    subprocess.run(made, check=True, capture_output=True)
    with stack.running(folder) as servers:
        yield Crowd(servers, moment, weights)


def _readings(moment: boards.Moment, weights: np.ndarray) -> Iterator[str]:
    """OpenMetrics: every metric of the catalogue for each rank of both runs."""
    times = [moment.end - STEP * (SCRAPES - i) for i in range(SCRAPES + 1)]
    many = {
        str(r): dict(zip(QUANTILES, np.quantile(own, list(QUANTILES.values())), strict=True))
        for r, own in enumerate(np.split(weights, RANKS))
    }
    few = {str(r): {str(150 * r + k): 1.0 + k for k in range(150)} for r in range(2)}
    for metric in CATALOGUE.values():
        kind = "gauge" if metric.kind is Kind.INFO else metric.kind.value
        yield f"# TYPE {metric.full_name.removesuffix('_total')} {kind}"
        for run, ranks in {"many": many, "few": few}.items():
            for rank, clients in ranks.items():
                where = f'job="fedcore",run="{run}",rank="{rank}"'
                for name, value in _series(metric, where, clients):
                    grows = metric.kind in (Kind.COUNTER, Kind.HISTOGRAM)
                    yield from (
                        f"{name} {value * (i + 1) if grows else value} {at}"
                        for i, at in enumerate(times)
                    )
    yield "# EOF"


def _series(
    metric: Metric, where: str, clients: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    """Name with labels and the value of each series of a rank."""
    label = next((x for x in metric.labels if x != "client"), "")
    for more in (f',{label}="{v}"' for v in VALUES[label]) if label else ("",):
        if metric.kind is Kind.INFO:
            yield f"{metric.full_name}{{{where},{INFO}}}", 1
        elif metric.kind is Kind.HISTOGRAM:
            yield from (
                (f'{metric.full_name}_bucket{{{where}{more},le="{bound}"}}', 1)
                for bound in (*metric.buckets, "+Inf")
            )
            yield f"{metric.full_name}_count{{{where}{more}}}", 1
            yield f"{metric.full_name}_sum{{{where}{more}}}", 1
        elif "client" in metric.labels:
            for client, value in clients.items():
                yield f'{metric.full_name}{{{where}{more},client="{client}"}}', value
        else:
            yield f"{metric.full_name}{{{where}{more}}}", 1


@pytest.mark.parametrize("board", boards.NAMES)
@pytest.mark.parametrize("run", ["many", "few"])
def test_no_query_draws_more_than_some_dozen_lines(crowd: Crowd, board: str, run: str) -> None:
    found: Counter[str] = Counter()
    for title, series in crowd.ask(board, run):
        found[title] += len(series)
    by_client = 2 * 50 + 1  # of the 50 largest, raw and at rest; lambda_max
    assert found.pop("Raw lambda by client", 0) <= by_client
    assert max(found.values()) <= 50, found
    assert sum(map(bool, found.values())) > len(found) / 2  # the readings did get there


def test_extremes_over_all_clients_are_exact_and_the_median_is_near(crowd: Crowd) -> None:
    asked = [
        s for title, s in crowd.ask("federation", "many") if title == "Raw lambda over clients"
    ]
    largest, median, least = (float(series[0]["values"][-1][1]) for series in asked[:3])
    assert largest == pytest.approx(crowd.weights.max(), rel=1e-12)
    assert least == pytest.approx(crowd.weights.min(), rel=1e-12)
    assert median == pytest.approx(np.median(crowd.weights), rel=0.02)


def test_lines_by_client_are_five_quantiles_with_exact_ends(crowd: Crowd) -> None:
    _, series = next(
        (t, s) for t, s in crowd.ask("federation", "many") if t == "Effective lambda by client"
    )
    found = {s["metric"]["client"]: float(s["values"][-1][1]) for s in series}
    assert sorted(found) == sorted(QUANTILES)
    assert found["q0"] == pytest.approx(crowd.weights.min(), rel=1e-12)
    assert found["q1"] == pytest.approx(crowd.weights.max(), rel=1e-12)
    near = np.quantile(crowd.weights, [0.25, 0.5, 0.75])
    assert [found[q] for q in ("q0.25", "q0.5", "q0.75")] == pytest.approx(near, rel=0.05)


def test_of_many_clients_the_largest_are_shown(crowd: Crowd) -> None:
    _, series = next(
        (t, s) for t, s in crowd.ask("federation", "few") if t == "Effective lambda by client"
    )
    assert min(float(s["values"][-1][1]) for s in series) == 126.0  # 25 of each rank's 150

"""The dashboard of all runs together: ranks, memory, checkpoints, restarts, alerts."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard, DynamicConfigValue

from deploy.grafana import frame
from deploy.grafana.panels import (
    RED,
    YELLOW,
    Panel,
    Query,
    bars,
    dashed,
    lines,
    number,
    rows,
    status_names,
)
from deploy.grafana.queries import RUNS, SLOWEST, latest, status

ABOUT = "All runs: which there are, whether their ranks are up, memory, checkpoints, alerts."
UP = f'up{{job="fedcore", {RUNS}}}'
INFO = f"fedcore_run_info{{{RUNS}}}"
FIRING = 'ALERTS{alertstate="firing", run=~"$run|"}'  # those of no run too
LABELS = "run, kind, algorithm, dataset, model"


def dashboard() -> Dashboard:
    """uid fedcore-cluster."""
    board = {
        "Now": now(),
        "Runs": [_runs(), _alerts()],
        "Ranks": ranks(),
        "Checkpoints and restarts": checkpoints(),
        "Scraping": scraping(),
    }
    variables = [frame.algorithm(), frame.run()]
    return frame.framed("fedcore-cluster", "fedcore: cluster", ABOUT, variables, board)


def now() -> list[Panel]:
    """How many of each, and what is amiss."""
    running = f'count(max by (run) (fedcore_run_status{{{RUNS}, status="running"}}) == 1)'
    failures = f"sum(increase(fedcore_checkpoint_failures_total{{{RUNS}}}[$__range] @ end()))"
    told = f"sum(max by (run) (increase(fedcore_warnings_total{{{RUNS}}}[$__range] @ end())))"
    return [
        number("Runs", "That are running.", Query(f"{running} or vector(0)"), width=4),
        number("Ranks up", "Whose metrics can be read.", Query(f"sum({UP})"), width=4),
        number(
            "Ranks down",
            "That are listed as targets but do not answer: lost, or frozen.",
            Query(f"count({UP}) - sum({UP})"),
            width=4,
            steps={1: RED},
            page="operations.md#rankdown",
        ),
        number(
            "Alerts firing",
            "Of the rules in deploy/prometheus/alerts.yml.",
            Query(f"count({FIRING}) or vector(0)"),
            width=4,
            steps={1: RED},
            page="operations.md#alerts",
        ),
        number(
            "Checkpoints failed",
            "In the time shown. The run goes on, and what it did since the last whole "
            "checkpoint is at stake.",
            Query(failures),
            width=4,
            steps={1: RED},
            page="operations.md#checkpointfailed",
        ).decimals(0),
        number(
            "Warnings",
            "In the time shown; each is a line in metrics.jsonl of its run.",
            Query(told),
            width=4,
            steps={1: YELLOW},
        ).decimals(0),
    ]


def _runs() -> Panel:
    columns = {
        "run": "run",
        "kind": "kind",
        "algorithm": "algorithm",
        "dataset": "data",
        "model": "model",
        "Value #B": "status",
        "Value #C": "progress",
        "Value #D": "ranks",
        "Value #E": "accuracy",
        "Value #F": "held-out loss",
    }
    panel = rows(
        "Runs in the time shown",
        "What each run is and how far it is; of runs that are over, as last seen. A run's name "
        "leads to its dashboard.",
        columns,
        Query(f"max by ({LABELS}) (last_over_time({INFO}[$__range]))"),
        Query(status(RUNS, over="$__range")),
        Query(latest("fedcore_progress_ratio")),
        Query(latest("fedcore_ranks")),
        Query(latest("fedcore_test_accuracy")),
        Query(latest("fedcore_lm_loss", f'{RUNS}, split="held_out"')),
        width=16,
        height=10,
        page="operations.md#exit-codes",
    )
    links = [_link("Federation", "fedcore-federation"), _link("Language model", "fedcore-lm")]
    panel.override_by_name("run", [DynamicConfigValue("links", links)])
    words = [
        DynamicConfigValue("mappings", [status_names()]),
        DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
    ]
    panel.override_by_name("status", words)
    share = [DynamicConfigValue("unit", "percentunit"), DynamicConfigValue("decimals", 1)]
    for name in ("progress", "accuracy"):
        panel.override_by_name(name, share)
    return panel.override_by_name("held-out loss", [DynamicConfigValue("decimals", 3)])


def _link(title: str, uid: str) -> dict[str, object]:
    # a name may have a / or a +, which Grafana itself leaves as they are
    chosen = "var-datasource=${datasource}&var-run=${__value.raw:percentencode}"
    return {"title": title, "url": f"/d/{uid}?{chosen}&${{__url_time_range}}"}


def _alerts() -> Panel:
    columns = {"alertname": "alert", "severity": "severity", "run": "run", "rank": "rank"}
    return rows(
        "Alerts firing",
        "Of the rules in deploy/prometheus/alerts.yml; the runbook says for each what to do.",
        columns,
        Query(f"max by (alertname, severity, run, rank) ({FIRING})"),
        width=8,
        height=10,
        page="operations.md#alerts",
    )


def ranks() -> list[Panel]:
    """Whether they are there, and how full their devices are."""
    there = lines(
        "Ranks up by run",
        "Dashed: how many the run was started on. Fewer up than that: a rank was lost or is "
        "frozen, and the others wait for it or are about to end with code 5.",
        Query(f"sum by (run) ({UP})", "{{run}}"),
        Query(f"max by (run) (fedcore_ranks{{{RUNS}}})", "{{run}} started on"),
        page="operations.md#rankdown",
    ).decimals(0)
    used, total = (f"fedcore_device_memory{e}{{{RUNS}}}" for e in ("_bytes", "_total_bytes"))
    full = f"topk({SLOWEST}, max by (run, rank) ({used} / {total}))"
    memory = lines(
        "Device memory by run",
        "The peak of the fullest rank, of the CUDA device (on CPU: of the process). Dashed: what "
        "the device (machine) has.",
        Query(f"max by (run) ({used})", "{{run}}"),
        Query(f"min by (run) ({total})", "{{run}} has"),
        unit="bytes",
        log=True,
    )
    return [
        dashed(there, "started on$"),
        dashed(memory, " has$"),
        bars(
            "Device memory by rank",
            f"Peak over what there is, of the {SLOWEST} fullest ranks. Near 1: a smaller "
            "clients.batch_size or clients.width, or lm.accumulate.",
            Query(full, "{{run}} {{rank}}"),
            unit="percentunit",
            steps={0.8: YELLOW, 0.95: RED},
            page="operations.md#devicememorynearfull",
        ),
    ]


def checkpoints() -> list[Panel]:
    """What a run would lose if it were lost now, and how often it began anew."""
    start = f'max by (run) (fedcore_start_time_seconds{{{RUNS}, rank="0"}})'
    written = f"max by (run) (fedcore_checkpoint_timestamp_seconds{{{RUNS}}})"
    failures = f"increase(fedcore_checkpoint_failures_total{{{RUNS}}}[$__rate_interval])"
    return [
        lines(
            "Age of the newest checkpoint",
            "What would have to be done again if the run were lost now.",
            Query(f"time() - {written}", "{{run}}"),
            unit="s",
            page="operations.md#checkpointtooold",
        ),
        lines(
            "Checkpoints that failed",
            "At that time: a full disk, mostly. The run goes on and tries again.",
            Query(f"sum by (run) ({failures})", "{{run}}"),
            page="operations.md#checkpointfailed",
        )
        .decimals(0)
        .axis_soft_max(1),
        lines(
            "Age of the attempt",
            "Time since this attempt of the run began. A fall to 0 is a restart.",
            Query(f"time() - {start}", "{{run}}"),
            unit="s",
            page="operations.md#stopping-and-going-on",
        ),
        number(
            "Restarts",
            "Changes of the start time within the time shown. Some on a cluster that takes nodes "
            "away; many in a short time: the run fails at the same place again and again.",
            Query(f"changes(({start})[$__range:$__interval] @ end())", "{{run}}"),
            width=8,
            steps={3: YELLOW},
            page="operations.md#exit-codes",
        ).height(8),
        lines(
            "Warnings by run",
            "Since the attempt began.",
            Query(f"max by (run) (fedcore_warnings_total{{{RUNS}}})", "{{run}}"),
        ).decimals(0),
        lines(
            "Progress",
            "Share of each run that is done. A flat line: it hangs, or its rounds are long.",
            Query(f"max by (run) (fedcore_progress_ratio{{{RUNS}}})", "{{run}}"),
            unit="percentunit",
        ).max(1),
    ]


def scraping() -> list[Panel]:
    """Whether Prometheus itself keeps up with what the ranks tell."""
    of = f'{{job="fedcore", {RUNS}}}'
    return [
        lines(
            "Scrape duration",
            "Of the slowest rank of each run. Near the scrape interval: too many clients with "
            "series of their own (metrics.per_client_limit), or a node without a core to spare.",
            Query(f"max by (run) (scrape_duration_seconds{of})", "{{run}}"),
            unit="s",
            width=12,
            page="operations.md#metrics",
        ),
        lines(
            "Samples in a scrape",
            "Of all ranks of a run together.",
            Query(f"sum by (run) (scrape_samples_scraped{of})", "{{run}}"),
            width=12,
            page="operations.md#metrics",
        ),
    ]

"""Panels that runs of both kinds have: state, speed, stragglers, collectives."""

from __future__ import annotations

from deploy.grafana.panels import RED, YELLOW, Panel, Query, band, lines, number, status_names
from deploy.grafana.queries import RUN, SLOWEST, duration, largest, rate, status

TRAIN = f'{RUN}, phase="train"'


def state() -> list[Panel]:
    """Status and progress of the run."""
    return [
        number(
            "Status",
            "Of the run, as last seen. diverged and failed: the runbook's table of exit codes "
            "says what to do; stopped goes on when the same command is run again.",
            Query(status()),
            steps={1: "blue"},
            page="operations.md#runfailed",
        ).mappings([status_names()]),
        number(
            "Progress",
            "Share of the run that is done.",
            Query(largest("fedcore_progress_ratio")),
            unit="percentunit",
            page="operations.md#noprogress",
        ),
    ]


def warnings() -> Panel:
    """What the run has warned of."""
    return number(
        "Warnings",
        "Since this attempt of the run began; each is a line in metrics.jsonl and on the screen.",
        Query(largest("fedcore_warnings_total")),
        steps={1: YELLOW},
        page="operations.md#warningstold",
    )


def pace(what: str, counter: str, unit: str) -> Panel:
    """What all ranks do in a second, as a number."""
    words = "Trained on by all ranks together."
    return number(f"{what} per second", words, Query(rate(counter)), unit=unit)


def throughput(what: str, counter: str, unit: str) -> list[Panel]:
    """Per second: of all ranks, over ranks, and of the slowest ones."""
    each = rate(counter, by="rank")
    return [
        lines(
            f"{what} per second",
            "Trained on by all ranks together, and what it would be if all were as fast as the "
            "slowest.",
            Query(rate(counter), "all ranks"),
            Query(f"min({each}) * count({each})", "at the slowest rank's pace"),
            unit=unit,
        ),
        lines(
            f"{what} per second by rank",
            f"Of the {SLOWEST} slowest ranks. One with less data or fewer clients has less to do.",
            Query(f"bottomk({SLOWEST}, {each})", "rank {{rank}}"),
            unit=unit,
        ),
    ]


def phases() -> list[Panel]:
    """Where the time of a round goes."""
    each = duration("fedcore_phase_seconds", by="phase, rank")
    return [
        lines(
            "Time of a phase",
            "Mean time of each phase of a round on the rank where it takes longest. collect "
            "holds the wait for slower ranks.",
            Query(f"max by (phase) ({each})", "{{phase}}"),
            unit="s",
            log=True,
        )
    ]


def stragglers() -> list[Panel]:
    """Ranks that the others wait for."""
    each = duration("fedcore_phase_seconds", by="rank", labels=TRAIN)
    factor = f"({each}) / scalar(quantile(0.5, {each}))"
    return [
        band(
            lines(
                "Training time over ranks",
                "Seconds that a rank trains in a round: all wait for the slowest.",
                Query(f"max({each})", "max"),
                Query(f"quantile(0.5, {each})", "median"),
                Query(f"min({each})", "min"),
                unit="s",
            )
        ),
        lines(
            "Stragglers",
            f"Training time of a rank over the median of all, of the {SLOWEST} largest. Above "
            "1.5 for long: a slow node, or more clients and data than the others.",
            Query(f"topk({SLOWEST}, {factor})", "rank {{rank}}"),
            steps={1.5: YELLOW, 3: RED},
            page="operations.md#stragglerrank",
        ),
    ]


def collectives() -> list[Panel]:
    """What goes over the network, and the time that it takes."""
    buckets = rate("fedcore_collective_seconds_bucket", by="op, le")
    share = f"avg by (op) (rate(fedcore_collective_seconds_sum{{{RUN}}}[$__rate_interval]))"
    return [
        lines(
            "Bytes handed to collectives",
            "Per second, by all ranks together.",
            Query(rate("fedcore_collective_bytes_total", by="op"), "{{op}}"),
            unit="Bps",
        ),
        lines(
            "Share of time in collectives",
            "Mean over ranks; waiting for slower ranks counts. Much of it with little traffic "
            "is waiting: see Stragglers.",
            Query(share, "{{op}}"),
            unit="percentunit",
            width=12,
        ),
        lines(
            "Time of a collective",
            "95 of 100 take no longer (as near as the buckets of the histogram tell).",
            Query(f"histogram_quantile(0.95, {buckets}) >= 0", "{{op}}"),  # NaN: none
            unit="s",
            width=12,
            log=True,
        ),
    ]

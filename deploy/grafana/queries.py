"""Expressions that are right, and few lines, at 8 clients and at 10,000.

In a run of more than metrics.per_client_limit clients the label `client` is q0, q0.25, q0.5, q0.75
or q1: quantiles over the clients of one rank. The least of the ranks' q0 and the largest of their
q1 are exact; the median of the ranks' medians is near the true one.
"""

from __future__ import annotations

from deploy.grafana.panels import STATUSES, Query

RUN = 'run="$run"'
RUNS = 'run=~"$run"'
OUTER = "q(0|0.25|0.75|1)"  # quantiles that are not a client's reading nor a median
SHOWN = 50  # clients at most that have lines of their own
SLOWEST = 20  # ranks at most that have
TOGETHER = 5  # seconds within which the ranks of one attempt begin; as in alerts.yml


def smallest(metric: str, labels: str = RUN, by: str = "run") -> str:
    """The least over all clients."""
    return f"min by ({by}) ({metric}{{{labels}}})"


def largest(metric: str, labels: str = RUN, by: str = "run") -> str:
    """The largest over all clients."""
    return f"max by ({by}) ({metric}{{{labels}}})"


def median(metric: str, labels: str = RUN, by: str = "run") -> str:
    """The median over all clients."""
    return f'quantile by ({by}) (0.5, {metric}{{{labels}, client!~"{OUTER}"}})'


def spread(metric: str) -> tuple[Query, Query, Query]:
    """Lines max, median and min over all clients; see `panels.band`."""
    return (
        Query(largest(metric), "max"),
        Query(median(metric), "median"),
        Query(smallest(metric), "min"),
    )


def each_client(metric: str, legend: str = "{{client}}", labels: str = "") -> Query:
    """A line for each client chosen, of the SHOWN largest; or the five quantiles over all."""
    more = f", {labels}" if labels else ""

    def of(operator: str, clients: str) -> str:
        return f'{metric}{{{RUN}, client=~"$client", client{operator}"{clients}"{more}}}'

    ids = f"topk({SHOWN}, max by (client) ({of('!~', 'q.*')}))"
    low = f"min by (client) ({of('=', 'q0')})"
    middle = f"quantile by (client) (0.5, {of('=~', 'q0.25|q0.5|q0.75')})"
    high = f"max by (client) ({of('=', 'q1')})"
    return Query(f"{ids} or {low} or {middle} or {high}", legend)


def status(labels: str = RUN, over: str = "") -> str:
    """The number of each run's status, from 1 on in the order of `panels.STATUSES`.

    over: a range, for runs that are over: what their newest attempt was when last seen.
    """
    before, after = ("last_over_time(", f"[{over}])") if over else ("", "")
    coded = " or ".join(
        f'{i} * {before}fedcore_run_status{{{labels}, status="{name}"}}{after}'
        for i, name in enumerate(STATUSES, 1)
    )
    return f"max by (run) ({of_newest_attempt(coded, over) if over else coded})"


def latest(metric: str, labels: str = RUNS) -> str:
    """A run-wide reading as of now, or as last seen in the run's newest attempt."""
    last = f"last_over_time({metric}{{{labels}}}[$__range])"
    return f"max by (run) ({of_newest_attempt(last, '$__range')})"


def of_newest_attempt(readings: str, over: str) -> str:
    """Readings of the ranks that began last in their run, seen within a range or not.

    An attempt on other ports has series of its own, beside which those of earlier ones stay.
    """
    began = f"last_over_time(fedcore_start_time_seconds{{{RUNS}}}[{over}])"
    newest = f"{began} > on (run) group_left () max by (run) ({began}) - {TOGETHER}"
    return f"({readings}) and on (instance, run, rank) ({newest})"


def rate(metric: str, by: str = "run", labels: str = RUN) -> str:
    """Per second, summed."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def duration(metric: str, by: str, labels: str = RUN) -> str:
    """Mean seconds of what a histogram counts; a gap where nothing ended."""
    return f"{rate(f'{metric}_sum', by, labels)} / ({rate(f'{metric}_count', by, labels)} > 0)"


def beside(expression: str, kind: str) -> str:
    """A reading by run with its algorithm as a label, of the runs of the algorithms chosen.

    Runs of one name have one line, under one of their algorithms: two would be an error for all.
    """
    chosen = f'kind="{kind}", algorithm=~"$algorithm"'
    info = f"topk by (run) (1, max by (run, algorithm) (fedcore_run_info{{{chosen}}}))"
    return f"topk({SLOWEST}, ({expression}) * on (run) group_left (algorithm) {info})"

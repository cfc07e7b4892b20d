"""The process that serves one rank's numbers to Prometheus. The only file that knows its library.

It is no thread of the training process, since there every scrape would hold up training: between
two operations that takes the interpreter's lock, and waits for it. It asks for plain numbers over
a socket when somebody scrapes, and ends when the other end of the socket does.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fedcore.errors import ConfigError
from fedcore.telemetry import catalogue as c
from fedcore.telemetry.catalogue import Kind, Metric
from fedcore.telemetry.endpoint import ENDING, Endpoint, Listening, Page, Part

ANSWER = 3.0  # seconds for a rank to answer

Row = Sequence[Any]
"""Name of a metric, the values of its labels, and its value: of a histogram [counts, sum]."""


class Rank:
    """The training process at the other end of a socket; one thread at a time asks for a page."""

    def __init__(self, connection: socket.socket) -> None:
        self._out = connection.makefile("w", encoding="utf-8")
        self._in = connection.makefile("r", encoding="utf-8")
        self._saying, self._question = threading.Lock(), 0
        self._answers = queue.SimpleQueue[dict[str, Any]]()
        self._of_clients, self._version = Part(b""), -1  # rendered once a round

    def listen(self) -> None:
        """Take answers until the other end is gone."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._in:
                self._answers.put(json.loads(line))

    def hear(self, timeout: float | None = None) -> dict[str, Any]:
        """Its next words; raises `queue.Empty` if there are none for so many seconds."""
        return self._answers.get(timeout=timeout)

    def say(self, **words: Any) -> None:
        """Tell the rank; one that is gone is not an error."""
        with self._saying, contextlib.suppress(OSError):  # `listen` ends then as well
            self._out.write(json.dumps(words) + "\n")
            self._out.flush()

    def page(self) -> Page:
        """The page of what the rank knows now. Raises `TimeoutError` if it does not answer."""
        answer = self._ask()
        if answer["clients"] is not None:
            self._of_clients = Part(text(answer["clients"]))
            self._version = answer["version"]
        return Page([Part(text(answer["rows"])), self._of_clients], answer["number"])

    def _ask(self) -> dict[str, Any]:
        self._question += 1
        self.say(question=self._question, known=self._version)
        until = time.monotonic() + ANSWER
        while True:
            try:
                answer = self.hear(max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise TimeoutError("the rank does not answer") from None
            if answer["question"] == self._question:  # else a late one to another question
                return answer


class Rows(Collector):
    """Rows as families of the library, in the order of the catalogue."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[str, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(row[0], []).append(row)

    def collect(self) -> Iterator[Family]:
        """The metric families of these rows, in the catalogue's order."""
        for name, metric in c.CATALOGUE.items():
            if name in self._rows:
                yield family(metric, self._rows[name])


def family(metric: Metric, rows: Iterable[Row]) -> Family:
    """All series of one metric."""
    words = metric.help if metric.unit == "1" else f"{metric.help} [{metric.unit}]"
    if metric.kind is Kind.INFO:  # its value is an object; the library adds `_info`
        [(_, _, labels)] = rows
        return InfoMetricFamily(metric.full_name.removesuffix("_info"), words, labels)
    kind = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
    if metric.kind is Kind.HISTOGRAM:
        made = HistogramMetricFamily(metric.full_name, words, labels=metric.labels)
        for _, labels, (counts, total) in rows:
            made.add_metric(labels, cumulative(metric.buckets, counts), total)
        return made
    found = kind(metric.full_name, words, labels=metric.labels)
    for _, labels, value in rows:
        found.add_metric(labels, value)
    return found


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """(upper bound, number of values up to it); counts has one more, of what is beyond all."""
    names = map(floatToGoString, (*bounds, float("inf")))
    return list(zip(names, accumulate(counts), strict=True))


def text(rows: Iterable[Row]) -> bytes:
    """The page that Prometheus reads, of these rows."""
    registry = CollectorRegistry()
    registry.register(Rows(rows))
    return generate_latest(registry)


def serve(rank: Rank) -> None:
    """Open the endpoint that the first words ask for, and tell its port."""
    words = rank.hear()
    try:
        served = Endpoint(Listening.of(words), rank.page, lambda number: rank.say(read=number))
    except ConfigError as error:
        rank.say(error=error.to_json())
    else:
        rank.say(port=served.port)


def main(descriptor: int) -> None:
    """Serve until the training process is gone."""
    # what ends a job is sent to all its processes; this one goes when its rank does
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    rank = Rank(socket.socket(fileno=descriptor))
    threading.Thread(target=serve, args=(rank,), daemon=True).start()
    try:
        rank.listen()
    finally:
        os._exit(0)  # whatever readers are being served


if __name__ == "__main__":
    main(int(sys.argv[1]))

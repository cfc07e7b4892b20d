"""This rank's numbers for Prometheus: plain ones, handed out when somebody scrapes."""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch

from fedcore.config import MetricsConfig
from fedcore.telemetry import catalogue as c
from fedcore.telemetry.catalogue import Kind, Metric
from fedcore.telemetry.events import (
    VALIDATION,
    ClientEvent,
    Event,
    LMClientEvent,
    LMEvalEvent,
    LMStepEvent,
    LMWarningEvent,
    RoundEvent,
    WarningEvent,
)
from fedcore.telemetry.exporter import Exporter
from fedcore.telemetry.sinks import Warn

QUANTILES = {"q0": 0.0, "q0.25": 0.25, "q0.5": 0.5, "q0.75": 0.75, "q1": 1.0}
"""Values of the label `client` in a run of too many clients for a series each."""

STATUSES = ("running", "completed", "stopped", "diverged", "failed")
TRIES = 64  # ports before any free one is taken
ATTENTION = 90.0  # seconds since the last scrape after which nobody waits for the last numbers

Labels = tuple[str, ...]
"""Values of a metric's labels, in the order of the catalogue."""

_Row = tuple[str, Labels, Any]
"""Name of a metric, the values of its labels, and its value: of a histogram (counts, sum)."""


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before it begins."""

    info: Mapping[str, Any]  # the labels of `run_info`
    clients: int
    ranks: int = 1
    lambda_limit: float | None = None  # of a learned lambda
    device: torch.device = torch.device("cpu")
    place: str = ""  # of its directory: `targets.place_of`


@dataclass
class _Histogram:
    """Counts by bucket; the last is of what is beyond all bounds."""

    bounds: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class PrometheusSink:
    """Serves this rank's numbers over HTTP at `address` ("host:port"), from now to `close`.

    A gauge whose value is not known yet is absent, not 0. Counters start at 0 with each attempt
    of a run, which `rate` and `increase` take into account. Raises `ConfigError` when nothing can
    listen at metrics.bind; a port in use is no error: see `_ports`.
    """

    def __init__(
        self, config: MetricsConfig, local_rank: int, local_size: int, run: RunFacts, warn: Warn
    ) -> None:
        self._run, self._config = run, config
        self._quantiles = run.clients > config.per_client_limit
        self._gauges: dict[Metric, dict[Labels, float]] = {}
        self._counters: dict[Metric, dict[Labels, float]] = {}
        self._histograms: dict[Metric, dict[Labels, _Histogram]] = {}
        self._clients: dict[str, dict[int, ClientEvent | LMClientEvent]] = {}  # the last of each
        self._version = 0  # of the clients' numbers
        for metric in (m for m in c.CATALOGUE.values() if m.kind is Kind.COUNTER and not m.labels):
            self._add(metric, 0)  # rate() wants them from 0 on
        self._set(c.CLIENTS, run.clients)
        self._set(c.RANKS, run.ranks)
        self._set(c.START_TIME_SECONDS, time.time())
        self._set_status("running")
        if run.lambda_limit is not None:
            self._set(c.LAMBDA_LIMIT, run.lambda_limit)
        ports = _ports(config, local_rank, local_size)
        self._exporter = Exporter(config, ports, self.numbers, warn, run.place)
        port, wanted = self._exporter.port, config.port + local_rank
        if config.port and port != wanted:
            warn(f"metrics port {wanted} is not free; metrics are on port {port}")
        host = f"[{config.bind}]" if ":" in config.bind else config.bind
        self.address = f"{host}:{port}"

    def write(self, events: Sequence[Event]) -> None:
        """Keep this rank's client events, and the numbers of the round."""
        clients = [e for e in events if isinstance(e, ClientEvent | LMClientEvent)]
        if clients:
            kept = {} if self._quantiles else self._clients.get(clients[0].kind, {})
            # quantiles are of one round's clients, whoever they are
            self._clients[clients[0].kind] = kept | {e.client: e for e in clients}
            self._version += 1
        for event in events:
            if isinstance(event, RoundEvent):
                self._write_round(event)
            elif isinstance(event, LMStepEvent):
                self._write_step(event)
            elif isinstance(event, LMEvalEvent):
                self._set(c.LM_LOSS, event.loss, "held_out")
            elif isinstance(event, WarningEvent | LMWarningEvent):
                self._add(c.WARNINGS_TOTAL, 1)

    def samples(self, n: int) -> None:
        """n more samples were trained on."""
        self._add(c.SAMPLES_TOTAL, n)

    def tokens(self, n: int) -> None:
        """n more tokens were trained on."""
        self._add(c.LM_TOKENS_TOTAL, n)

    def traffic(self, op: str, size: int, seconds: float) -> None:
        """A collective took `seconds`; this rank handed in `size` bytes."""
        self._add(c.COLLECTIVE_BYTES_TOTAL, size, op)
        self._observe(c.COLLECTIVE_SECONDS, seconds, op)

    def phase(self, name: str, seconds: float) -> None:
        """A phase of the round took `seconds`."""
        self._observe(c.PHASE_SECONDS, seconds, name)

    def checkpointed(self, at: float) -> None:
        """A checkpoint was complete at that (Unix) time."""
        self._set(c.CHECKPOINT_TIMESTAMP_SECONDS, at)

    def checkpoint_failed(self) -> None:
        """A checkpoint could not be written."""
        self._add(c.CHECKPOINT_FAILURES_TOTAL, 1)

    def ended(self, status: str, wait: bool) -> None:
        """The run is over. wait: for a last scrape, if somebody has been scraping."""
        self._set_status(status)
        if wait and self._exporter.is_read(within=ATTENTION):
            self._exporter.wait_for_reader(self._config.linger)

    def close(self) -> None:
        """Stop serving and free the port."""
        self._exporter.close()

    def numbers(self, known: int) -> dict[str, Any]:
        """All that is known, as rows (name, label values, value); called in a thread.

        Rows of clients are left out if the reader knows those of this version.
        """
        version = self._version
        clients = None if known == version else list(self._of_clients())
        return {"rows": list(self._rows()), "version": version, "clients": clients}

    def _rows(self) -> Iterator[_Row]:
        for metric, values in chain(list(self._gauges.items()), list(self._counters.items())):
            for labels, value in list(values.items()):
                yield metric.name, labels, value
        for metric, histograms in list(self._histograms.items()):
            for labels, histogram in list(histograms.items()):
                yield metric.name, labels, (histogram.counts, histogram.total)
        for name, value in memory(self._run.device).items():
            yield name, (), value
        yield c.RUN_INFO.name, (), {k: _text(v) for k, v in self._run.info.items()}

    def _of_clients(self) -> Iterator[_Row]:
        """A value for each client, or quantiles over them."""
        columns: dict[_Reading, dict[str, float]] = {}
        for event in chain.from_iterable(e.values() for e in list(self._clients.values())):
            for reading, value in _readings(event):
                columns.setdefault(reading, {})[str(event.client)] = value
        for (metric, rest), values in columns.items():
            shown = _spread(values.values()) if self._quantiles else values
            for client, value in shown.items():
                yield metric.name, (client, *rest), value

    def _write_round(self, event: RoundEvent) -> None:
        self._set(c.ROUND, event.round)
        self._set(c.PROGRESS_RATIO, event.progress)
        self._set(c.ANNEALING_FACTOR, event.annealing_factor)
        self._set(c.PROTOTYPE_STD, event.prototype_std)
        self._set(c.UNIT_PROTOTYPE_STD, event.unit_prototype_std)
        self._set(c.GLOBAL_PROTOTYPE_STD, event.global_prototype_std)
        self._set(c.LAMBDA_EXPLODED, event.lambda_exploded)
        if event.model_variance is not None:
            self._set(c.MODEL_VARIANCE, event.model_variance)
        for readout, accuracy in event.accuracy.items():
            own = readout.startswith(VALIDATION)
            metric = c.VALIDATION_ACCURACY if own else c.TEST_ACCURACY
            self._set(metric, accuracy, readout.removeprefix(VALIDATION))

    def _write_step(self, event: LMStepEvent) -> None:
        self._set(c.LM_STEP, event.step)
        self._set(c.PROGRESS_RATIO, event.step / event.steps)
        self._set(c.LM_LOSS, event.loss, "train")
        self._set(c.LM_LEARNING_RATE, event.learning_rate)
        self._set(c.LM_WEIGHT_DECAY, event.weight_decay)
        self._set(c.LM_GRADIENT_NORM, event.gradient_norm)
        for kind, steps in event.memory_steps.items():
            self._set(c.LM_MEMORY_STEPS, steps, kind)
        for group, rms in event.weight_rms.items():
            self._set(c.LM_WEIGHT_RMS, rms, group)
            if predicted := event.weight_rms_predicted.get(group):
                self._set(c.LM_WEIGHT_RMS_RATIO, rms / predicted, group)
        for group, ratio in event.update_ratio.items():
            self._set(c.LM_UPDATE_RATIO, ratio, group)

    def _set_status(self, now: str) -> None:
        for status in STATUSES:
            self._set(c.RUN_STATUS, float(status == now), status)

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        self._gauges.setdefault(metric, {})[labels] = float(value)

    def _add(self, metric: Metric, value: float, *labels: str) -> None:
        values = self._counters.setdefault(metric, {})
        values[labels] = values.get(labels, 0.0) + float(value)

    def _observe(self, metric: Metric, value: float, *labels: str) -> None:
        found = self._histograms.setdefault(metric, {})
        if labels not in found:
            found[labels] = _Histogram(metric.buckets)
        found[labels].observe(float(value))


_Reading = tuple[Metric, Labels]
"""A metric and its labels after `client`."""


def _readings(event: ClientEvent | LMClientEvent) -> Iterator[tuple[_Reading, float]]:
    if isinstance(event, LMClientEvent):
        yield (c.LM_CLIENT_LOSS, ()), event.loss
        yield (c.LM_CLIENT_DRIFT, ()), event.drift
        return
    yield (c.LAMBDA_RAW, ()), event.lambda_raw
    yield (c.LAMBDA_EFFECTIVE, ()), event.lambda_effective
    yield (c.LAMBDA_EQUILIBRIUM, ()), event.lambda_equilibrium
    yield (c.GRADIENT_NORM, ()), event.gradient_norm
    yield (c.SIGMA_SQ, ("local",)), event.sigma_sq_local
    yield (c.SIGMA_SQ, ("align",)), event.sigma_sq_align
    for term, loss in {**event.terms, "base": event.base_loss, "align": event.align_loss}.items():
        yield (c.LOSS, (term,)), loss


def _spread(values: Iterable[float]) -> dict[str, float]:
    """Quantiles over clients, each some client's own value: one that is infinite is seen.

    One NaN makes them all NaN: it must be seen, not averaged away.
    """
    found = np.quantile(list(values), list(QUANTILES.values()), method="nearest")
    return dict(zip(QUANTILES, map(float, found), strict=True))


def _text(value: object) -> str:
    """What UTF-8 can say of it: a file's name may be no text."""
    return str(value).encode(errors="replace").decode()


def memory(device: torch.device) -> dict[str, float]:
    """Peak bytes in use and bytes there are, by metric: of a CUDA device, else of the process."""
    if device.type == "cuda":
        used = torch.cuda.max_memory_allocated(device)
        there_is = torch.cuda.get_device_properties(device).total_memory
    else:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
        there_is = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {c.DEVICE_MEMORY_BYTES.name: used, c.DEVICE_MEMORY_TOTAL_BYTES.name: there_is}


def _ports(config: MetricsConfig, local_rank: int, local_size: int) -> list[int]:
    """Ports to try in turn: port + local rank, then on in steps of the ranks of this node.

    With such steps two ranks of one node never try the same port. The last resort, and what
    metrics.port=0 asks for, is 0: any that is free.
    """
    first = config.port + local_rank
    ports = range(first, 65536, max(local_size, 1)) if config.port else range(0)
    return [*ports[:TRIES], 0]

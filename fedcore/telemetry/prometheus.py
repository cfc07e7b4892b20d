"""The Prometheus endpoint of one rank. The only file that knows prometheus_client."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    start_http_server,
)

from fedcore.config import MetricsConfig
from fedcore.errors import ConfigError
from fedcore.telemetry import catalogue as c
from fedcore.telemetry.catalogue import Kind, Metric
from fedcore.telemetry.events import (
    ClientEvent,
    Event,
    LMClientEvent,
    LMEvalEvent,
    LMStepEvent,
    RoundEvent,
)
from fedcore.telemetry.sinks import Warn

QUANTILES = {"q0": 0.0, "q0.25": 0.25, "q0.5": 0.5, "q0.75": 0.75, "q1": 1.0}
"""Values of the label `client` in a run of too many clients for a series each."""

TRIES = 64  # ports before any free one is taken

disable_created_metrics()  # type: ignore[no-untyped-call] # a `_created` series beside each counter


class PrometheusSink:
    """Serves this rank's numbers over HTTP at `address` ("host:port"), from now to `close`.

    A gauge whose value is not known yet is absent, not 0. Raises `ConfigError` when nothing can
    listen at metrics.bind; a port in use is no error: see `_ports`.
    """

    def __init__(
        self,
        config: MetricsConfig,
        local_rank: int,
        local_size: int,
        run_info: Mapping[str, Any],
        clients_total: int,
        warn: Warn,
    ) -> None:
        self._quantiles = clients_total > config.per_client_limit
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        for metric in c.CATALOGUE.values():
            if metric.kind in (Kind.COUNTER, Kind.HISTOGRAM):  # rate() wants them from 0 on
                self._of(metric)
        self._of(c.RUN_INFO).info({k: str(v) for k, v in run_info.items()})
        self._set(c.CLIENTS, clients_total)
        self._set(c.DEVICE_MEMORY_BYTES, peak_memory())
        self._server, self._thread = _listen(config, local_rank, local_size, self._registry, warn)
        host = f"[{config.bind}]" if ":" in config.bind else config.bind
        self.address = f"{host}:{self._server.server_port}"

    def write(self, events: Sequence[Event]) -> None:
        """Set the gauges from this rank's client events and from the round."""
        clients = [e for e in events if isinstance(e, ClientEvent | LMClientEvent)]
        if clients:
            self._write_clients(clients)
        for event in events:
            if isinstance(event, RoundEvent):
                self._write_round(event)
            elif isinstance(event, LMStepEvent):
                self._write_step(event)
            elif isinstance(event, LMEvalEvent):
                self._set(c.LM_LOSS, event.loss, split="held_out")

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def samples(self, n: int) -> None:
        """n more samples were trained on."""
        self._of(c.SAMPLES_TOTAL).inc(n)

    def tokens(self, n: int) -> None:
        """n more tokens were trained on."""
        self._of(c.LM_TOKENS_TOTAL).inc(n)

    def traffic(self, op: str, size: int, seconds: float) -> None:
        """A collective took `seconds`; this rank handed in `size` bytes."""
        self._of(c.COLLECTIVE_BYTES_TOTAL).labels(op=op).inc(size)
        self._of(c.COLLECTIVE_SECONDS).labels(op=op).observe(seconds)

    def phase(self, name: str, seconds: float) -> None:
        """A phase of the round took `seconds`."""
        self._of(c.PHASE_SECONDS).labels(phase=name).observe(seconds)

    def checkpointed(self) -> None:
        """A checkpoint was completed just now."""
        self._set(c.CHECKPOINT_TIMESTAMP_SECONDS, time.time())

    def _write_clients(self, events: Sequence[ClientEvent | LMClientEvent]) -> None:
        rows = [dict(_readings(e)) for e in events]
        for metric, labels in dict.fromkeys(key for row in rows for key in row):
            values = {
                str(e.client): row[metric, labels]
                for e, row in zip(events, rows, strict=True)
                if (metric, labels) in row
            }
            for client, value in (_spread(values) if self._quantiles else values).items():
                self._set(metric, value, client=client, **dict(labels))

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
        self._set(c.DEVICE_MEMORY_BYTES, peak_memory())
        for readout, accuracy in event.accuracy.items():
            self._set(c.TEST_ACCURACY, accuracy, readout=readout)

    def _write_step(self, event: LMStepEvent) -> None:
        self._set(c.PROGRESS_RATIO, event.step / event.steps)
        self._set(c.LM_LOSS, event.loss, split="train")
        self._set(c.LM_LEARNING_RATE, event.learning_rate)
        self._set(c.LM_WEIGHT_DECAY, event.weight_decay)
        self._set(c.LM_GRADIENT_NORM, event.gradient_norm)
        self._set(c.DEVICE_MEMORY_BYTES, peak_memory())
        for kind, steps in event.memory_steps.items():
            self._set(c.LM_MEMORY_STEPS, steps, kind=kind)
        for group, rms in event.weight_rms.items():
            self._set(c.LM_WEIGHT_RMS, rms, group=group)
            if predicted := event.weight_rms_predicted.get(group):
                self._set(c.LM_WEIGHT_RMS_RATIO, rms / predicted, group=group)
        for group, ratio in event.update_ratio.items():
            self._set(c.LM_UPDATE_RATIO, ratio, group=group)

    def _set(self, metric: Metric, value: float, **labels: str) -> None:
        gauge = self._of(metric)
        (gauge.labels(**labels) if labels else gauge).set(value)

    def _of(self, metric: Metric) -> Any:
        """The client library's object for a metric, made at first use."""
        if metric.name not in self._metrics:
            self._metrics[metric.name] = _make(metric, self._registry)
        return self._metrics[metric.name]


Reading = tuple[Metric, tuple[tuple[str, str], ...]]
"""A metric and its labels but for `client`."""


def _readings(event: ClientEvent | LMClientEvent) -> Iterator[tuple[Reading, float]]:
    if isinstance(event, LMClientEvent):
        yield (c.LM_CLIENT_LOSS, ()), event.loss
        yield (c.LM_CLIENT_DRIFT, ()), event.drift
        return
    yield (c.LAMBDA_RAW, ()), event.lambda_raw
    yield (c.LAMBDA_EFFECTIVE, ()), event.lambda_effective
    yield (c.LAMBDA_EQUILIBRIUM, ()), event.lambda_equilibrium
    yield (c.GRADIENT_NORM, ()), event.gradient_norm
    yield (c.SIGMA_SQ, (("task", "local"),)), event.sigma_sq_local
    yield (c.SIGMA_SQ, (("task", "align"),)), event.sigma_sq_align
    for term, loss in {**event.terms, "base": event.base_loss, "align": event.align_loss}.items():
        yield (c.LOSS, (("term", term),)), loss


def _spread(values: Mapping[str, float]) -> dict[str, float]:
    """Quantiles over clients. One NaN makes them all NaN: it must be seen, not averaged away."""
    found = np.quantile(list(values.values()), list(QUANTILES.values()))
    return dict(zip(QUANTILES, map(float, found), strict=True))


def peak_memory() -> int:
    """Peak bytes: of tensors on the current CUDA device if it is in use, else of the process."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _make(metric: Metric, registry: CollectorRegistry) -> Any:
    words = metric.help if metric.unit == "1" else f"{metric.help} [{metric.unit}]"
    if metric.kind is Kind.HISTOGRAM:
        return Histogram(
            metric.full_name, words, metric.labels, registry=registry, buckets=metric.buckets
        )
    if metric.kind is Kind.INFO:  # the library adds `_info` itself
        return Info(metric.full_name.removesuffix("_info"), words, registry=registry)
    kind = Counter if metric.kind is Kind.COUNTER else Gauge
    return kind(metric.full_name, words, metric.labels, registry=registry)


def _ports(config: MetricsConfig, local_rank: int, local_size: int) -> list[int]:
    """Ports to try in turn: port + local rank, then on in steps of the ranks of this node.

    With such steps two ranks of one node never try the same port. The last resort, and what
    metrics.port=0 asks for, is 0: any that is free.
    """
    first = config.port + local_rank
    ports = range(first, 65536, max(local_size, 1)) if config.port else range(0)
    return [*ports[:TRIES], 0]


def _listen(
    config: MetricsConfig,
    local_rank: int,
    local_size: int,
    registry: CollectorRegistry,
    warn: Warn,
) -> tuple[Any, Any]:
    """An HTTP server on the first free port, and its thread."""
    wanted = config.port + local_rank
    for port in _ports(config, local_rank, local_size):
        try:
            server, thread = start_http_server(port, config.bind, registry)
        except OSError as error:  # a name that does not resolve is one as well
            if error.errno == errno.EADDRINUSE:
                continue
            raise _refused(config, port, error) from None
        if config.port and server.server_port != wanted:
            warn(f"metrics port {wanted} is not free; metrics are on port {server.server_port}")
        return server, thread
    raise ConfigError("metrics.port", config.port, "a free port", "metrics.enabled=false")


def _refused(config: MetricsConfig, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EACCES:
        return ConfigError("metrics.port", port, "a port this user may open", "9400, or 0 for any")
    want = f"an address of this machine ({error.strerror})"
    return ConfigError("metrics.bind", config.bind, want, "127.0.0.1, or 0.0.0.0 for all")

"""The Prometheus endpoint of one rank: the only module that imports prometheus_client."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server

from fedcore.config import MetricsConfig
from fedcore.telemetry import catalogue as c
from fedcore.telemetry.events import ClientEvent, Event, RoundEvent

BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800)  # seconds
QUANTILES = {"q0": 0, "q0.25": 1, "q0.5": 2, "q0.75": 3, "q1": 4}
TRIES = 100  # ports tried before giving up


class PrometheusSink:
    """Gauges and counters of one rank, served from its own port."""

    def __init__(
        self,
        config: MetricsConfig,
        *,
        local_rank: int,
        local_size: int,
        clients: int,  # of the run: above per_client_limit, quantiles take the place of ids
        own: int,  # clients of this rank
        info: dict[str, str],
        warn: Callable[[str], None],
    ) -> None:
        self.registry = CollectorRegistry()
        self._metrics = {name: self._make(metric) for name, metric in c.CATALOGUE.items()}
        self._quantiles = clients > config.per_client_limit
        self._server, port = self._serve(config, local_rank, local_size, warn)
        self.address = f"{target_host(config.bind)}:{port}"
        self._set(c.CLIENTS, own)
        self._of(c.RUN_INFO).info(info)

    def _make(self, metric: c.Metric) -> Any:
        kind = {
            c.Kind.GAUGE: Gauge,
            c.Kind.COUNTER: Counter,
            c.Kind.HISTOGRAM: Histogram,
            c.Kind.INFO: Info,
        }[metric.kind]
        name = metric.name.removesuffix("_info") if kind is Info else metric.name
        extra = {"buckets": BUCKETS} if kind is Histogram else {}
        return kind(name, metric.help, metric.labels, registry=self.registry, **extra)

    def _serve(
        self, config: MetricsConfig, local_rank: int, local_size: int, warn: Callable[[str], None]
    ) -> tuple[Any, int]:
        """Listen on port + local_rank, or the next free one in steps that no other rank takes."""
        wanted = config.port + local_rank if config.port else 0
        for attempt in range(TRIES):
            port = wanted + attempt * local_size
            try:
                server, _ = start_http_server(port, config.bind, self.registry)
            except OSError as error:
                if not wanted or port + local_size > 65535:
                    raise
                if attempt == 0:
                    warn(f"metrics.port {port}: {error.strerror}; taking the next free one")
                continue
            if attempt:
                warn(f"metrics are served on port {port}")
            return server, server.server_port
        raise OSError(f"no free port among {TRIES} from {wanted}")

    def _of(self, metric: c.Metric) -> Any:
        return self._metrics[metric.name.removeprefix("fedcore_")]

    def _set(self, metric: c.Metric, value: float, *labels: str) -> None:
        gauge = self._of(metric)
        (gauge.labels(*labels) if labels else gauge).set(value)

    def write(self, events: Sequence[Event]) -> None:
        """Set the gauges: of this rank's clients, and of the round."""
        clients = [e for e in events if isinstance(e, ClientEvent)]
        for label, readings in self._by_label(clients).items():
            self._set_client(label, readings)
        for event in events:
            if isinstance(event, RoundEvent):
                self._set_round(event)

    def _by_label(self, clients: Sequence[ClientEvent]) -> dict[str, dict[tuple[str, str], float]]:
        """Label `client` -> readings: by client id, or quantiles over this rank's clients."""
        by_id = {str(e.client): _readings(e) for e in clients}
        if not self._quantiles or not by_id:
            return by_id
        columns = {k: [r[k] for r in by_id.values()] for k in next(iter(by_id.values()))}
        cuts = {k: _five_numbers(values) for k, values in columns.items()}
        return {q: {k: cuts[k][i] for k in cuts} for q, i in QUANTILES.items()}

    def _set_client(self, label: str, readings: dict[tuple[str, str], float]) -> None:
        for (metric, detail), value in readings.items():
            self._set(c.CATALOGUE[metric], value, *([label, detail] if detail else [label]))

    def _set_round(self, event: RoundEvent) -> None:
        self._set(c.ROUND, event.round + 1)
        self._set(c.PROGRESS, event.progress)
        self._set(c.ANNEALING, event.annealing_factor)
        self._set(c.PROTOTYPE_STD, event.prototype_std)
        self._set(c.MEMORY, memory_bytes())
        for readout, accuracy in event.accuracy.items():
            self._set(c.TEST_ACCURACY, accuracy, readout)

    def trained(self, samples: int) -> None:
        """Count samples this rank has trained on."""
        self._of(c.SAMPLES).inc(samples)

    def phase(self, name: str, seconds: float) -> None:
        """A phase of a round is over."""
        self._of(c.PHASE_SECONDS).labels(name).observe(seconds)

    def traffic(self, op: str, size: int, seconds: float) -> None:
        """A collective is over."""
        self._of(c.COLLECTIVE_BYTES).labels(op).inc(size)
        self._of(c.COLLECTIVE_SECONDS).labels(op).observe(seconds)

    def checkpointed(self) -> None:
        """A checkpoint was written now."""
        self._set(c.CHECKPOINT_TIME, time.time())

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _readings(event: ClientEvent) -> dict[tuple[str, str], float]:
    """(metric, second label) -> value."""
    found = {
        ("lambda_raw", ""): event.lambda_raw,
        ("lambda_effective", ""): event.lambda_effective,
        ("lambda_equilibrium", ""): event.lambda_equilibrium,
        ("gradient_norm", ""): event.gradient_norm,
        ("sigma_sq", "local"): event.sigma_sq_local,
        ("sigma_sq", "align"): event.sigma_sq_align,
        ("loss", "base"): event.base_loss,
        ("loss", "align"): event.align_loss,
    }
    return found | {("loss", name): value for name, value in event.terms.items()}


def _five_numbers(values: list[float]) -> list[float]:
    """Minimum, quartiles and maximum."""
    if len(values) == 1:
        return values * 5
    return [min(values), *quantiles(values, n=4, method="inclusive"), max(values)]


def memory_bytes() -> int:
    """Peak device memory, or on a CPU the process's peak resident size."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def target_host(bind: str) -> str:
    """The host a scraper reaches this endpoint by: the node's name when all addresses are bound."""
    if bind in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{bind}]" if ":" in bind else bind


def write_targets(path: Path, addresses: Sequence[tuple[int, str, str]], run: str) -> None:
    """Prometheus file_sd, replaced as a whole: one target per (rank, node, address)."""
    targets = [
        {"targets": [address], "labels": {"run": run, "rank": str(rank), "node": node}}
        for rank, node, address in addresses
    ]
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(targets, indent=1) + "\n", encoding="utf-8")
    part.replace(path)

"""Every metric once: name, unit, kind, labels, help. Sinks write these and no others.

Prometheus adds `run, rank, node` from the target file; they are no labels of the metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a metric does over time."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    unit: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


CATALOGUE: dict[str, Metric] = {}


def _metric(name: str, unit: str, kind: Kind, help: str, *labels: str) -> Metric:
    return CATALOGUE.setdefault(name, Metric("fedcore_" + name, unit, kind, labels, help))


_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM

LAMBDA_RAW = _metric("lambda_raw", "1", _G, "sigma^2_local / sigma^2_align, last step", "client")
LAMBDA_EFFECTIVE = _metric(
    "lambda_effective", "1", _G, "weight on the align loss in the last step", "client"
)
LAMBDA_EQUILIBRIUM = _metric(
    "lambda_equilibrium", "1", _G, "raw lambda at rest for the last epoch's losses", "client"
)
SIGMA_SQ = _metric(
    "sigma_sq", "1", _G, "learned variance of a task: local or align", "client", "task"
)
LOSS = _metric(
    "loss", "nats", _G, "mean of a loss term over the last local epoch", "client", "term"
)
GRADIENT_NORM = _metric(
    "gradient_norm", "1", _G, "gradient norm before the clip, last step", "client"
)
ANNEALING = _metric("annealing_factor", "1", _G, "s(p) of the last local epoch")
PROGRESS = _metric("progress_ratio", "1", _G, "share of the rounds done")
ROUND = _metric("round", "1", _G, "rounds done")
TEST_ACCURACY = _metric("test_accuracy", "1", _G, "test accuracy by read-out", "readout")
PROTOTYPE_STD = _metric("prototype_std", "1", _G, "inter-client std of the prototypes")
SAMPLES = _metric("samples_total", "samples", _C, "samples this rank has trained on")
PHASE_SECONDS = _metric("phase_seconds", "seconds", _H, "duration of a phase of a round", "phase")
COLLECTIVE_BYTES = _metric(
    "collective_bytes_total", "bytes", _C, "bytes this rank handed to collectives", "op"
)
COLLECTIVE_SECONDS = _metric("collective_seconds", "seconds", _H, "time in a collective", "op")
CLIENTS = _metric("clients", "1", _G, "clients this rank owns")
MEMORY = _metric("device_memory_bytes", "bytes", _G, "peak memory: device, or process on a CPU")
CHECKPOINT_TIME = _metric("checkpoint_timestamp_seconds", "seconds", _G, "time of the last one")
RUN_INFO = _metric("run_info", "1", Kind.INFO, "what runs: algorithm, dataset, commit, ...")

"""Every metric once: name, unit, kind, labels, help. What is not in here is not exported."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PREFIX = "fedcore_"


class Kind(Enum):
    """The kinds of Prometheus metrics."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True)
class Metric:
    """One metric. `name` is without prefix, as in docs; `full_name` is what Prometheus sees."""

    name: str
    unit: str  # "1" = a plain number or ratio
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()  # upper bounds in `unit`, histograms only

    @property
    def full_name(self) -> str:
        """The name as Prometheus has it: with the common prefix."""
        return PREFIX + self.name

    @property
    def series(self) -> tuple[str, ...]:
        """Names that a query can ask for: a histogram has three, any other kind one."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(self.full_name + end for end in ("_bucket", "_sum", "_count"))
        return (self.full_name,)


# seconds; a phase lasts from a moment (toy data) to hours (whole data sets on few ranks)
_PHASE = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_COLLECTIVE = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

# -- per client: label `client` is its id, or q0 ... q1 (quantiles over the rank's clients) in runs
# of more clients than metrics.per_client_limit
LAMBDA_RAW = Metric(
    "lambda_raw", "1", Kind.GAUGE, ("client",), "sigma^2_local / sigma^2_align, before annealing"
)
LAMBDA_EFFECTIVE = Metric(
    "lambda_effective", "1", Kind.GAUGE, ("client",), "weight on the align loss as used"
)
LAMBDA_EQUILIBRIUM = Metric(
    "lambda_equilibrium", "1", Kind.GAUGE, ("client",), "closed-form lambda* for the losses now"
)
SIGMA_SQ = Metric(
    "sigma_sq", "1", Kind.GAUGE, ("client", "task"), "learned variance of task local or align"
)
LOSS = Metric(
    "loss", "1", Kind.GAUGE, ("client", "term"), "mean of the last local epoch: base, align, terms"
)
GRADIENT_NORM = Metric(
    "gradient_norm", "1", Kind.GAUGE, ("client",), "norm of a client's gradient before clipping"
)

# -- the run: the same on every rank
ANNEALING_FACTOR = Metric("annealing_factor", "1", Kind.GAUGE, (), "s(p) of the last round")
PROGRESS_RATIO = Metric("progress_ratio", "1", Kind.GAUGE, (), "share of all rounds done, 0 to 1")
ROUND = Metric("round", "1", Kind.GAUGE, (), "last finished round, counted from 0")
TEST_ACCURACY = Metric(
    "test_accuracy", "1", Kind.GAUGE, ("readout",), "share of test samples right, by read-out"
)
VALIDATION_ACCURACY = Metric(
    "validation_accuracy",
    "1",
    Kind.GAUGE,
    ("readout",),
    "share of clients' own validation samples right, by their own models or the averaged one",
)
PROTOTYPE_STD = Metric(
    "prototype_std", "1", Kind.GAUGE, (), "standard deviation of the prototypes between clients"
)
UNIT_PROTOTYPE_STD = Metric(
    "unit_prototype_std", "1", Kind.GAUGE, (), "the same of unit prototypes of shared classes"
)
GLOBAL_PROTOTYPE_STD = Metric(
    "global_prototype_std", "1", Kind.GAUGE, (), "of the global prototypes between classes"
)
MODEL_VARIANCE = Metric(
    "model_variance", "1", Kind.GAUGE, (), "of client models around the averaged one"
)
LAMBDA_EXPLODED = Metric(
    "lambda_exploded", "1", Kind.GAUGE, (), "clients whose raw lambda is above lambda_max"
)
LAMBDA_LIMIT = Metric(
    "lambda_limit", "1", Kind.GAUGE, (), "lambda_max, above which a learned lambda has exploded"
)
CLIENTS = Metric("clients", "1", Kind.GAUGE, (), "clients of the whole run")
RANKS = Metric("ranks", "1", Kind.GAUGE, (), "ranks of the whole run")
RUN_INFO = Metric("run_info", "1", Kind.INFO, (), "which run this is")
RUN_STATUS = Metric(
    "run_status", "1", Kind.GAUGE, ("status",), "1 for running, completed, diverged ..., else 0"
)
WARNINGS_TOTAL = Metric(
    "warnings_total", "1", Kind.COUNTER, (), "warnings logged, as in metrics.jsonl"
)

# -- this rank
SAMPLES_TOTAL = Metric("samples_total", "1", Kind.COUNTER, (), "samples trained on by this rank")
PHASE_SECONDS = Metric(
    "phase_seconds", "s", Kind.HISTOGRAM, ("phase",), "time of a phase of a round", _PHASE
)
COLLECTIVE_BYTES_TOTAL = Metric(
    "collective_bytes_total", "B", Kind.COUNTER, ("op",), "handed to collectives by this rank"
)
COLLECTIVE_SECONDS = Metric(
    "collective_seconds",
    "s",
    Kind.HISTOGRAM,
    ("op",),
    "time in a collective, waiting for other ranks included",
    _COLLECTIVE,
)
START_TIME_SECONDS = Metric(
    "start_time_seconds", "s", Kind.GAUGE, (), "unix time at which this attempt of the run began"
)
DEVICE_MEMORY_BYTES = Metric(
    "device_memory_bytes", "B", Kind.GAUGE, (), "peak on the CUDA device; on CPU of the process"
)
DEVICE_MEMORY_TOTAL_BYTES = Metric(
    "device_memory_total_bytes", "B", Kind.GAUGE, (), "of the CUDA device; on CPU of the machine"
)
CHECKPOINT_TIMESTAMP_SECONDS = Metric(
    "checkpoint_timestamp_seconds", "s", Kind.GAUGE, (), "unix time of the last checkpoint"
)
CHECKPOINT_FAILURES_TOTAL = Metric(
    "checkpoint_failures_total", "1", Kind.COUNTER, (), "checkpoints that could not be written"
)

# -- language models
LM_STEP = Metric("lm_step", "1", Kind.GAUGE, (), "optimiser steps done, as of the last line")
LM_TOKENS_TOTAL = Metric("lm_tokens_total", "1", Kind.COUNTER, (), "tokens trained on by this rank")
LM_LOSS = Metric("lm_loss", "1", Kind.GAUGE, ("split",), "cross-entropy, nats per token")
LM_CLIENT_LOSS = Metric(
    "lm_client_loss", "1", Kind.GAUGE, ("client",), "mean over a client's steps of a round, nats"
)
LM_CLIENT_DRIFT = Metric(
    "lm_client_drift", "1", Kind.GAUGE, ("client",), "RMS of a client's change in a round"
)
LM_LEARNING_RATE = Metric("lm_learning_rate", "1", Kind.GAUGE, (), "eta of the last step")
LM_WEIGHT_DECAY = Metric("lm_weight_decay", "1", Kind.GAUGE, (), "lam of the last step")
LM_GRADIENT_NORM = Metric("lm_gradient_norm", "1", Kind.GAUGE, (), "global norm before clipping")
LM_WEIGHT_RMS = Metric(
    "lm_weight_rms", "1", Kind.GAUGE, ("group",), "root mean square of the weights"
)
LM_WEIGHT_RMS_RATIO = Metric(
    "lm_weight_rms_ratio", "1", Kind.GAUGE, ("group",), "weight RMS over its prediction"
)
LM_UPDATE_RATIO = Metric(
    "lm_update_ratio", "1", Kind.GAUGE, ("group",), "RMS of a step's change over weight RMS"
)
LM_MEMORY_STEPS = Metric(
    "lm_memory_steps", "1", Kind.GAUGE, ("kind",), "memory in steps: T1, T2 moments, T3 weights"
)

CATALOGUE: dict[str, Metric] = {
    metric.name: metric for metric in tuple(globals().values()) if isinstance(metric, Metric)
}
"""Every metric by name, in the order above."""


def table() -> str:
    """The catalogue as a Markdown table."""
    rows = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    for metric in CATALOGUE.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        unit = "" if metric.unit == "1" else f" [{metric.unit}]"
        words = metric.help.replace("|", "\\|")
        rows.append(f"| `{metric.full_name}` | {metric.kind.value} | {labels} | {words}{unit} |")
    return "\n".join(rows) + "\n"

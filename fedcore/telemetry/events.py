"""What happened, as records: the lines of metrics.jsonl, and the only input of every sink."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a round."""

    kind: ClassVar[str]
    round: int

    def record(self) -> dict[str, Any]:
        """The event as JSON values; a number that is not finite becomes null."""
        return {"event": self.kind, **_finite(asdict(self))}


@dataclass(frozen=True, kw_only=True)
class ClientEvent(Event):
    """One client's part of a round."""

    kind: ClassVar[str] = "client"
    client: int
    samples: int
    base_loss: float  # mean over the last local epoch
    align_loss: float
    lambda_raw: float  # of the last step
    lambda_effective: float
    lambda_equilibrium: float  # closed form, for the two losses above
    sigma_sq_local: float
    sigma_sq_align: float
    annealing_factor: float
    gradient_norm: float
    terms: dict[str, float] = field(default_factory=dict)  # loss terms by name


@dataclass(frozen=True, kw_only=True)
class RoundEvent(Event):
    """A round that is over."""

    kind: ClassVar[str] = "round"
    rounds: int  # of the run
    progress: float
    annealing_factor: float
    accuracy: dict[str, float]  # by read-out; empty when not evaluated
    prototype_std: float
    seconds: dict[str, float]  # by phase
    samples_per_second: float
    bytes_communicated: int  # handed to collectives by all ranks


@dataclass(frozen=True, kw_only=True)
class ResumeEvent(Event):
    """The run goes on from a checkpoint; rounds from `round` on are done (again)."""

    kind: ClassVar[str] = "resume"
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class WarningEvent(Event):
    """Something unusual that does not stop the run."""

    kind: ClassVar[str] = "warning"
    message: str


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

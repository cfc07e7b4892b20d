"""What happened, as frozen records. A record is one line of metrics.jsonl; sinks take any."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

VALIDATION = "validation_"
"""How the names of read-outs begin that are of clients' own samples, and not of the test set."""


@dataclass(frozen=True)
class Event:
    """Base of all events. `kind` stands as `event` in the line."""

    kind: ClassVar[str]
    time: float = field(default_factory=time.time, kw_only=True)  # unix seconds

    def record(self) -> dict[str, Any]:
        """The line's object: `event`, `time`, then the fields; not finite becomes null.

        A field that need not be there and is None is left out.
        """
        pairs = ((f, getattr(self, f.name)) for f in fields(self))
        there = {f.name: x for f, x in pairs if x is not None or f.default is not None}
        values = {name: _finite(value) for name, value in there.items()}
        return {"event": self.kind, "time": values.pop("time"), **values}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class ClientEvent(Event):
    """One client's round: losses are means over its last local epoch, lambda of its last step."""

    kind = "client"
    round: int
    client: int
    samples: int  # that the client holds
    base_loss: float
    align_loss: float
    lambda_raw: float
    lambda_effective: float
    lambda_equilibrium: float
    sigma_sq_local: float
    sigma_sq_align: float
    annealing_factor: float
    gradient_norm: float  # before clipping
    terms: dict[str, float]  # loss by term name
    validation_accuracy: float | None = None  # of its own model; none if not evaluated on any


@dataclass(frozen=True)
class RoundEvent(Event):
    """One round of the whole run."""

    kind = "round"
    round: int
    rounds: int  # of the run
    progress: float  # share of all rounds done, this one included
    annealing_factor: float
    accuracy: dict[str, float]  # by read-out, in [0, 1]; empty in a round without evaluation
    prototype_std: float  # between clients
    unit_prototype_std: float  # of unit prototypes, over classes that two clients or more hold
    global_prototype_std: float  # between classes
    model_variance: float | None  # of client models around the averaged one; null if not evaluated
    lambda_exploded: int  # clients whose raw lambda is above lambda_max
    seconds: dict[str, float]  # by phase, on this rank
    samples_per_second: float  # of all ranks
    bytes_communicated: int  # by all ranks


@dataclass(frozen=True)
class ResumeEvent(Event):
    """The run goes on from a checkpoint; `round` is the first one to be done."""

    kind = "resume"
    round: int
    checkpoint: str


@dataclass(frozen=True)
class WarningEvent(Event):
    """Something the operator should know, after which the run goes on."""

    kind = "warning"
    round: int
    message: str


@dataclass(frozen=True)
class LMStepEvent(Event):
    """A language model after some optimiser steps; loss and norm are means since the last line.

    What is measured of the weights is there every `lm.monitor.every` steps, else empty.
    """

    kind = "lm_step"
    step: int  # optimiser steps done
    steps: int  # of the run
    loss: float  # cross-entropy, nats per token
    learning_rate: float  # as used in the last step
    weight_decay: float
    gradient_norm: float  # before clipping
    tokens: int  # trained on so far
    tokens_per_second: float  # of all ranks, since the last line
    weight_rms: dict[str, float]  # by parameter group
    weight_rms_predicted: dict[str, float]  # what zero-mean gradients would make of it
    update_ratio: dict[str, float]  # RMS of the last step's change over RMS of the weights
    layer_rms: dict[str, float]  # by parameter
    memory_steps: dict[str, float]  # T1, T2 of the moments, T3 = 1 / (lam eta) of the weights
    initialisation_left: float | None  # share of the initial weights that is left


@dataclass(frozen=True)
class LMClientEvent(Event):
    """One client of a federated language model in the round that ended at `step`."""

    kind = "lm_client"
    step: int  # optimiser steps that a client of all rounds has done
    client: int
    loss: float  # mean of the round's steps, nats per token
    drift: float  # root mean square of its weights minus the global ones it began with


@dataclass(frozen=True)
class LMEvalEvent(Event):
    """A language model on held-out text."""

    kind = "lm_eval"
    step: int
    loss: float  # nats per token
    perplexity: float
    bits_per_byte: float
    tokens: int  # that were predicted


@dataclass(frozen=True)
class LMResumeEvent(Event):
    """A language-model run goes on; `step` is the number of steps already done."""

    kind = "resume"
    step: int
    checkpoint: str


@dataclass(frozen=True)
class LMWarningEvent(Event):
    """Something about a language-model run that the operator should know."""

    kind = "warning"
    step: int
    message: str


KINDS: dict[str, tuple[type[Event], ...]] = {
    "client": (ClientEvent,),
    "round": (RoundEvent,),
    "resume": (ResumeEvent, LMResumeEvent),
    "warning": (WarningEvent, LMWarningEvent),
    "lm_step": (LMStepEvent,),
    "lm_client": (LMClientEvent,),
    "lm_eval": (LMEvalEvent,),
}
"""By `event` of a line; a warning or resumption is of the kind whose fields it has."""

LARGEST = 2**53  # no count is as large as that, above which floats are not exact
MOST = 1e300  # no number is larger: where one ends a picture, there is room for its margins
LATEST = 253402300800.0  # unix seconds: the year 10000, which no calendar here can name


def _is_number(value: Any) -> bool:
    # of ints float() may fail, hence no isfinite; null is what was not finite
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_one and abs(value) <= MOST)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "int": _is_count,
    "float": _is_number,
    "float | None": _is_number,
    "str": lambda value: isinstance(value, str),
    "dict[str, float]": _are_numbers,
}
"""What JSON has to hold, by the type of a field."""

_FIELDS = {
    kind: {f.name: str(f.type) for f in fields(kind)} for kinds in KINDS.values() for kind in kinds
}
"""Of each kind its fields, and the type of each."""

_OPTIONAL = {kind: {f.name for f in fields(kind) if f.default is None} for kind in _FIELDS}
"""Of each kind the fields that a whole line may lack."""

_PLACES = dict.fromkeys(("round", "step", "client"), "int")  # of whatever kind, where it is said


def fits(record: dict[str, Any]) -> bool:
    """Whether a line is of a known kind, and what it has of that kind's fields is of their types.

    Fields may be missing: an earlier version did not write them.
    """
    kinds = KINDS.get(str(record.get("event")), ())
    return bool(kinds) and all(_fits(record, _PLACES | _FIELDS[kind]) for kind in kinds)


def _fits(record: dict[str, Any], wanted: dict[str, str]) -> bool:
    there = ((record[name], of) for name, of in wanted.items() if name in record)
    at = record.get("time", 0.0)
    return all(_SHAPES[of](value) for value, of in there) and at is not None and 0 <= at < LATEST


def from_record(record: dict[str, Any]) -> Event | None:
    """The event that `Event.record` wrote; None for what is no whole event of this version.

    null becomes NaN where a number has to be.
    """
    for kind in KINDS.get(str(record.get("event")), ()):
        wanted = _FIELDS[kind]
        whole = wanted.keys() - _OPTIONAL[kind] <= record.keys()
        if whole and _fits(record, wanted):
            there = {name: of for name, of in wanted.items() if name in record}
            return kind(**{name: _read(record[name], of) for name, of in there.items()})
    return None


def _read(value: Any, of: str) -> Any:
    """A number is NaN where JSON had null, also within an object of numbers."""
    if value is None and of == "float":
        return math.nan
    if isinstance(value, dict) and None in value.values():
        return {key: math.nan if inner is None else inner for key, inner in value.items()}
    return value

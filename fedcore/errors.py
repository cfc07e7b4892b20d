"""One tree of errors. Each says what was wrong, what came and what would work.

Errors are plain records, so that a rank can send the one it met to all others (`agree`) and
every rank ends with the same words and the same code.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


class FedError(Exception):
    """Base of everything a user can run into; `exit_code` is the process's code."""

    exit_code: ClassVar[int] = 1
    status: ClassVar[str] = "failed"  # what summary.json says

    def to_json(self) -> dict[str, Any]:
        """The error as JSON-able data: kind and fields (values as text)."""
        fields = asdict(self)  # type: ignore[call-overload]
        return {"kind": type(self).__name__, "fields": {k: _plain(v) for k, v in fields.items()}}


LONGEST = 400  # characters of a value that are shown


YAML = {"None": "null", "True": "true", "False": "false"}  # as a configuration says it


def masked(text: str) -> str:
    """The words without the user and password of a URL in them."""
    return re.sub(r"(\w://)[^\s'\"]*@", r"\1***@", text)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


@dataclass(eq=False)
class ConfigError(FedError):
    """A setting or argument that cannot work. `try_` is the way out."""

    exit_code: ClassVar[int] = 2
    key: str
    got: Any = None
    want: str = ""
    try_: str = ""

    def __str__(self) -> str:
        got = masked(YAML.get(repr(self.got), repr(self.got)))
        text = f"{self.key}: got {got if len(got) <= LONGEST else got[:LONGEST] + '...'}"
        if self.want:
            text += f", want {self.want}"
        return f"{text}. Try {self.try_}" if self.try_ else text


@dataclass(eq=False)
class ConfigErrors(FedError):
    """Several wrong settings at once: all are listed."""

    exit_code: ClassVar[int] = 2
    errors: str = ""

    def __str__(self) -> str:
        return self.errors


@dataclass(eq=False)
class StorageError(FedError):
    """The run directory cannot be written: no space, no permission."""

    exit_code: ClassVar[int] = 2
    path: str = ""
    reason: str = ""
    try_: str = ""

    def __str__(self) -> str:
        return f"cannot write {self.path}: {self.reason}. Try {self.try_}"


@dataclass(eq=False)
class ShardError(FedError):
    """Data on disk that is missing, damaged or not what its manifest says."""

    exit_code: ClassVar[int] = 3
    shard: str = ""
    problem: str = ""
    try_: str = ""

    def __str__(self) -> str:
        return f"{self.shard}: {self.problem}. Try {self.try_}"


@dataclass(eq=False)
class Diverged(FedError):
    """A loss or a parameter of one client is no longer a finite number."""

    exit_code: ClassVar[int] = 4
    status: ClassVar[str] = "diverged"
    client: int = -1
    round: int = -1
    lam: float = 0.0
    base: float = 0.0
    align: float = 0.0

    def __str__(self) -> str:
        return (
            f"client {self.client} diverged in round {self.round + 1}: base loss {self.base:.6g}, "
            f"align loss {self.align:.6g}, lambda {self.lam:.6g}. "
            "Try a smaller clients.lr" + (", or an algorithm.rule.guard" if self.align else "")
        )


@dataclass(eq=False)
class LossDiverged(FedError):
    """A language model's loss or gradient is no longer a finite number."""

    exit_code: ClassVar[int] = 4
    status: ClassVar[str] = "diverged"
    step: int = -1
    loss: float = 0.0
    norm: float = 0.0
    lr: float = 0.0
    client: int | None = None  # of a federated run

    def __str__(self) -> str:
        who = "" if self.client is None else f"client {self.client} "
        return (
            f"{who}diverged in step {self.step}: loss {self.loss:.6g}, gradient norm "
            f"{self.norm:.6g} at a learning rate of {self.lr:.4g}. Try a smaller "
            "lm.optimizer.lr, or more lm.schedule.warmup"
        )


@dataclass(eq=False)
class CollectiveError(FedError):
    """A rank was lost or a collective failed: this run cannot go on with these processes."""

    exit_code: ClassVar[int] = 5
    operation: str = ""
    rank: int = -1
    reason: str = ""

    def __str__(self) -> str:
        return (
            f"rank {self.rank}: {self.operation} failed: {self.reason}. "
            "A rank was lost; run the same command again to go on from the last checkpoint"
        )


@dataclass(eq=False)
class Stopped(FedError):
    """Asked to stop (SIGTERM, SIGUSR1), with a checkpoint to go on from."""

    exit_code: ClassVar[int] = 75
    status: ClassVar[str] = "stopped"
    round: int = 0
    checkpoint: str = ""
    unit: str = "round"  # or step
    within: bool = False  # in the middle of that round

    def __str__(self) -> str:
        rounds = self.unit == "round"
        number = f"round {self.round + 1}" if rounds else f"step {self.round}"
        within = f"in {number}" if rounds else f"in the round after {number}"
        return (
            f"stopped on request {within if self.within else f'before {number}'}; checkpoint "
            f"{self.checkpoint}. "
            "Run again in this run directory, with --resume auto, to go on"
        )


@dataclass(eq=False)
class Unexpected(FedError):
    """An error on another rank that is no FedError: a defect, told to every rank."""

    rank: int = -1
    reason: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} failed: {self.reason}"


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        ConfigErrors,
        StorageError,
        ShardError,
        Diverged,
        LossDiverged,
        CollectiveError,
        Stopped,
        Unexpected,
    )
}


def from_json(record: dict[str, Any]) -> FedError:
    """The error that `FedError.to_json` wrote on another rank."""
    error: FedError = _KINDS[record["kind"]](**record["fields"])
    return error

"""What a summary.json has to be like to be read as one: the types of what readers look at."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Summary(BaseModel):
    """Fields may be missing, as an earlier version wrote them, and there may be others."""

    model_config = ConfigDict(extra="allow", strict=True)

    status: str
    exit_code: Annotated[int, Field(ge=0, le=255)] = 1
    kind: str = ""
    message: str = ""
    seed: int = 0
    world_size: Count | None = None
    identity: dict[str, Any] | None = None
    algorithm: str = ""
    dataset: str = ""
    clients: Count | None = None
    rounds: Count = 0
    steps: Count = 0
    accuracy: dict[str, float] = Field(default_factory=dict)
    lambda_effective: dict[str, float] = Field(default_factory=dict)
    phase_seconds: dict[str, float] = Field(default_factory=dict)
    test_accuracy: float | None = None
    best_test_accuracy: float | None = None
    samples_per_second: float | None = None
    wall_seconds: float | None = None
    bytes_communicated: Count | None = None
    tokens: Count | None = None
    parameters: Count | None = None
    tokens_per_second: float | None = None
    final_loss: float | None = None
    final_eval_loss: float | None = None
    perplexity: float | None = None
    bits_per_byte: float | None = None


def is_summary(value: Any) -> bool:
    """Whether what was read is a summary that readers can rely on."""
    try:
        _Summary.model_validate(value)
    except (ValidationError, ValueError, RecursionError):
        return False
    return True

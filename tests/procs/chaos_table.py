"""What each fault cost, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass
class Cost:
    """One fault and what came of it."""

    fault: str
    time: float  # Unix: when it struck
    ranks: int = 0  # 0 = it struck between two attempts
    at: str = ""  # round.step of the rank that it struck
    ended: float | None = None  # seconds until all ranks had ended
    went_on: float | None = None  # seconds until the next attempt had its checkpoint
    lost: int | None = None  # finished rounds that had to be done again


def shown(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def show(costs: Sequence[Cost]) -> str:
    """Every fault in a line, then every kind of fault in a line."""
    head = (
        f"{'':>3}  {'fault':<18}{'ranks':>6}{'round.step':>12}{'ended s':>9}{'on s':>7}{'lost':>6}"
    )
    rows = [
        f"{i:>3}  {c.fault:<18}{c.ranks or '-':>6}{c.at or '-':>12}{shown(c.ended):>9}"
        f"{shown(c.went_on):>7}{shown(c.lost, 0):>6}"
        for i, c in enumerate(costs, 1)
    ]
    kinds = f"{'':>3}  {'':<18}{'times':>6}{'ended s: median':>18}{'most':>7}{'lost: most':>12}"
    return "\n".join([head, *rows, "", kinds, *map(_row_of, _grouped(costs))])


def _grouped(costs: Sequence[Cost]) -> list[list[Cost]]:
    names = sorted({cost.fault for cost in costs})
    return [[cost for cost in costs if cost.fault == name] for name in names]


def _row_of(costs: list[Cost]) -> str:
    ended = [cost.ended for cost in costs if cost.ended is not None]
    lost = [cost.lost for cost in costs if cost.lost is not None]
    middle, most = (median(ended), max(ended)) if ended else (None, None)
    return (
        f"{'':>3}  {costs[0].fault:<18}{len(costs):>6}{shown(middle):>18}{shown(most):>7}"
        f"{shown(max(lost, default=None), 0):>12}"
    )

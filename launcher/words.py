"""Numbers as a reader wants them."""

from __future__ import annotations

import math


def number(value: float | None) -> str:
    """Three digits, and thousands in groups; a dash for what is not known."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

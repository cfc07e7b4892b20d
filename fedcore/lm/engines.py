"""Engines by name; each library is imported when its engine is asked for."""

from __future__ import annotations

from fedcore.lm.engine import Engine, PlainEngine, Trained


def build_engine(of: Trained) -> Engine:
    """The engine that `lm.engine` names, wrapped around model and optimiser. Collective."""
    if of.lm.engine == "deepspeed":
        from fedcore.lm.engine_deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(of)
    if of.lm.engine == "accelerate":
        from fedcore.lm.engine_accelerate import AccelerateEngine

        return AccelerateEngine(of)
    return PlainEngine(of)

"""Events of a run that never was."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedcore.telemetry.events import (
    ClientEvent,
    Event,
    LMEvalEvent,
    LMStepEvent,
    ResumeEvent,
    RoundEvent,
    WarningEvent,
)
from fedcore.telemetry.jsonl import JsonlSink


def recorded(folder: Path, events: Sequence[Event]) -> Path:
    """A run directory of which nothing but metrics.jsonl is left."""
    folder.mkdir(parents=True)
    sink = JsonlSink(folder / "metrics.jsonl", print)
    sink.write(events)
    sink.close()
    return folder


def client_event(client: int, round: int = 0, **changes: float) -> ClientEvent:
    """A client whose lambda is client + 1."""
    numbers = {
        "base_loss": 1.5,
        "align_loss": 0.25,
        "lambda_raw": client + 1.0,
        "lambda_effective": client + 1.0,
        "lambda_equilibrium": 6.0,
        "sigma_sq_local": 2.0,
        "sigma_sq_align": 0.5,
        "annealing_factor": 1.0,
        "gradient_norm": 0.7,
    }
    return ClientEvent(
        round=round, client=client, samples=100, terms={"supcon": 1.1}, **{**numbers, **changes}
    )


def round_event(round: int = 0, rounds: int = 10, **changes: object) -> RoundEvent:
    """A round with one read-out at 0.9."""
    fields: dict[str, object] = {
        "progress": (round + 1) / rounds,
        "annealing_factor": 0.5,
        "accuracy": {"feature_ensemble": 0.9},
        "prototype_std": 0.1,
        "unit_prototype_std": 0.05,
        "global_prototype_std": 0.2,
        "model_variance": 0.01,
        "lambda_exploded": 2,
        "seconds": {"train": 1.0},
        "samples_per_second": 1234.0,
        "bytes_communicated": 4096,
    }
    return RoundEvent(round=round, rounds=rounds, **{**fields, **changes})  # type: ignore[arg-type]


def step_event(step: int = 100, steps: int = 400, **changes: object) -> LMStepEvent:
    """Steps of a language model whose weights are 1.25 times as large as predicted."""
    fields: dict[str, object] = {
        "loss": 2.5,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "gradient_norm": 0.8,
        "tokens": step * 1024,
        "tokens_per_second": 5000.0,
        "weight_rms": {"decay": 0.05, "no_decay": 1.0},
        "weight_rms_predicted": {"decay": 0.04, "no_decay": 0.0},
        "update_ratio": {"decay": 0.003},
        "layer_rms": {"layers.0.attn.q_proj.weight": 0.05},
        "memory_steps": {"T1": 10.0, "T2": 20.0, "T3": 10_000.0},
        "initialisation_left": 0.99,
    }
    return LMStepEvent(step=step, steps=steps, **{**fields, **changes})  # type: ignore[arg-type]


def eval_event(step: int = 100) -> LMEvalEvent:
    """Held-out text at a perplexity of 12.2."""
    return LMEvalEvent(step, loss=2.5, perplexity=12.18, bits_per_byte=3.607, tokens=4096)


def whole_run(clients: int = 8, rounds: int = 30) -> list[ClientEvent | RoundEvent]:
    """A run in which lambda follows its equilibrium while the losses fall and s(p) anneals."""
    events: list[ClientEvent | RoundEvent] = []
    lam = [1 + 19 * k / clients for k in range(clients)]
    for t in range(rounds):
        s = (1 + math.cos(math.pi * t / rounds)) / 2
        for k in range(clients):
            base = 0.3 + (2 + 0.2 * k) * math.exp(-t / 6) + 0.03 * math.sin(t * (k + 1))
            align = 0.02 * (1 + k / 3) + 0.8 * math.exp(-t / 5)
            rest = s * base / align + 0.05
            lam[k] += 0.3 * (rest - lam[k])
            events.append(
                client_event(
                    k,
                    t,
                    base_loss=base,
                    align_loss=align,
                    lambda_raw=lam[k],
                    lambda_effective=lam[k] * s,
                    lambda_equilibrium=rest,
                    annealing_factor=s,
                )
            )
        rise = 1 - math.exp(-(t + 1) / 5)
        accuracy = {
            "feature_ensemble": 0.93 * rise,
            "output_ensemble": 0.88 * rise,
            "averaged": 0.7 * rise,
            "local_mean": 0.55 * rise,
        }
        events.append(round_event(t, rounds, accuracy=accuracy, annealing_factor=s))
    return events


ODD: tuple[tuple[Callable[..., Event], list[tuple[str, Any]]], ...] = (
    (lambda: client_event(0), [("terms", [0.5]), ("terms", {"ce": "x"}), ("samples", None)]),
    (
        lambda: client_event(0),
        [("lambda_raw", "x"), ("client", True), ("round", 10**400), ("time", None)],
    ),
    (round_event, [("accuracy", [0.5]), ("accuracy", {"averaged": "x"}), ("accuracy", None)]),
    (round_event, [("rounds", None), ("bytes_communicated", None), ("bytes_communicated", 1.5)]),
    (round_event, [("seconds", "x"), ("prototype_std", 10**400), ("prototype_std", 1.7e308)]),
    (round_event, [("time", "x"), ("time", 1e18), ("time", -1.0), ("lambda_exploded", [1])]),
    (lambda: WarningEvent(0, "hot"), [("message", 3), ("message", None), ("round", "x")]),
    (lambda: ResumeEvent(0, "x"), [("checkpoint", []), ("round", {})]),
    (step_event, [("loss", "x"), ("weight_rms", [1.0]), ("tokens", None), ("steps", "x")]),
    (eval_event, [("perplexity", {}), ("tokens", 0.5), ("step", None)]),
)
"""Ways of making events, each with fields and what no line of theirs can have there."""


def odd_records() -> list[dict[str, Any]]:
    """Lines that are whole but for the type of one field."""
    return [made().record() | {name: value} for made, wrong in ODD for name, value in wrong]

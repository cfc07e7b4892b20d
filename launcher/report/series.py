"""The plotted numbers as JSON values: the page carries them, so that they can be read again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedcore.telemetry.history import Array, quantiles
from launcher.report.geometry import Geometry
from launcher.report.stored import LM, Record, Stored

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
FULL = 20_000  # client rounds up to which every client's numbers are given, else quantiles
LINES = 5_000  # lines of a language model that are given; of more, evenly chosen ones
ROUND: tuple[str, ...] = (
    "annealing_factor",
    "prototype_std",
    "unit_prototype_std",
    "global_prototype_std",
)
ROUND += ("model_variance", "lambda_exploded", "samples_per_second", "bytes_communicated")
CLIENT: tuple[str, ...] = (
    "lambda_raw",
    "lambda_effective",
    "lambda_equilibrium",
    "base_loss",
    "align_loss",
)
CLIENT += ("gradient_norm", "sigma_sq_local", "sigma_sq_align")


def series(run: Stored, geometry: Geometry | str | None) -> dict[str, Any]:
    """One run: what it is, and all that is drawn of it. Not finite becomes null."""
    summary = {k: v for k, v in run.summary.items() if k != "identity"}
    about = {"name": run.name, "kind": run.kind, "status": run.state.status, "summary": summary}
    if run.kind == LM:
        values = {kind: _columns(run.events(kind)) for kind in ("lm_step", "lm_eval", "lm_client")}
        return _plain_all({**about, **values})
    values = {"rounds": _rounds(run), "clients": _clients(run)}
    if isinstance(geometry, Geometry):
        values["prototypes"] = _geometry(geometry)
    return _plain_all({**about, **values})


def _plain_all(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in values.items()}


def _rounds(run: Stored) -> dict[str, Any]:
    """Columns, one value a round; accuracy null where it was not evaluated. Rounds from 0."""
    rounds = run.history.rounds
    names, phases = (
        run.history.readouts(),
        dict.fromkeys(n for r in rounds for n in r.get("seconds") or {}),
    )
    return {
        "round": [r["round"] for r in rounds],
        **{name: [r.get(name) for r in rounds] for name in ROUND},
        "accuracy": {n: [r["accuracy"].get(n) for r in rounds] for n in names},
        "seconds": {n: [(r.get("seconds") or {}).get(n) for r in rounds] for n in phases},
    }


def _clients(run: Stored) -> dict[str, Any]:
    """Tables [R][K], or quantiles [R][5] over the clients; null for a client that took no part."""
    rounds, first = run.history.per_client(CLIENT[0])
    tables = {name: run.history.per_client(name)[1] for name in CLIENT}
    terms = {name: run.history.per_term(name)[1] for name in run.history.terms()}
    full = first.size <= FULL
    ids = sorted({r["client"] for r in run.history.clients})
    return {
        "round": [int(n) - 1 for n in rounds],
        "columns": {"client": ids} if full else {"quantile": list(SHARES)},
        **{name: _kept(table, full) for name, table in tables.items()},
        "terms": {name: _kept(table, full) for name, table in terms.items()},
    }


def _kept(table: Array, full: bool) -> Array:
    return table if full else quantiles(table, SHARES)


def _geometry(g: Geometry) -> dict[str, Any]:
    return {
        "checkpoint": g.checkpoint,
        "norms": g.norms,
        "to_own_anchor": g.to_own,
        "between_classes": g.gram if len(g.gram) <= 50 else None,  # C^2 numbers
        "ideal": g.ideal,
    }


def _columns(records: Sequence[Record]) -> dict[str, Any]:
    """Records of one kind as columns; those that are mappings by what stands in them."""
    step = max(1, math.ceil(len(records) / LINES))
    chosen = [*records[::-1][::step]][::-1]  # the last one always
    keys = dict.fromkeys(k for r in chosen for k in r if k not in ("event", "time", "layer_rms"))
    return {key: _column([r.get(key) for r in chosen]) for key in keys}


def _column(values: list[Any]) -> Any:
    inner = dict.fromkeys(k for v in values if isinstance(v, Mapping) for k in v)
    if not any(isinstance(v, Mapping) for v in values):
        return values
    return {k: [v.get(k) if isinstance(v, Mapping) else None for v in values] for k in inner}


def plain(value: Any) -> Any:
    """JSON has no arrays, no NaN and no infinity."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Plots of a run, drawn from its metrics.jsonl alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConfigError
from fedcore.telemetry.jsonl import latest, read_events

Curves = NDArray[np.float64]


def curves(clients: list[dict[str, Any]], key: str) -> Curves:
    """One reading over clients and rounds [N, rounds]; NaN where a client took no part."""
    ids = sorted({e["client"] for e in clients})
    rounds = max(e["round"] for e in clients) + 1
    table = np.full((len(ids), rounds), np.nan)
    for event in clients:
        value = event[key]
        table[ids.index(event["client"]), event["round"]] = np.nan if value is None else value
    return table


def plot_lambda(run: Path, out: Path) -> Path:
    """Lambda against its equilibrium, effective lambda, losses and accuracy; returns `out`."""
    from matplotlib.figure import Figure

    path = run / "metrics.jsonl"
    if not path.is_file():
        raise ConfigError("RUN", str(run), "a run directory with metrics.jsonl", "runs/<name>")
    events = read_events(path)
    clients, rounds = latest(events, "client"), latest(events, "round")
    if not clients:
        raise ConfigError("RUN", str(run), "a run with at least one round", "waiting for one")
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    _lambda_panel(axes[0, 0], clients)
    _effective_panel(axes[0, 1], clients, rounds)
    _loss_panel(axes[1, 0], clients)
    _accuracy_panel(axes[1, 1], rounds)
    for axis in axes.flat:
        axis.set_xlabel("round")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(run.name)
    figure.savefig(out, dpi=110)
    return out


def _x(table: Curves) -> NDArray[np.int64]:
    return np.arange(1, table.shape[1] + 1)


def _wide(table: Curves) -> bool:
    """Whether a log scale reads better: positive, and over more than a factor of 30."""
    seen = table[np.isfinite(table)]
    return bool(len(seen)) and seen.min() > 0 and seen.max() / seen.min() > 30


def _lambda_panel(axis: Any, clients: list[dict[str, Any]]) -> None:
    raw, rest = curves(clients, "lambda_raw"), curves(clients, "lambda_equilibrium")
    axis.plot(_x(raw), raw.T, color="#0072B2", alpha=0.45, lw=1)
    axis.plot(_x(raw), np.nanmedian(raw, 0), color="#0072B2", lw=2.5, label="raw λ, median")
    median = np.nanmedian(rest, 0)
    axis.plot(_x(rest), median, "--", color="#D55E00", lw=2, label="λ* at rest, median")
    if _wide(np.concatenate([raw, rest])):
        axis.set_yscale("log")
    axis.set_title("raw λ of each client, and where it would rest")
    axis.legend(frameon=False)


def _effective_panel(
    axis: Any, clients: list[dict[str, Any]], rounds: list[dict[str, Any]]
) -> None:
    used = curves(clients, "lambda_effective")
    axis.plot(_x(used), used.T, color="#009E73", alpha=0.45, lw=1)
    axis.plot(_x(used), np.nanmedian(used, 0), color="#009E73", lw=2.5, label="used λ, median")
    if _wide(used):
        axis.set_yscale("log")
    axis.set_title("λ that multiplied the align loss, and s(p)")
    other = axis.twinx()
    at = [e["round"] + 1 for e in rounds]
    other.plot(at, [e["annealing_factor"] for e in rounds], ":", color="black", label="s(p)")
    other.set_ylim(0, 1.05)
    other.set_ylabel("s(p)")
    other.spines["top"].set_visible(False)
    handles = [*axis.get_lines()[-1:], *other.get_lines()]
    axis.legend(handles, [h.get_label() for h in handles], frameon=False)


def _loss_panel(axis: Any, clients: list[dict[str, Any]]) -> None:
    for key, color in (("base_loss", "#0072B2"), ("align_loss", "#CC79A7")):
        table = curves(clients, key)
        low, middle, high = np.nanquantile(table, [0, 0.5, 1], axis=0)
        axis.fill_between(_x(table), low, high, color=color, alpha=0.15, lw=0)
        axis.plot(_x(table), middle, color=color, lw=2, label=key.replace("_", " "))
    axis.set_title("losses: median and range over clients")
    axis.set_yscale("log")
    axis.legend(frameon=False)


def _accuracy_panel(axis: Any, rounds: list[dict[str, Any]]) -> None:
    seen = [e for e in rounds if e["accuracy"]]
    colors = iter(["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#555555"])
    for name in seen[-1]["accuracy"] if seen else []:
        values = [100 * e["accuracy"][name] for e in seen]
        style = ":" if name.startswith("local_m") and name != "local_mean" else "-"
        axis.plot([e["round"] + 1 for e in seen], values, style, color=next(colors), label=name)
    axis.set_ylim(0, 100)
    axis.set_ylabel("test accuracy, %")
    axis.set_title("test accuracy by read-out")
    axis.legend(frameon=False, fontsize=8)

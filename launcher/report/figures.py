"""The key figures of the runs: what stands at the head of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedcore.telemetry.history import Array
from launcher.report.accuracy import own_readout
from launcher.report.lambdas import has_alignment, three
from launcher.report.language import evals, steps
from launcher.report.stored import LM, Record, Stored
from launcher.reporting import lm_info
from launcher.words import duration, number, percent, size

Figures = dict[str, str]
"""Words by title; a title that a run has no number for is left out."""


def key_figures(run: Stored) -> Figures:
    """Of a run of either kind."""
    return _about(run) | (_language(run) if run.kind == LM else _federated(run))


def _about(run: Stored) -> Figures:
    """What ran, where, and how long."""
    said, summary = run.said, run.summary
    found = {**_names(run), "seed": said.get("seed", summary.get("seed"))}
    found["ranks"] = summary.get("world_size") or run.environment.get("world_size")
    seconds = summary.get("wall_seconds") or _elapsed(run)
    found["duration"] = None if seconds is None else duration(seconds)
    return {key: str(value) for key, value in found.items() if value is not None}


def _names(run: Stored) -> dict[str, Any]:
    """Algorithm or optimiser, model and dataset, from the configuration or else the summary."""
    said, summary = run.said, run.summary
    if run.kind == LM:
        info = lm_info(run.config) if run.config and run.config.lm else summary
        names = {"optimiser": "algorithm", "model": "model", "dataset": "dataset"}
        return {title: info.get(key) for title, key in names.items()}
    inner = {k: v if isinstance(v, dict) else {} for k, v in said.items()}
    return {
        "algorithm": inner.get("algorithm", {}).get("name", summary.get("algorithm")),
        "model": inner.get("model", {}).get("name"),
        "dataset": inner.get("data", {}).get("source", summary.get("dataset")),
    }


def _elapsed(run: Stored) -> float | None:
    return max(run.times) - min(run.times) if run.times else None


def _known(found: Mapping[str, tuple[object, Callable[[float], str]]]) -> Figures:
    return {k: f(v) for k, (v, f) in found.items() if isinstance(v, int | float)}


def _federated(run: Stored) -> Figures:
    """Accuracies, lambda and traffic, from the summary or else from the rounds."""
    summary, history = run.summary, run.history
    rounds = [int(r["round"]) + 1 for r in history.rounds]
    own = history.accuracy(own_readout(run) or "")[1]
    found = {"clients": f"{_clients(run):,}"}
    found["rounds"] = f"{max(rounds, default=0)}{_of(history.rounds, 'rounds')}"
    found |= _known(
        {
            "test accuracy": (summary.get("test_accuracy", _at(own, -1)), percent),
            "best": (summary.get("best_test_accuracy", own.max() if len(own) else None), percent),
        }
    )
    if has_alignment(run):
        last = three(history.per_client("lambda_effective")[1], -1)
        found["effective λ: min, median, max"] = " / ".join(map(number, last))
    rate = history.per_round("samples_per_second")[1]
    traffic = float(history.per_round("bytes_communicated")[1].sum())
    sent = summary.get("bytes_communicated", traffic)
    return found | _known(
        {
            "samples/s": (summary.get("samples_per_second", _mean(rate)), number),
            "bytes sent": (sent, size),
        }
    )


def _clients(run: Stored) -> int:
    """Of the whole run, whether they took part by now or not."""
    told = run.summary.get("clients") or (run.config and run.config.clients.count)
    return int(told or len({r["client"] for r in run.history.clients}))


def _of(records: Sequence[Record], key: str) -> str:
    """Of how many, if that is known."""
    whole = records[-1].get(key) if records else None
    return f" of {whole:,}" if isinstance(whole, int) else ""


def _at(values: Array, place: int) -> float | None:
    return float(values[place]) if len(values) else None


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


def _language(run: Stored) -> Figures:
    """Losses, tokens and speed."""
    last, summary = run.events("lm_step")[-1], run.summary
    held = evals(run, "loss")[1]
    found = {"steps": f"{last['step']:,}{_of([last], 'steps')}"}
    return found | _known(
        {
            "tokens": (last.get("tokens"), lambda x: f"{x:,.0f}"),
            "parameters": (summary.get("parameters"), lambda x: f"{x:,.0f}"),
            "training loss": (_at(steps(run, "loss")[1], -1), lambda x: f"{x:.4f}"),
            "held-out loss": (_at(held, -1), lambda x: f"{x:.4f}"),
            "perplexity": (_at(evals(run, "perplexity")[1], -1), number),
            "bits per byte": (_at(evals(run, "bits_per_byte")[1], -1), number),
            "tokens/s": (summary.get("tokens_per_second", last.get("tokens_per_second")), number),
        }
    )


def side_by_side(runs: Sequence[Stored]) -> list[list[str]]:
    """Rows of title and one cell a run."""
    found = [key_figures(run) for run in runs]
    titles = dict.fromkeys(title for figures in found for title in figures)
    return [[title, *(figures.get(title, "-") for figures in found)] for title in titles]

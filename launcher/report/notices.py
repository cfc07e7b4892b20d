"""What a reader should know first: how a run ended, its warnings, and what its numbers betray."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from fedcore.telemetry.history import Array
from launcher.report.stored import LM, Record, Stored
from launcher.words import count, duration, moment, named, number, ranges, spans

SLOW = 0.5  # share of the median throughput below which a round is told
LOSSES = ("base_loss", "align_loss", "lambda_raw", "lambda_effective", "gradient_norm")
VARIANCES = ("sigma_sq_local", "sigma_sq_align")
RISEN = 1.01  # times its best, above which a held-out loss has risen
TOLD = 30  # warnings of a run that are listed


@dataclass(frozen=True)
class Notice:
    """One line of what to know."""

    level: Literal["bad", "warning", "found"]  # the run's end, a warning it told, our own reading
    words: str


def notices(run: Stored) -> list[Notice]:
    """Everything about one run, the worst first."""
    told = [Notice("warning", words) for words in warnings(run)]
    own = findings_lm(run) if run.kind == LM else findings(run)
    return [*ending(run), *told, *(Notice("found", words) for words in [*own, *progress(run)])]


def ending(run: Stored) -> list[Notice]:
    """How a run ended that did not complete, or that it has not ended."""
    if run.state.status == "completed":
        return []
    if run.is_over:
        said = str(run.summary.get("message") or "it left no message")
        return [Notice("bad", f"The run {run.state.words()}: {said}")]
    last = max(run.times, default=None)
    words = "No summary: the run is still going on, or was killed."
    if last is not None:
        ago = duration(max(0.0, time.time() - last))
        words += f" Its last line is of {moment(last)}, {ago} before this page was made."
    return [Notice("bad", words)]


def warnings(run: Stored) -> list[str]:
    """What the run warned of, each once, with where."""
    found: dict[str, list[int]] = {}
    for event in run.events("warning"):
        found.setdefault(str(event.get("message")), []).append(_place(event))
    unit = "step" if run.kind == LM else "round"
    words = [f"{unit} {ranges(places)}: {message}" for message, places in found.items()]
    more = [f"and {len(words) - TOLD} more warnings, in metrics.jsonl"]
    return words[:TOLD] + (more if len(words) > TOLD else [])


def _place(event: Record) -> int:
    """Where it happened, as the page counts: rounds from 1."""
    at = event.get("step", event.get("round"))
    return (at if "step" in event else at + 1) if isinstance(at, int) else 0


def progress(run: Stored) -> Iterator[str]:
    """Resumes, lines left out, and rounds or steps that were lost and done again."""
    for event in run.events("resume"):
        at, unit = _place(event), "step" if "step" in event else "round"
        yield f"the run went on at {unit} {at} from {event.get('checkpoint')}"
    if run.unread:
        lines = count(run.unread, "line")
        yield f"{lines} of metrics.jsonl left out: of no kind known here, or not of its shape"
    if run.repeated:
        unit, shift = ("step", 0) if run.kind == LM else ("round", 1)
        twice = named(unit, (n + shift for n in run.repeated))
        yield f"{twice}: more than once in metrics.jsonl, lost and done again; the last counts"


# -- federated


def findings(run: Stored) -> Iterator[str]:
    """What the numbers of a federated run betray."""
    yield from _exploded(run)
    yield from _classes(run)
    yield from _not_finite(run)
    yield from slow(*run.history.per_round("samples_per_second"), "round", "samples/s")
    gaps = _gaps(r["round"] for r in run.history.rounds)
    if gaps:
        unit = "round" if len(gaps) == 1 and gaps[0][0] == gaps[0][1] else "rounds"
        yield f"metrics.jsonl has no line of {unit} {spans(gaps)}"


def _gaps(rounds: Iterable[int]) -> list[tuple[int, int]]:
    """The first and last of those missing in a row, counted from 1; few of even a huge number."""
    there = sorted({-1, *(n for n in rounds if n >= 0)})
    return [(before + 2, n) for before, n in pairwise(there) if n > before + 1]


def _exploded(run: Stored) -> Iterator[str]:
    above = {r["round"] + 1: r.get("lambda_exploded") or 0 for r in run.history.rounds}
    rounds = [n for n, clients in above.items() if clients]
    if rounds:
        limit = "" if run.limit is None else f" {run.limit:g}"
        clients = count(max(above.values()), "client")
        yield (
            f"raw λ was above its limit{limit} in {named('round', rounds)}, of up to "
            f"{clients}{_largest(run)}"
        )


def _largest(run: Stored) -> str:
    """Whose lambda was the largest, and when."""
    known = [r for r in run.history.clients if r.get("lambda_raw") is not None]
    if not known:
        return ""
    worst = max(known, key=lambda r: float(r["lambda_raw"]))
    where = f"client {worst['client']}, round {worst['round'] + 1}"
    return f"; the largest was {number(worst['lambda_raw'])} ({where})"


CLASSES = (
    (0, "no samples", "clients without samples"),
    (1, "samples of one class only", "clients with one class only"),
)


def _classes(run: Stored) -> Iterator[str]:
    kinds = [sum(n > 0 for n in row) for row in run.label_counts or []]
    told = " ".join(warnings(run))  # the run itself may have said so
    for many, words, said in CLASSES:
        clients = [k for k, held in enumerate(kinds) if held == many]
        if clients and said not in told:
            verb = "has" if len(clients) == 1 else "have"
            yield f"{len(clients)} of {len(kinds)} clients {verb} {words}: {ranges(clients)}"


def _not_finite(run: Stored) -> Iterator[str]:
    for name in (*LOSSES, *VARIANCES):
        bad = [r for r in run.history.clients if name in r and r[name] is None]
        if bad:
            clients, rounds = ({r[key] for r in bad} for key in ("client", "round"))
            where = f"in {named('round', (n + 1 for n in rounds))}, of {named('client', clients)}"
            yield f"{name.replace('_', ' ')} was not finite (null) {where}"


def slow(at: Array, rate: Array, unit: str, of: str) -> Iterator[str]:
    """Rounds or lines whose throughput is far below the median; the first has set-up in it."""
    if len(rate) < 4:
        return
    middle = float(np.median(rate))
    low = [int(n) for n, value in zip(at[1:], rate[1:], strict=True) if value < SLOW * middle]
    if low:
        yield (
            f"throughput fell below {SLOW:.0%} of its median of {number(middle)} {of} in "
            f"{named(unit, low)}: down to {number(float(rate[1:].min()))}"
        )


# -- language models


def findings_lm(run: Stored) -> Iterator[str]:
    """What the numbers of a language-model run betray."""
    steps = run.events("lm_step")
    for kind, words in (("lm_step", "training"), ("lm_eval", "held-out")):
        bad = [r["step"] for r in run.events(kind) if "loss" in r and r["loss"] is None]
        if bad:
            yield f"the {words} loss was not finite (null) at {named('step', bad)}"
    known = [(r["step"], r["tokens_per_second"]) for r in steps if r.get("tokens_per_second")]
    table = np.array(known, dtype=np.float64).reshape(-1, 2)
    yield from slow(table[:, 0], table[:, 1], "step", "tokens/s")
    yield from _rising(run.events("lm_eval"))


def _rising(evals: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Whether the held-out loss rose from its best. The last evaluation reads all text: not it."""
    known = [r for r in evals if r.get("loss") is not None]
    losses = {r["step"]: r["loss"] for r in known if r.get("tokens") == known[0].get("tokens")}
    if not losses:
        return
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    if losses[last] > RISEN * losses[best]:
        yield (
            f"the held-out loss rose to {losses[last]:.4f} at step {last:,}, from its best of "
            f"{losses[best]:.4f} at step {best:,}"
        )

"""An algorithm in words: its formulas, its closed form and its settings, from the declaration."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from fedcore.algorithms.algorithm import Algorithm, term_name
from fedcore.algorithms.server_rules import ServerRule, name_of
from fedcore.config_section import Named
from fedcore.objective.anchors import ANCHORS
from fedcore.objective.guards import Bounded, Hinge, InverseVariance, NoGuard
from fedcore.objective.learners import GradNorm, Hypergradient, Uncertainty
from fedcore.objective.terms import Term
from fedcore.objective.weighting import Fixed, FromEntropy, LambdaRule, Slot
from fedcore.schedule import SCHEDULES

FORMULA = {"constant": "1", "linear": "1 - p", "cosine": "(1 + cos pi p)/2", "consensus": "spread"}


def formulas(algorithm: Algorithm) -> list[str]:
    """What a client minimises, and what the server makes of the clients' mean, line by line."""
    return [*_of_client(algorithm), *_of_server(algorithm.server)]


def _of_server(rule: ServerRule | None) -> list[str]:
    if rule is None:
        return []
    formula = " ".join((type(rule).__doc__ or "").split("\n\n")[0].split())
    given = ", ".join(f"{f.name} = {getattr(rule, f.name)}" for f in fields(rule))
    return [f"server, {name_of(rule)}: {formula}", f"    D the clients' mean - w, {given}"]


def _server_settings(rule: ServerRule | None) -> dict[str, Any]:
    if rule is None:
        return {}
    return {name_of(rule): {f.name: getattr(rule, f.name) for f in fields(rule)}}


def _of_client(algorithm: Algorithm) -> list[str]:
    """What a client minimises, line by line; lambda, its start and where it rests included."""
    lines = [_sum("B", algorithm.base), *map(_of_term, algorithm.base)]
    if not algorithm.align:
        return [*lines, "loss = B"]
    rule = algorithm.rule
    lines += [_sum("A", algorithm.align), *map(_of_term, algorithm.align)]
    if algorithm.anchor is not None:
        path = ANCHORS.get(algorithm.anchor).path
        walk = (
            " at the end of a path: the target is (1 - p_local) P_start + p_local a" if path else ""
        )
        lines.append(f"a: {algorithm.anchor} anchors{walk}")
    lines += [f"lambda0 = {_start(rule)}", f"loss = B + sg({_effective(rule)}) A"]
    if rule.slots:
        clock = "local epochs" if rule.clock == "epoch" else "rounds"
        lines.append(f"s(p) = {_anneal(rule)}, p the share of all {clock} done")
    return [*lines, *_learning(rule)]


def closed_form(rule: LambdaRule) -> str:
    """Where raw lambda rests for losses held at B and A."""
    if rule.learner is None:
        return "lambda stays lambda0"
    if isinstance(rule.learner, GradNorm):
        share = " / s" if Slot.WEIGHTS in rule.slots else ""
        return f"lambda* = |grad_P B| r^alpha / (|grad_P A| (2 - r^alpha)){share}"
    if isinstance(rule.learner, Hypergradient):
        return "no closed form: d E / d log lambda = 0, E the held-out base loss"
    top = "s B" if Slot.LOG in rule.slots else "B"
    bottom = "s A" if Slot.ALIGN in rule.slots else "A"
    if isinstance(rule.guard, InverseVariance):
        return f"lambda* = {top} / ({bottom} + {2 * rule.guard.gamma:g})"
    rest = f"{top} / ({bottom})" if " " in bottom else f"{top} / {bottom}"
    if isinstance(rule.guard, Hinge):
        return f"lambda* = {rest} up to {rule.guard.lambda_max:g}; above it the hinge pulls back"
    if isinstance(rule.form, Bounded):
        return f"lambda* = min({rest}, {rule.form.lambda_max:g})"
    if not isinstance(rule.guard, NoGuard):
        k = "s" if Slot.LOG in rule.slots else "1"
        return f"lambda* = rest(B, {bottom}, {k}) of the guard"
    return f"lambda* = {rest}"


def settings(algorithm: Algorithm) -> dict[str, Any]:
    """The `algorithm:` section that says the same in a configuration, without the name."""
    plain = {
        f.name: getattr(algorithm, f.name)
        for f in fields(algorithm)
        if f.name not in ("about", "base", "align", "rule", "combine_settings", "server")
    }
    terms = {
        group: [term_name(t) for t in getattr(algorithm, group)] for group in ("base", "align")
    }
    plain["server"] = _server_settings(algorithm.server)
    return terms | plain | ({"rule": _rule_settings(algorithm.rule)} if algorithm.align else {})


def _sum(letter: str, terms: tuple[Term, ...]) -> str:
    return f"{letter} = " + " + ".join(term_name(term) for term in terms)


def _of_term(term: Term) -> str:
    function = getattr(term, "func", term)
    first = (function.__doc__ or "").split("\n\n")[0]
    return f"    {term_name(term)}: {' '.join(first.split())}".rstrip(": ")


def _start(rule: LambdaRule) -> str:
    low, high = rule.start.span
    if isinstance(rule.start, FromEntropy):
        return f"{low:g} + {high - low:g} H / log2 C, H the client's label entropy in bits"
    return f"{low:g}" if isinstance(rule.start, Fixed) else _own(rule.start)


def _own(part: object) -> str:
    """A part of a kind that stands in somebody's own file: what it says of itself."""
    return f"{part!r} ({' '.join((type(part).__doc__ or '').split())})"


def _anneal(rule: LambdaRule) -> str:
    name = _schedule(rule)
    return FORMULA[name] if isinstance(name, str) and name in FORMULA else _own(rule.anneal)


def _schedule(rule: LambdaRule) -> Named | None:
    """What a configuration calls it; None if it has no name."""
    for name, schedule in SCHEDULES:
        if schedule == rule.anneal:
            return name
        if type(schedule) is type(rule.anneal) and is_dataclass(rule.anneal):
            return {name: {f.name: getattr(rule.anneal, f.name) for f in fields(rule.anneal)}}
    return None


def _effective(rule: LambdaRule) -> str:
    raw = "lambda"
    if rule.has_sigma_loss:
        raw = "e^(l-a)"
        if isinstance(rule.form, Bounded):
            raw = f"{rule.form.lambda_max:g} sigmoid(theta)"
    return f"s {raw}" if Slot.WEIGHTS in rule.slots else raw


def _learning(rule: LambdaRule) -> list[str]:
    """How lambda is moved, and where it rests."""
    lines = []
    if isinstance(rule.learner, Uncertainty):
        d, k = ("s " if slot in rule.slots else "" for slot in (Slot.ALIGN, Slot.LOG))
        guard = f" + {_guard(rule)}" if _guard(rule) else ""
        sigma = f"0.5 e^-l sg(B) + 0.5 {d}e^-a sg(A) + 0.5 (l + {k}a){guard}"
        lines.append(f"loss of l, a (log-variances) = {sigma}")
    if isinstance(rule.learner, GradNorm):
        alpha = rule.learner.asymmetry
        lines.append(
            f"log lambda descends |G_A - mean(G_B, G_A) r^alpha|, G_A = lambda |grad_P A|, "
            f"r the relative inverse training rate of A, alpha = {alpha:g}"
        )
    if isinstance(rule.learner, Hypergradient):
        given = rule.learner
        lines.append(
            f"log lambda <- log lambda - {given.rate:g} dE(w_{given.horizon})/dlog lambda every "
            f"{given.horizon} step(s), E the base loss of {given.held_out:.0%} held-out samples"
        )
    return [*lines, closed_form(rule)]


def _guard(rule: LambdaRule) -> str:
    if isinstance(rule.guard, InverseVariance):
        return f"{rule.guard.gamma:g} e^-a"
    if isinstance(rule.guard, Hinge):
        return f"{rule.guard.gamma:g} relu(e^(l-a) - {rule.guard.lambda_max:g})"
    return "" if isinstance(rule.guard, NoGuard) else _own(rule.guard)


def _rule_settings(rule: LambdaRule) -> dict[str, Any]:
    """All that a configuration has a word for; the rest stays as it is declared."""
    found = {"start": _start_settings(rule), "learned": _learner_settings(rule)}
    found |= {
        "anneal": _schedule(rule),
        "slots": [slot.name.lower() for slot in rule.slots if slot.name],
        "clock": rule.clock,
        "guard": _guard_settings(rule),
        "bound": rule.form.lambda_max if isinstance(rule.form, Bounded) else 0,
    }
    return {key: value for key, value in found.items() if value is not None}


def _start_settings(rule: LambdaRule) -> Any:
    low, high = rule.start.span
    if isinstance(rule.start, FromEntropy):
        return {"entropy": {"low": low, "high": high}}
    return {"fixed": low} if isinstance(rule.start, Fixed) else None


def _guard_settings(rule: LambdaRule) -> Any:
    if isinstance(rule.guard, InverseVariance):
        return {"inverse_variance": rule.guard.gamma}
    if isinstance(rule.guard, Hinge):
        return {"hinge": {"gamma": rule.guard.gamma, "lambda_max": rule.guard.lambda_max}}
    return {} if isinstance(rule.guard, NoGuard) else None


def _learner_settings(rule: LambdaRule) -> Any:
    if rule.learner is None:
        return False
    given = {f.name: getattr(rule.learner, f.name) for f in fields(rule.learner)}
    return {type(rule.learner).__name__.lower(): given}

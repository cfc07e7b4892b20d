"""Algorithm: a declaration of what a client minimises and what the server does with its upload."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedcore.config import AlgorithmConfig, RuleConfig
from fedcore.errors import ConfigError
from fedcore.objective.anchors import ANCHORS
from fedcore.objective.terms import TERMS, Term
from fedcore.objective.weighting import (
    Fixed,
    FromEntropy,
    Guard,
    Hinge,
    InverseVariance,
    LambdaRule,
    NoGuard,
    Slot,
)
from fedcore.registry import Registry, nearest
from fedcore.schedule import SCHEDULES


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Client half (terms, anchor, rule) and server half (mode, combine, readout) as data."""

    about: str  # one line for `fedcore algorithms`
    base: tuple[Term, ...]
    align: tuple[Term, ...] = ()
    anchor: str = "etf"  # in ANCHORS
    rule: LambdaRule = LambdaRule()
    mode: Literal["one_shot", "averaged"] = "one_shot"
    combine: str = "mean_of_present"  # in server.combine.COMBINES
    readout: str = "feature_ensemble"  # the read-out that test_accuracy reports

    @property
    def terms(self) -> tuple[Term, ...]:
        """All loss terms, base first."""
        return self.base + self.align

    @property
    def term_names(self) -> tuple[str, ...]:
        """Their names, in the same order."""
        return tuple(term_name(term) for term in self.terms)


ALGORITHMS: Registry[Algorithm] = Registry("algorithm.name", "fedcore.algorithms")


def term_name(term: Term) -> str:
    """The name a term is known by, with or without settings."""
    function = term.func if isinstance(term, functools.partial) else term
    return str(function.__name__)


def resolve(config: AlgorithmConfig) -> Algorithm:
    """The declared algorithm with this run's changes; `ConfigError` for a name nobody declared."""
    declared = ALGORITHMS.get(config.name)
    changes: dict[str, Any] = {
        key: value
        for key in ("mode", "anchor", "combine", "readout")
        if (value := getattr(config, key)) is not None
    }
    for group in ("base", "align"):
        names = getattr(config, group)
        if names is not None:
            changes[group] = tuple(TERMS.get(name, f"algorithm.{group}") for name in names)
    algorithm = replace(declared, **changes, rule=_resolve_rule(declared.rule, config.rule))
    ANCHORS.get(algorithm.anchor)
    _check(algorithm, config)
    unused = set(config.terms) - set(algorithm.term_names)
    if unused:
        name = sorted(unused)[0]
        way_out = nearest(name, list(algorithm.term_names))
        raise ConfigError("algorithm.terms", name, f"a loss term of {config.name}", way_out)
    return replace(
        algorithm,
        base=_with_settings(algorithm.base, config.terms),
        align=_with_settings(algorithm.align, config.terms),
    )


def _check(algorithm: Algorithm, config: AlgorithmConfig) -> None:
    """`ConfigError` for a combination that would run and mean nothing."""
    names = algorithm.term_names
    if not algorithm.base:
        raise ConfigError("algorithm.base", [], "at least one loss term", "[cross_entropy]")
    if len(set(names)) < len(names):
        raise ConfigError("algorithm.base", list(names), "each loss term once", "leaving one out")
    rule, key = algorithm.rule, "algorithm.align"
    if not algorithm.align and (rule.learned or rule.start != Fixed(0.0)):
        want = f"a term for lambda to weigh: {config.name} with this rule has one"
        raise ConfigError(key, [], want, "[present_proto_to_anchor], or no algorithm.rule")


def _with_settings(
    terms: Iterable[Term], settings: dict[str, dict[str, float]]
) -> tuple[Term, ...]:
    return tuple(_with_setting(term, settings.get(term_name(term), {})) for term in terms)


def _with_setting(term: Term, setting: dict[str, float]) -> Term:
    known = [p for p in inspect.signature(term).parameters if p != "view"]
    for key, value in setting.items():
        if key not in known:
            full = f"algorithm.terms.{term_name(term)}.{key}"
            way_out = nearest(key, known) if known else "no setting: that term has none"
            raise ConfigError(full, value, "a setting of that term", way_out)
        if not 0 < value < float("inf"):
            full = f"algorithm.terms.{term_name(term)}.{key}"
            raise ConfigError(full, value, "a number above 0", "1.0")
    return functools.partial(term, **setting) if setting else term


def _resolve_rule(rule: LambdaRule, config: RuleConfig) -> LambdaRule:
    changes: dict[str, Any] = {}
    if config.start is not None:
        entropy, fixed = config.start.entropy, config.start.fixed
        changes["start"] = (
            FromEntropy(entropy.low, entropy.high) if entropy else Fixed(float(fixed or 0.0))
        )
    if config.anneal is not None:
        changes["anneal"] = SCHEDULES.get(config.anneal)
    if config.slots is not None:
        changes["slots"] = functools.reduce(
            Slot.__or__, (Slot[s.upper()] for s in config.slots), Slot.NONE
        )
    if config.guard is not None:
        changes["guard"] = _resolve_guard(config.guard.inverse_variance, config.guard.hinge)
    for key in ("learned", "clock"):
        if getattr(config, key) is not None:
            changes[key] = getattr(config, key)
    return replace(rule, **changes)


def _resolve_guard(inverse_variance: float | None, hinge: Any) -> Guard:
    if inverse_variance is not None:
        return InverseVariance(inverse_variance)
    return Hinge(hinge.gamma, hinge.lambda_max) if hinge is not None else NoGuard()

"""resolve: the declared algorithm with what a configuration changes in it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedcore.algorithms.algorithm import ALGORITHMS, Algorithm, term_name
from fedcore.algorithms.server_rules import SERVER_RULES, ServerRule
from fedcore.config_algorithm import AlgorithmConfig, HingeConfig, LearnedConfig, RuleConfig
from fedcore.errors import ConfigError
from fedcore.objective.anchors import ANCHORS
from fedcore.objective.guards import (
    Bounded,
    Guard,
    Hinge,
    InverseVariance,
    LogVariances,
    NoGuard,
)
from fedcore.objective.learners import GradNorm, Hypergradient, Learner, Uncertainty
from fedcore.objective.terms import TERMS, Term, reads_anchors, shape_of
from fedcore.objective.weighting import Fixed, FromEntropy, LambdaRule, Slot
from fedcore.registry import nearest
from fedcore.schedule import schedule_of
from fedcore.settings import check_settings

PLAIN = (
    "mode",
    "anchor",
    "classifier",
    "upload",
    "control_variates",
    "combine",
    "fuse",
    "readout",
)
"""Fields of an algorithm that a configuration replaces as they are."""

OF_HOLDERS = ("mean_of_present", "by_samples")
"""Combine rules that look at the holders of a class only."""


def resolve(config: AlgorithmConfig) -> Algorithm:
    """The declared algorithm with this run's changes; `ConfigError` for a name nobody declared."""
    declared = ALGORITHMS.get(config.name)
    changes: dict[str, Any] = {
        key: value for key in PLAIN if (value := getattr(config, key)) is not None
    }
    for group in ("base", "align"):
        names = getattr(config, group)
        if names is not None:
            changes[group] = tuple(TERMS.get(name, f"algorithm.{group}") for name in names)
    if config.combine_settings:
        changes["combine_settings"] = tuple(sorted(config.combine_settings.items()))
    if config.server is not None:
        changes["server"] = _resolve_server(declared.server, config.server)
    ruled = config.rule != RuleConfig() or declared.rule != LambdaRule()
    if ruled and not changes.get("align", declared.align):
        want = "a term for lambda to weigh: without one no rule can act"
        way_out = "[present_proto_to_anchor], or an algorithm without a rule"
        raise ConfigError("algorithm.align", [], want, way_out)
    algorithm = replace(declared, **changes, rule=_resolve_rule(declared.rule, config.rule))
    _check(algorithm)
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


def _check(algorithm: Algorithm) -> None:
    """`ConfigError` for a combination that would run and mean nothing."""
    names, rule = algorithm.term_names, algorithm.rule
    if algorithm.anchor is not None:
        ANCHORS.get(algorithm.anchor)
    if not algorithm.base:
        raise ConfigError("algorithm.base", [], "at least one loss term", "[cross_entropy]")
    if len(set(names)) < len(names):
        raise ConfigError("algorithm.base", list(names), "each loss term once", "leaving one out")
    for term in algorithm.terms:
        if shape := shape_of(term):
            want = f"a loss term that gives one number, and this gives {list(shape)}"
            raise ConfigError("algorithm.base", term_name(term), want, "view.mean(...) of the rows")
    if algorithm.anchor is None and _needs_anchors(algorithm):
        raise ConfigError("algorithm.anchor", None, "anchors, since the losses need some", "etf")
    if algorithm.control_variates and algorithm.mode != "averaged":
        want = "averaged, since control variates correct the way to an averaged model"
        raise ConfigError("algorithm.mode", algorithm.mode, want, "averaged")
    if algorithm.control_variates and algorithm.fuse != "mean":
        want = "mean, since control variates are not matched with the neurons"
        raise ConfigError("algorithm.fuse", algorithm.fuse, want, "mean")
    if algorithm.server is not None and algorithm.mode != "averaged":
        want = "averaged, since algorithm.server steps from an averaged model"
        raise ConfigError("algorithm.mode", algorithm.mode, want, "averaged")
    if algorithm.server is not None and algorithm.fuse != "mean":
        want = "mean, since algorithm.server goes by how far the clients' mean has come"
        raise ConfigError("algorithm.fuse", algorithm.fuse, want, "mean")
    if algorithm.upload == "mean_features" and algorithm.combine not in OF_HOLDERS:
        want = "a rule that leaves out clients without the class: they have no mean feature"
        raise ConfigError("algorithm.combine", algorithm.combine, want, "by_samples")
    if algorithm.classifier == "anchors" and isinstance(rule.learner, GradNorm):
        want = "prototypes, since gradnorm balances gradients at them"
        raise ConfigError("algorithm.classifier", "anchors", want, "prototypes")


def _needs_anchors(algorithm: Algorithm) -> bool:
    fixed, drawn = algorithm.classifier == "anchors", algorithm.combine == "server_optimised"
    return fixed or drawn or any(map(reads_anchors, algorithm.terms))


def _with_settings(
    terms: Iterable[Term], settings: dict[str, dict[str, float]]
) -> tuple[Term, ...]:
    return tuple(_with_setting(term, settings.get(term_name(term), {})) for term in terms)


def _with_setting(term: Term, setting: dict[str, float]) -> Term:
    taken = check_settings(term, setting, f"algorithm.terms.{term_name(term)}")
    return functools.partial(term, **taken) if taken else term


def _resolve_server(
    declared: ServerRule | None, given: Mapping[str, Mapping[str, float]]
) -> ServerRule | None:
    """The rule of that name. Settings that are not given stay the algorithm's own, if it has it."""
    for name, settings in given.items():  # one, or none
        kind = SERVER_RULES.get(name)
        taken = check_settings(kind, settings, f"algorithm.server.{name}")
        if declared is not None and type(declared) is kind:
            return replace(declared, **taken)
        return kind(**taken)
    return None


def _resolve_rule(rule: LambdaRule, config: RuleConfig) -> LambdaRule:
    changes: dict[str, Any] = {}
    if config.start is not None:
        entropy, fixed = config.start.entropy, config.start.fixed
        changes["start"] = (
            FromEntropy(entropy.low, entropy.high) if entropy else Fixed(float(fixed or 0.0))
        )
    if config.anneal is not None:
        changes["anneal"] = schedule_of(config.anneal)
    if config.slots is not None:
        changes["slots"] = functools.reduce(
            Slot.__or__, (Slot[s.upper()] for s in config.slots), Slot.NONE
        )
    if config.guard is not None:
        changes["guard"] = _resolve_guard(config.guard.inverse_variance, config.guard.hinge)
    if config.learned is not None:
        changes["learner"] = _resolve_learner(config.learned)
    if config.bound is not None:
        changes["form"] = Bounded(config.bound) if config.bound else LogVariances()
    if config.clock is not None:
        changes["clock"] = config.clock
    return replace(rule, **changes)


def _resolve_guard(inverse_variance: float | None, hinge: HingeConfig | None) -> Guard:
    if inverse_variance is not None:
        return InverseVariance(inverse_variance)
    return Hinge(hinge.gamma, hinge.lambda_max) if hinge is not None else NoGuard()


def _resolve_learner(learned: LearnedConfig) -> Learner | None:
    if learned.gradnorm is not None:
        return GradNorm(learned.gradnorm.asymmetry)
    if learned.hypergradient is not None:
        given = learned.hypergradient
        return Hypergradient(given.horizon, given.rate, given.held_out)
    return Uncertainty() if learned.uncertainty is not None else None

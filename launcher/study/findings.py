"""What the versions are said to do with lambda, held against runs: each claim a function.

A claim says what was expected, measures it, and is `seen` or `not seen` by a criterion that it
states. Medians are over the clients of all runs.
"""

from __future__ import annotations

import numpy as np

from fedcore.telemetry.history import Array
from launcher.study import measure
from launcher.study.finding import (
    EXPLODES,
    NEAR,
    OVERSHOOT,
    RISE,
    SEEDS,
    SLOPE,
    Finding,
    beyond,
    both,
    near,
    points,
    show,
    within,
)
from launcher.study.measure import ENSEMBLES, Measure, Version, Versions


def all_findings(versions: Versions, lambda_max: float, gamma: float) -> list[Finding]:
    """Every claim; lambda_max: of v14's hinge; gamma: of v13's guard."""
    return [
        v10_settles(versions),
        v11_cancels(versions, "v11_linear"),
        v11_cancels(versions, "v11_cosine"),
        v12_explodes(versions),
        v12_unlearns(versions),
        v12_hurts(versions),
        v12_log_anneals(versions),
        v13_bound_is_far(versions, gamma),
        v14_is_bounded(versions, lambda_max),
    ]


def v10_settles(versions: Versions) -> Finding:
    """Does a learned lambda come to rest near B/A, and stay?"""
    v10 = versions.get("v10", {})
    level = Measure.of("λ in the last round", measure.last(v10, "lambda_effective"))
    rest = Measure.of("last λ over B/A", measure.over_equilibrium(v10))
    drift = Measure.of("last λ over λ after the warm-up", _settled(v10))
    return Finding(
        "v10_settles",
        "v10 settles at a value that is not zero",
        "Learned without annealing, λ finds the ratio of the two losses, B/A, and stays there.",
        (level, rest, drift),
        f"median of λ over B/A within a factor {NEAR} of 1, and λ changes by less than a factor 2 "
        "after the warm-up",
        both(near(rest), within(drift, 0.5, 2.0)),
        f"λ ends at {show(level)}, {show(rest)} times B/A; since the warm-up it moved by a factor "
        f"{show(drift)}.",
    )


def v11_cancels(versions: Versions, name: str) -> Finding:
    """Does the raw lambda of v11 grow as 1/s, so that the effective one does not fall?"""
    v11, v10 = versions.get(name, {}), versions.get("v10", {})
    # B/A itself moves over a run: what is left without it is what s does
    slope = Measure.of("slope of log (raw λ · A/B) over log 1/s", measure.slope_without_losses(v11))
    whole = Measure.of("slope of log raw λ over log 1/s", measure.slope(v11, "lambda_raw"))
    raw = Measure.of("raw λ, last over after the warm-up", _settled(v11, "lambda_raw"))
    factor = Measure.of("s, last over after the warm-up", _settled(v11, "annealing_factor"))
    effective = Measure.of("effective λ, last over after the warm-up", _settled(v11))
    same = Measure.of("effective λ over v10's", measure.ratio(v11, v10, "lambda_effective"))
    return Finding(
        f"{name}_cancels",
        f"{name}: learning cancels the annealing",
        "s(p) stands on the align loss in both losses, so raw λ settles at B/(sA), as 1/s, "
        "and s times it is v10's B/A again.",
        (slope, whole, raw, factor, effective, same),
        f"median slope within {SLOPE} of 1, and median effective λ within a factor {NEAR} of v10's "
        "(same seed and client)",
        both(within(slope, 1 - SLOPE, 1 + SLOPE), near(same)),
        f"while s fell to {show(factor)} of its value, raw λ grew by a factor {show(raw)} (slope "
        f"over 1/s, without the drift of B/A: {show(slope)}); effective λ moved by a factor "
        f"{show(effective)} and is {show(same)} times v10's.",
    )


def v12_explodes(versions: Versions) -> Finding:
    """Does lambda run away when s(p) shrinks the align term of the sigma loss alone?"""
    v12, v10 = versions.get("v12", {}), versions.get("v10", {})
    growth = Measure.of("λ, last over first round", _growth(v12))
    without = Measure.of("the same of v10", _growth(v10))
    slope = Measure.of("slope of log λ over log 1/s", measure.slope(v12, "lambda_raw"))
    top = Measure.single("largest λ of any client", measure.largest(v12, "lambda_effective"))
    return Finding(
        "v12_explodes",
        "v12's λ explodes",
        "s(p) stands on the align term of the sigma loss alone, so λ settles at B/(sA), which has "
        "no bound as s goes to 0; and a strong pull shrinks A, which drives λ further.",
        (growth, without, slope, top),
        f"median growth at least {EXPLODES:g}, and at least 3 times v10's",
        both(within(growth, EXPLODES), beyond(growth, without, 3.0)),
        f"λ grew by a factor {show(growth)} (v10: {show(without)}), slope {show(slope)} over 1/s; "
        f"a single client reached {show(top)}.",
    )


def v12_unlearns(versions: Versions) -> Finding:
    """Does the exploding lambda undo what a client has learned, against v12_log?"""
    v12, log = versions.get("v12", {}), versions.get("v12_log", {})
    base = Measure.of("base loss over v12_log's", measure.ratio(v12, log, "base_loss"))
    away = np.array(list(measure.paired(v12, log, "local_mean").values()))
    alone = Measure.of("accuracy of single clients, in points over v12_log's", 100 * away)
    worse = bool((away < 0).all()) if away.size >= SEEDS else None
    return Finding(
        "v12_unlearns",
        "v12's explosion undoes local training",
        "With a huge λ the clipped gradient only pulls towards the anchors: the base loss rises "
        "again, and a client alone classifies worse.",
        (base, alone),
        f"median base loss at least {1 + RISE:g} times v12_log's (same seed and client), and the "
        f"mean accuracy of single clients lower in every seed (at least {SEEDS})",
        both(within(base, 1 + RISE), worse),
        f"the base loss ends at {show(base)} times v12_log's; accuracy of single clients, v12 "
        f"minus v12_log by seed: {points(away)}.",
    )


def v12_hurts(versions: Versions) -> Finding:
    """Does the exploding lambda cost accuracy, against the same version annealed on the log?"""
    v12, log = versions.get("v12", {}), versions.get("v12_log", {})
    away = {name: measure.paired(v12, log, name) for name in ENSEMBLES}
    seeds = sorted(set.intersection(*(set(values) for values in away.values())))
    mean = np.array([np.mean([away[name][seed] for name in ENSEMBLES]) for seed in seeds])
    percent = {name: 100 * np.array(list(values.values())) for name, values in away.items()}
    measures = [Measure.of(f"{name}, in points", values) for name, values in percent.items()]
    overall = Measure.of("mean of the three ensembles, in points", 100 * mean)
    return Finding(
        "v12_hurts",
        "v12's explosion costs ensemble accuracy",
        "Clients that classify worse should also do so together.",
        (overall, *measures),
        f"v12 below v12_log in every seed (at least {SEEDS}), in the mean of the three ensembles",
        bool((mean < 0).all()) if mean.size >= SEEDS else None,
        f"v12 minus v12_log, paired by seed, in the mean of the three ensembles: {points(mean)}.",
    )


def v12_log_anneals(versions: Versions) -> Finding:
    """Does lambda fall with s(p) when that stands on the log term?"""
    log = versions.get("v12_log", {})
    growth = Measure.of("λ, last over first round", _growth(log))
    factor = Measure.of("s, last over first round", _growth(log, "annealing_factor"))
    rest = Measure.of("last λ over sB/A", measure.over_equilibrium(log))
    return Finding(
        "v12_log_anneals",
        "v12_log anneals",
        "With s(p) on the log term instead, λ settles at sB/A and falls with s.",
        (growth, factor, rest),
        f"median λ ends below half of its first value, and within a factor {NEAR} of sB/A",
        both(within(growth, 0.0, 0.5), near(rest)),
        f"λ fell to {show(growth)} of its first value while s fell to {show(factor)}; it ends at "
        f"{show(rest)} times sB/A.",
    )


def v13_bound_is_far(versions: Versions, gamma: float) -> Finding:
    """Does the guard of v13 hold, and does it change anything?"""
    v13, v12 = versions.get("v13", {}), versions.get("v12", {})
    bound = Measure.single("largest bound B/2γ", measure.largest(v13, "base_loss", -1) / 2 / gamma)
    top = Measure.single("largest λ of any client", measure.largest(v13, "lambda_raw"))
    growth = Measure.of("λ, last over first round", _growth(v13))
    same = Measure.of("last λ over v12's", measure.ratio(v13, v12, "lambda_raw"))
    below = beyond(bound, top, 1 / OVERSHOOT)
    return Finding(
        "v13_bound_is_far",
        "v13's guard bounds λ, but far too high",
        f"γ/σ²_align with γ = {gamma:g} bounds λ by B/2γ: too high to keep λ from exploding.",
        (bound, top, growth, same),
        f"the largest λ is below {OVERSHOOT:g} times the largest client's bound, and λ grows by "
        f"{EXPLODES:g} or more (median)",
        both(below, within(growth, EXPLODES)),
        f"the bound is {show(bound)}, the largest λ was {show(top)}; λ grew by a factor "
        f"{show(growth)} and ends at {show(same)} times v12's.",
    )


def v14_is_bounded(versions: Versions, lambda_max: float) -> Finding:
    """Does lambda of v14 stay below lambda_max, and fall?"""
    v14, v12 = versions.get("v14", {}), versions.get("v12", {})
    top = Measure.single("largest raw λ of any client", measure.largest(v14, "lambda_raw"))
    other = Measure.single("the same of v12", measure.largest(v12, "lambda_raw"))
    growth = Measure.of("λ, last over first round", _growth(v14))
    below = None if top.median is None else top.median <= lambda_max
    return Finding(
        "v14_is_bounded",
        "v14 stays bounded",
        f"v12_log with a cosine and a hinge above λ_max = {lambda_max:g}: λ falls, and is bounded.",
        (top, other, growth),
        f"no client's raw λ ever exceeds {lambda_max:g}, and median λ ends below its first value",
        both(below, within(growth, 0.0, 1.0)),
        f"the largest raw λ was {show(top)} (v12: {show(other)}); λ ended at {show(growth)} of its "
        "first value.",
    )


def _growth(version: Version, field: str = "lambda_raw") -> Array:
    return measure.last_over_first(version, field)


def _settled(version: Version, field: str = "lambda_effective") -> Array:
    return measure.last_over_settled(version, field)

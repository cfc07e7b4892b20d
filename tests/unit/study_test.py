"""Does each finding of the study say `seen` when it is there, and `not seen` when it is not?"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from fedcore.telemetry.history import History
from launcher.study import findings, measure
from launcher.study.finding import Finding
from launcher.study.numbers import accuracy_rows, lambda_rows
from launcher.words import number

ROUNDS, CLIENTS = 10, 3
Rule = Callable[[float, float], float]  # s and B/A -> a value
FALLING, CONSTANT = (lambda t: 1 - t / ROUNDS), (lambda t: 1.0)


def run(
    raw: Rule,
    rest: Rule | None = None,
    s=FALLING,
    weights: bool = False,
    accuracy: float = 0.8,
    loss: float = 2.0,
):
    """A history in which raw lambda is a function of s and of each client's own B/A."""
    clients = []
    for t in range(ROUNDS):
        for k in range(CLIENTS):
            base, align = loss + k, 0.5
            lam = raw(s(t), base / align)
            clients.append(
                {
                    "round": t,
                    "client": k,
                    "base_loss": base,
                    "align_loss": align,
                    "lambda_raw": lam,
                    "lambda_effective": lam * (s(t) if weights else 1.0),
                    "lambda_equilibrium": (rest or raw)(s(t), base / align),
                    "annealing_factor": s(t),
                }
            )
    scores = dict.fromkeys([*measure.ENSEMBLES, "local_mean"], accuracy)
    rounds = [{"round": t, "accuracy": scores, "prototype_std": 0.1} for t in range(ROUNDS)]
    return History("made up", clients, rounds)


def version(*args, **changes) -> dict[int, History]:
    return {seed: run(*args, **changes) for seed in range(3)}


V10 = version(lambda s, r: r, s=CONSTANT)
GROWS = version(lambda s, r: r / s**1.5)
FALLS = version(lambda s, r: r * s, accuracy=0.9)

SEEN: dict[str, Finding] = {
    "v10": findings.v10_settles({"v10": V10}),
    "v11": findings.v11_cancels(
        {"v10": V10, "v11_linear": version(lambda s, r: r / s, weights=True)}, "v11_linear"
    ),
    "v12": findings.v12_explodes({"v10": V10, "v12": GROWS}),
    "unlearning": findings.v12_unlearns(
        {"v12": version(lambda s, r: r / s, loss=3.0), "v12_log": FALLS}
    ),
    "accuracy": findings.v12_hurts({"v12": GROWS, "v12_log": FALLS}),
    "v12_log": findings.v12_log_anneals({"v12_log": FALLS}),
    "v13": findings.v13_bound_is_far({"v12": GROWS, "v13": GROWS}, 1e-5),
    "v14": findings.v14_is_bounded({"v12": GROWS, "v14": FALLS}, 50.0),
}

NOT_SEEN: dict[str, Finding] = {
    "v10 away from B/A": findings.v10_settles({"v10": version(lambda s, r: 2 * r, lambda s, r: r)}),
    "v10 still moving": findings.v10_settles({"v10": version(lambda s, r: r / s)}),
    "v11 with an effective lambda that falls": findings.v11_cancels(
        {"v10": V10, "v11_linear": version(lambda s, r: r, weights=True)}, "v11_linear"
    ),
    "v12 at rest": findings.v12_explodes({"v10": V10, "v12": V10}),
    "v12 no more than v10": findings.v12_explodes({"v10": GROWS, "v12": GROWS}),
    "v12 with a base loss as low": findings.v12_unlearns({"v12": GROWS, "v12_log": FALLS}),
    "v12 with clients as good": findings.v12_unlearns(
        {"v12": version(lambda s, r: r / s, loss=3.0), "v12_log": V10}
    ),
    "v12 no worse": findings.v12_hurts({"v12": FALLS, "v12_log": GROWS}),
    "v12_log at rest": findings.v12_log_anneals({"v12_log": V10}),
    "v13 above its bound": findings.v13_bound_is_far({"v12": GROWS, "v13": GROWS}, 1.0),
    "v13 at rest": findings.v13_bound_is_far({"v12": GROWS, "v13": V10}, 1e-5),
    "v14 above lambda_max": findings.v14_is_bounded({"v12": GROWS, "v14": FALLS}, 2.0),
    "v14 growing": findings.v14_is_bounded({"v12": GROWS, "v14": GROWS}, 1e6),
}


@pytest.mark.parametrize("case", SEEN)
def test_what_is_there_is_seen(case: str) -> None:
    assert SEEN[case].verdict == "seen", SEEN[case].told


@pytest.mark.parametrize("case", NOT_SEEN)
def test_what_is_not_there_is_not_seen(case: str) -> None:
    assert NOT_SEEN[case].verdict == "not seen", NOT_SEEN[case].told


def test_without_runs_there_is_no_verdict() -> None:
    found = findings.all_findings({}, 50.0, 1e-5)
    assert {f.verdict for f in found} == {"no data"}
    assert all("nan" not in f.told for f in found)


def test_one_pair_of_runs_says_nothing_of_accuracy() -> None:
    one = {"v12": {0: GROWS[0]}, "v12_log": {0: FALLS[0]}}
    assert findings.v12_hurts(one).verdict == "no data"


def test_slopes_are_those_of_the_power_law() -> None:
    assert measure.slope(GROWS, "lambda_raw") == pytest.approx([1.5] * 9)
    assert measure.slope(FALLS, "lambda_raw") == pytest.approx([-1] * 9)
    assert measure.slope(V10, "lambda_raw").size == 0  # a constant s has none


def test_accuracy_is_paired_by_seed() -> None:
    own = {0: run(lambda s, r: r, accuracy=0.7), 1: run(lambda s, r: r, accuracy=0.6)}
    other = {1: run(lambda s, r: r, accuracy=0.5), 2: run(lambda s, r: r, accuracy=0.9)}
    assert measure.paired(own, other, "iffi") == pytest.approx({1: 0.1})


def test_a_client_that_was_never_drawn_does_not_count() -> None:
    half = run(lambda s, r: r)
    half.clients[:] = [c for c in half.clients if c["client"] != 1 or c["round"] > 5]
    assert measure.last_over_first({0: half}, "lambda_raw") == pytest.approx([1, 1])


def test_the_table_keeps_a_version_without_a_run() -> None:
    lambdas, accuracies = (make({"v10": V10, "v12": {}}) for make in (lambda_rows, accuracy_rows))
    assert [row["seeds"] for row in lambdas] == ["3", "0"]
    assert lambdas[0]["raw λ"] == "6"  # median of 4, 6, 8
    assert accuracies[1] == dict.fromkeys(accuracies[0], "-") | {"version": "v12"}


def test_findings_are_json_without_nan() -> None:
    from dataclasses import asdict

    for finding in [*SEEN.values(), *findings.all_findings({}, 50.0, 1e-5)]:
        json.dumps(asdict(finding), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (np.nan, "-"), (12345.6, "12,346"), (0.01234, "0.0123")]
)
def test_numbers_read_well(value: float | None, text: str) -> None:
    assert number(value) == text

"""Does the description of an algorithm say what it is?"""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from fedcore.algorithms import ALGORITHMS, resolve
from fedcore.algorithms.algorithm import Algorithm
from fedcore.algorithms.describe import closed_form, formulas, settings
from fedcore.config_algorithm import AlgorithmConfig
from fedcore.objective.learners import Uncertainty
from fedcore.schedule import progress
from launcher.commands import app


def own_parts(algorithm: Algorithm) -> bool:
    """Whether a start, schedule or guard is of a class that a configuration has no word for."""
    rule = settings(algorithm).get("rule", {})
    return bool(rule) and not {"start", "anneal", "guard"} <= rule.keys()


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_the_settings_say_the_same_as_the_declaration(name: str) -> None:
    declared = ALGORITHMS.get(name)
    said = AlgorithmConfig.model_validate({"name": "v14", **settings(declared)})
    if not declared.align or own_parts(declared):  # cannot be said over v14's rule
        said = AlgorithmConfig.model_validate({"name": name, **settings(declared)})
    found = resolve(said)
    plain = ("base", "align", "mode", "classifier", "upload", "combine", "fuse", "readout")
    for key in (*plain, "server"):
        assert getattr(found, key) == getattr(declared, key)
    if declared.align:
        assert found.rule == declared.rule


@pytest.mark.parametrize(
    "name",
    [n for n, a in ALGORITHMS if isinstance(a.rule.learner, Uncertainty) and not own_parts(a)],
)
def test_the_printed_closed_form_is_the_computed_one(name: str) -> None:
    """B = 3, A = 0.2 at half time: the text is evaluated."""
    rule = ALGORITHMS.get(name).rule
    half = torch.tensor(0.5, dtype=torch.float64)
    at = progress(0, 1, 0, 1, 1.0, half)._replace(p=half, by_round=half)
    B, A, none = torch.tensor(3.0), torch.tensor(0.2), torch.tensor(torch.nan)
    text = closed_form(rule).removeprefix("lambda* = ").split(" up to")[0]
    text = text.replace("s B", "s * B").replace("s A", "s * A")
    wanted = eval(text, {"B": 3.0, "A": 0.2, "s": float(rule.factor(at)), "min": min})
    assert rule.equilibrium(B, A, none, none, at).item() == pytest.approx(wanted, rel=1e-6)


def test_the_command_lists_all_and_explains_one() -> None:
    listed = CliRunner().invoke(app, ["algorithms"], env={"COLUMNS": "200"}).output
    assert all(name in listed for name in ALGORITHMS.names())
    assert "base: [dot_regression]" in listed
    told = CliRunner().invoke(app, ["algorithms", "v13"]).output
    assert "lambda* = B / (s A + 2e-05)" in told
    assert "0.5 s e^-a sg(A)" in told
    assert "inverse_variance" in told
    server = CliRunner().invoke(app, ["algorithms", "fedadam"]).output
    assert "w <- w + lr m / (sqrt v + tau)" in server
    assert "beta2 = 0.99" in server
    wrong = CliRunner().invoke(app, ["algorithms", "v41"])
    assert wrong.exit_code == 2
    assert "Try v4" in wrong.output


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_algorithm_has_formulas_and_one_line(name: str) -> None:
    algorithm = ALGORITHMS.get(name)
    assert 10 < len(algorithm.about) <= 100
    assert "\n" not in algorithm.about
    assert formulas(algorithm)[0].startswith("B = ")

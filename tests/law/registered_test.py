"""Do loss terms and schedules, whoever registered them, keep what a step rests on?

For those in a file of your own: `pytest tests/law --extension mine.py`.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from fedcore.objective.terms import TERMS
from fedcore.objective.view import View
from fedcore.schedule import SCHEDULES, Progress
from fedcore.seeds import generator

CLASSES, WIDTH, ROWS, CLIENTS = 4, 6, 10, 3
FILLED = 6  # rows from here on are filling


def draw(purpose: str, *shape: int) -> Tensor:
    return torch.randn(CLIENTS, *shape, generator=generator(5, 0, 0, purpose), dtype=torch.float64)


def stacked(weight: Tensor, filling: float = 0.0) -> View:
    """A batch of each of three clients [K, ...]; `filling` moves the features of filling rows."""
    raw = draw("features", ROWS, WIDTH)
    raw[:, FILLED:] = raw[:, FILLED:] + filling
    z, P = F.normalize(raw, dim=2), draw("prototypes", CLASSES, WIDTH)
    y = torch.randint(CLASSES, (CLIENTS, ROWS), generator=generator(5, 0, 0, "labels"))
    params = {"encoder": draw("encoder", 5), "prototypes": P}
    common = {"encoder": draw("common", 5), "prototypes": draw("global", CLASSES, WIDTH)}
    return View(
        features=z,
        logits=z @ P.transpose(1, 2),
        prototypes=P,
        anchors=F.normalize(draw("anchors", CLASSES, WIDTH), dim=2),
        global_prototypes=common["prototypes"],
        labels=y,
        weight=weight,
        label_counts=torch.stack([torch.bincount(row, minlength=CLASSES) for row in y]),
        params=params,
        global_params=common,
    )


def weights(samples: int) -> Tensor:
    return (torch.arange(ROWS) < samples).to(torch.float64).expand(CLIENTS, ROWS)


def of_client(k: int, view: View) -> View:
    parts = [
        {name: value[k] for name, value in part.items()} if isinstance(part, dict) else part[k]
        for part in view
    ]
    return View(*parts)


@pytest.mark.parametrize("name", TERMS.names())
def test_a_term_of_a_lane_is_that_of_each_client(name: str) -> None:
    """Else: a Python branch on values, `.item()`, boolean indexing, or a sum over clients."""
    term, views = TERMS.get(name), stacked(weights(ROWS))
    together = vmap(term)(views)
    alone = torch.stack([term(of_client(k, views)) for k in range(CLIENTS)])
    assert together.shape == (CLIENTS,)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TERMS.names())
def test_rows_of_weight_0_count_in_no_term(name: str) -> None:
    """Else: a plain mean over rows; `view.mean` leaves the filling of a short batch out."""
    term = TERMS.get(name)
    plain, moved = (vmap(term)(stacked(weights(FILLED), filling)) for filling in (0.0, 7.0))
    torch.testing.assert_close(plain, moved, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TERMS.names())
@pytest.mark.parametrize("samples", [0, 1, FILLED])
def test_the_gradient_of_a_term_is_a_number(name: str, samples: int) -> None:
    """Else: a root or a logarithm of 0, or a division by what a small batch has none of."""
    term, views = TERMS.get(name), stacked(weights(samples))

    def of(moving: tuple[Tensor, Tensor], view: View) -> Tensor:
        z, P = moving
        return term(view._replace(features=z, prototypes=P, logits=z @ P.T))

    slopes = vmap(grad(of))((views.features, views.prototypes), views)
    assert all(torch.isfinite(slope).all() for slope in slopes)


def progresses() -> Progress:
    """Points of a run [S], its ends among them, with spreads below and above that of the start."""
    p = torch.linspace(0, 1, 41, dtype=torch.float64)
    return Progress(p, p.mul(10).floor() / 10, p.mul(10) % 1, 2 * p)


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_a_schedule_is_a_factor_from_0_to_1_at_each_point_alone(name: str) -> None:
    """Else: a value outside, a Python branch on a tensor, or another shape or type."""
    schedule, at = SCHEDULES.get(name), progresses()
    factors = schedule(at)
    assert factors.shape == at.p.shape
    assert factors.dtype == at.p.dtype
    assert ((factors >= 0) & (factors <= 1)).all()
    alone = torch.stack([schedule(Progress(*point)) for point in zip(*at, strict=True)])
    torch.testing.assert_close(factors, alone, rtol=0, atol=0)
    torch.testing.assert_close(vmap(schedule)(at), factors, rtol=1e-15, atol=1e-15)

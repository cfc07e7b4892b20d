"""Are the anchors what they are called?"""

from __future__ import annotations

import pytest
import torch

from fedcore.errors import ConfigError
from fedcore.objective.anchors import ANCHORS, etf, gaussian, spread


@pytest.mark.parametrize(
    ("classes", "width"), [(2, 1), (2, 8), (10, 9), (10, 64), (100, 512), (200, 512)]
)
def test_etf_gram_matrix(classes: int, width: int) -> None:
    a = etf(classes, width, seed=0).float()
    gram = a @ a.T
    wanted = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1.0)
    torch.testing.assert_close(gram, wanted, rtol=0, atol=1e-6)


def test_etf_needs_room_and_names_both_ways_out() -> None:
    with pytest.raises(ConfigError) as caught:
        etf(200, 128, seed=0)
    assert "model.feature_dim=199" in str(caught.value)
    assert "spread" in str(caught.value)


def test_spread_anchors_come_close_to_the_best_packing() -> None:
    """12 points on the sphere in R^3: the icosahedron has largest cosine 1/sqrt(5)."""
    a = spread(12, 3, seed=0)
    largest = (a @ a.T).fill_diagonal_(-1).max().item()
    assert largest == pytest.approx(5**-0.5, abs=0.02)
    start = gaussian(12, 3, seed=0)
    assert largest < (start @ start.T).fill_diagonal_(-1).max().item()


@pytest.mark.parametrize("name", ANCHORS.names())
def test_anchors_are_unit_rows_and_functions_of_the_seed(name: str) -> None:
    rule = ANCHORS.get(name).points
    torch.testing.assert_close(rule(6, 8, 1).norm(dim=1), torch.ones(6, dtype=torch.float64))
    assert torch.equal(rule(6, 8, 1), rule(6, 8, 1))
    assert not torch.equal(rule(6, 8, 1), rule(6, 8, 2))

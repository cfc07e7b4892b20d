"""Is each loss term its formula? Checked against the sum written out, or on paper."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fedcore.algorithms import resolve
from fedcore.config_algorithm import AlgorithmConfig
from fedcore.errors import ConfigError
from fedcore.objective import terms
from fedcore.objective.view import View


def view(
    rows: int = 6, classes: int = 3, width: int = 4, weight: list[float] | None = None
) -> View:
    draws = torch.Generator().manual_seed(1)
    z = F.normalize(torch.randn(rows, width, generator=draws, dtype=torch.float64), dim=1)
    p = torch.randn(classes, width, generator=draws, dtype=torch.float64)
    a = F.normalize(torch.randn(classes, width, generator=draws, dtype=torch.float64), dim=1)
    y = torch.tensor([0, 1, 0, 1, 1, 0])[:rows]
    w = torch.tensor(weight or [1.0] * rows, dtype=torch.float64)
    counts = torch.bincount(y, minlength=classes)
    params = {"encoder": torch.arange(3.0, dtype=torch.float64), "prototypes": p}
    return View(z, z @ p.T, p, a, torch.zeros_like(p), y, w, counts, params, params)


def test_dot_regression_on_paper() -> None:
    """FedETF's: rows with a . z = 1, 0 and -1 cost 0, 1/2 and 2."""
    a = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    y, one = torch.tensor([0, 1, 1]), torch.ones(3, dtype=torch.float64)
    v = View(z, z @ a.T, a, a, a, y, one, torch.tensor([1, 2]), {}, {})
    assert terms.dot_regression(v).item() == pytest.approx((0 + 0.5 + 2) / 3)


def test_balanced_softmax_is_its_formula_and_leaves_absent_classes_out() -> None:
    """-log n_y^p e^{s z.a_y} / sum_c n_c^p e^{s z.a_c}; here n = (3, 3, 0)."""
    v = view()
    n = torch.tensor([3.0, 3.0, 0.0], dtype=torch.float64)
    for scale, power in ((10.0, 1.0), (3.0, 0.5)):
        weighed = n**power * torch.exp(scale * v.features @ v.anchors.T)
        own = weighed.gather(1, v.labels[:, None])[:, 0]
        wanted = -(own / weighed.sum(1)).log().mean()
        got = terms.balanced_softmax(v, scale=scale, power=power)
        torch.testing.assert_close(got, wanted)


def test_feature_to_global_pulls_only_to_classes_with_a_global_prototype() -> None:
    v = view()
    assert terms.feature_to_global(v).item() == 0.0  # before the first aggregation
    G = torch.zeros(3, 4, dtype=torch.float64)
    G[1] = torch.tensor([1.0, 2.0, 0.0, 0.0])
    known = v._replace(global_prototypes=G)
    rows = (v.features - G[1]).square().mean(1)[v.labels == 1]
    assert terms.feature_to_global(known).item() == pytest.approx(rows.sum().item() / 6)


def test_proximal_on_paper() -> None:
    v = view()
    far = {k: w + 2.0 for k, w in v.params.items()}
    places = sum(w.numel() for w in v.params.values())
    wanted = 0.5 * 0.3 * 4.0 * places
    assert terms.proximal(v._replace(global_params=far), mu=0.3).item() == pytest.approx(wanted)
    assert terms.proximal(v).item() == 0.0


def test_cross_entropy_and_proto_feature_agree_at_temperature_one() -> None:
    v = view()
    wanted = F.cross_entropy(v.features @ v.prototypes.T, v.labels)
    torch.testing.assert_close(terms.cross_entropy(v), wanted)
    torch.testing.assert_close(terms.proto_feature(v), wanted)
    cold = F.cross_entropy(v.features @ v.prototypes.T / 0.5, v.labels)
    torch.testing.assert_close(terms.proto_feature(v, temperature=0.5), cold)


def supcon_written_out(z: torch.Tensor, y: list[int], temperature: float) -> float:
    total = 0.0
    for i in range(len(y)):
        others = [j for j in range(len(y)) if j != i]
        positives = [j for j in others if y[j] == y[i]]
        if not positives:
            continue
        whole = sum(math.exp(float(z[i] @ z[j]) / temperature) for j in others)
        logs = [float(z[i] @ z[j]) / temperature - math.log(whole) for j in positives]
        total -= sum(logs) / len(logs)
    return total / len(y)


def test_supcon_is_the_sum_written_out() -> None:
    v = view()
    wanted = supcon_written_out(v.features, v.labels.tolist(), 0.07)
    assert abs(terms.supcon(v).item() - wanted) < 1e-10


def test_supcon_with_filling_and_an_anchor_without_a_positive() -> None:
    v = view(weight=[1, 1, 1, 0, 0, 0])  # labels 0, 1, 0: the 1 has no positive
    wanted = supcon_written_out(v.features[:3], [0, 1, 0], 0.07)
    assert abs(terms.supcon(v).item() - wanted) < 1e-10


def test_supcon_of_a_single_sample_is_zero_not_nan() -> None:
    assert terms.supcon(view(weight=[1, 0, 0, 0, 0, 0])).item() == 0.0


def test_proto_separation_includes_the_diagonal() -> None:
    v = view()
    logits = v.prototypes @ v.prototypes.T
    torch.testing.assert_close(terms.proto_separation(v), F.cross_entropy(logits, torch.arange(3)))


def test_align_terms_over_all_and_over_present_classes() -> None:
    v = view()  # class 2 is absent
    gap = (v.prototypes - v.anchors).square()
    torch.testing.assert_close(terms.proto_to_anchor(v), gap.mean())
    torch.testing.assert_close(terms.present_proto_to_anchor(v), gap[:2].mean())
    features = (v.features - v.anchors[v.labels]).square().mean()
    torch.testing.assert_close(terms.feature_to_anchor(v), features)


def test_every_term_of_an_idle_client_is_finite() -> None:
    v = view(weight=[0.0] * 6)
    for _, term in terms.TERMS:
        assert torch.isfinite(term(v))


def test_a_single_present_class_is_masked_per_batch() -> None:
    v = view(weight=[1, 0, 1, 0, 0, 1])
    assert v.present.tolist() == [1, 0, 0]


def test_a_term_that_gives_more_than_a_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(terms.TERMS._things, "rows", lambda view: view.features.sum(1))
    with pytest.raises(ConfigError, match=r"gives one number, and this gives \[2\]"):
        resolve(AlgorithmConfig.model_validate({"name": "v4", "base": ["rows"]}))


def test_who_reads_anchors_is_known_by_trying() -> None:
    asking = {n for n, term in terms.TERMS if terms.reads_anchors(term)}
    named = {n for n in terms.TERMS.names() if "anchor" in n}
    assert asking == named | {"dot_regression", "balanced_softmax"}

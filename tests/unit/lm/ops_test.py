"""Do the functions agree with their formulas, with torch, and with numbers worked out by hand?"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.lm import ops

Shape = tuple[int, ...]
BATCHES: list[Shape] = [(), (3,), (2, 3), (2, 1, 3, 2)]


def wide(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("batch", BATCHES)
def test_cross_entropy_agrees_with_log_sum_exp_and_torch(batch: Shape) -> None:
    logits, targets = wide(*batch, 7), torch.randint(7, batch)
    picked = logits.gather(-1, targets[..., None]).squeeze(-1)
    by_hand = (logits.exp().sum(-1).log() - picked).mean()
    loss = ops.cross_entropy(logits, targets)
    torch.testing.assert_close(loss, by_hand)
    torch.testing.assert_close(loss, F.cross_entropy(logits.view(-1, 7), targets.flatten()))


def test_cross_entropy_of_logits_worked_out_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [math.log(4), 0.0]])
    targets = torch.tensor([1, 1])  # probabilities 3/4 and 1/5
    loss = ops.cross_entropy(logits, targets)
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(5)) / 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_cross_entropy_of_extreme_logits_is_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], dtype=dtype)
    right = ops.cross_entropy(logits, torch.tensor([0, 2]))
    wrong = ops.cross_entropy(logits[:1], torch.tensor([1]))
    assert right.item() == pytest.approx(math.log(3) / 2)
    assert wrong.item() == pytest.approx(2e4, rel=0.01)


def test_cross_entropy_of_half_precision_is_summed_in_float32() -> None:
    logits = torch.zeros(1, 1000, dtype=torch.bfloat16)
    loss = ops.cross_entropy(logits, torch.tensor([3]))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(1000), rel=1e-6)


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_softmax_agrees_with_torch(dim: int) -> None:
    x = wide(4, 5, 6)
    torch.testing.assert_close(ops.softmax(x, dim), x.softmax(dim))
    torch.testing.assert_close(ops.softmax(x + 1e4, dim), x.softmax(dim))


def test_softmax_of_logits_worked_out_by_hand() -> None:
    got = ops.softmax(torch.tensor([[0.0, math.log(2), math.log(5)], [1e4, -1e4, 1e4]]))
    torch.testing.assert_close(got, torch.tensor([[1 / 8, 2 / 8, 5 / 8], [0.5, 0.0, 0.5]]))


@pytest.mark.parametrize("batch", BATCHES)
def test_rmsnorm_agrees_with_its_formula_and_torch(batch: Shape) -> None:
    x, weight = wide(*batch, 8), wide(8, seed=1)
    by_hand = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    got = ops.rmsnorm(x, weight)
    torch.testing.assert_close(got, by_hand)
    torch.testing.assert_close(got, F.rms_norm(x, (8,), weight, 1e-5))


def test_rmsnorm_of_a_vector_worked_out_by_hand() -> None:
    got = ops.rmsnorm(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]), eps=0.0)
    torch.testing.assert_close(got, torch.tensor([3.0, 8.0]) / math.sqrt(12.5))


def test_rmsnorm_of_half_precision_is_computed_in_float32() -> None:
    x = 300 * torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    half, weight = x.to(torch.float16), torch.ones(4096)
    exact = ops.rmsnorm(half.double(), weight.double())  # the squares exceed float16's 65,504
    got = ops.rmsnorm(half, weight)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), exact, rtol=1e-3, atol=1e-5)


def test_swiglu_agrees_with_its_formula() -> None:
    gate, value = wide(2, 3, 5), wide(2, 3, 5, seed=1)
    torch.testing.assert_close(ops.swiglu(gate, value), gate * torch.sigmoid(gate) * value)
    literal = ops.swiglu(torch.tensor([math.log(3), 0.0, -1e4]), torch.tensor([2.0, 7.0, 5.0]))
    torch.testing.assert_close(literal, torch.tensor([2 * 0.75 * math.log(3), 0.0, 0.0]))


def by_matrices(x: Tensor, theta: float) -> Tensor:
    """Each pair times its own 2x2 rotation matrix; x [T, D]."""
    out = x.clone()
    for t in range(x.shape[0]):
        for i in range(0, x.shape[1], 2):
            angle = t / theta ** (i / x.shape[1])
            cos, sin = math.cos(angle), math.sin(angle)
            turn = torch.tensor([[cos, -sin], [sin, cos]], dtype=x.dtype)
            out[t, i : i + 2] = turn @ x[t, i : i + 2]
    return out


@pytest.mark.parametrize("batch", BATCHES)
def test_rotate_agrees_with_rotation_matrices(batch: Shape) -> None:
    x, turns = wide(*batch, 5, 2, 8), ops.turns(100.0, 5, 8)
    rows = x.transpose(-2, -3).reshape(-1, 5, 8)  # one head of one sequence each
    expected = torch.stack([by_matrices(row, 100.0) for row in rows])
    expected = expected.view(*batch, 2, 5, 8).transpose(-2, -3)
    torch.testing.assert_close(ops.rotate(x, turns), expected)
    pairs = x.unflatten(-1, (-1, 2))
    real = ops.turn_pairs(pairs, turns.unsqueeze(-3)).flatten(-2)  # the form that is compiled
    torch.testing.assert_close(real, expected)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    q, k = wide(1, 1, 16).expand(40, 1, 16), wide(1, 1, 16, seed=1).expand(40, 1, 16)
    turns = ops.turns(10_000.0, 40, 16)
    products = ops.rotate(q, turns)[:, 0] @ ops.rotate(k, turns)[:, 0].T
    for distance in (0, 3, 20):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))


def test_rotate_keeps_the_type_and_turns_in_its_own_precision() -> None:
    x, turns = wide(2000, 1, 4), ops.turns(10_000.0, 2000, 4)
    got = ops.rotate(x.bfloat16(), turns.float())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), ops.rotate(x, turns), rtol=0.01, atol=0.02)


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (1, 6), (4, 6)])
def test_causal_attention_agrees_with_its_formula(queries: int, keys: int) -> None:
    q, k, v = wide(2, 3, queries, 4), wide(2, 3, keys, 4, seed=1), wide(2, 3, keys, 4, seed=2)
    scores = q @ k.transpose(-1, -2) / 2
    for t in range(queries):
        scores[..., t, keys - queries + t + 1 :] = -torch.inf
    torch.testing.assert_close(ops.causal_attention(q, k, v), scores.softmax(-1) @ v)


def with_gradients(scale: float) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3)]
    for parameter, grad in zip(parameters, ([3.0, 0.0], [0.0, 4.0]), strict=False):
        parameter.grad = scale * torch.tensor(grad, dtype=torch.float64)
    return parameters  # the third has none


@pytest.mark.parametrize(("scale", "left"), [(1.0, 2.0), (0.1, 0.5), (0.0, 0.0), (1e30, 2.0)])
def test_clipping_gives_the_norm_before_and_leaves_at_most_the_largest(
    scale: float, left: float
) -> None:
    parameters = with_gradients(scale)
    norm = ops.clip_gradients(parameters, max_norm=2.0)
    grads = [p.grad for p in parameters if p.grad is not None]
    assert norm.item() == pytest.approx(5 * scale)
    assert torch.cat(grads).norm().item() == pytest.approx(left, abs=1e-6)
    factor = min(1.0, 2.0 / (5 * scale + 1e-6))
    torch.testing.assert_close(grads[0], factor * scale * grads[0].new_tensor([3.0, 0.0]))
    assert parameters[2].grad is None

"""Are the read-outs their formulas, written out here with plain sums?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.evaluate import READOUTS, SINGLE, Evaluator
from fedcore.seeds import generator
from fedcore.server.average import average_models
from fedcore.server.comm import LocalComm
from tests.toy import SHAPE, ToyData, toy_group, toy_order


class ToyTest:
    """23 test images; follows `TestData`."""

    shape = SHAPE

    def __init__(self) -> None:
        data = ToyData([23])
        self.images, self.labels = data.images[0], data.labels[0]

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        yield from self.images[start:stop].split(size)


@pytest.fixture(scope="module")
def parts():
    """A trained group, shares, global prototypes, and features z_k(x), z_k(noise) by hand."""
    clients = [0, 1, 2]
    data = ToyData([20, 9, 13])
    group = toy_group("v14", clients, data)
    group.train(toy_order("v14", 0, clients))
    weights = {k: n / 42 for k, n in enumerate(data.sizes)}
    test, prototypes = ToyTest(), group.state.params["prototypes"].mean(0)
    group.model.eval()
    features, noises = [], []
    for row in range(3):
        tensors = {k: v[row] for k, v in group.state.model_tensors().items()}
        run = lambda x, t=tensors: F.normalize(  # noqa: E731
            torch.func.functional_call(group.model, t, x), dim=1
        ).detach()
        noise = torch.randn(
            1, *SHAPE, generator=generator(5, row, 0, "noise image"), dtype=torch.float64
        )
        features.append(run(test.images))
        noises.append(run(noise)[0])
    group.model.train()
    return group, weights, test, prototypes, torch.stack(features), torch.stack(noises)


def measured(parts, chunk: int) -> dict[str, float]:
    group, weights, test, prototypes, *_ = parts
    like = dict(group.model.named_parameters()) | dict(group.model.named_buffers())
    models = [
        ({k: v[row] for k, v in group.state.model_tensors().items()}, weights[row])
        for row in range(3)
    ]
    averaged = average_models(LocalComm(), models, like)
    evaluator = Evaluator(LocalComm(), group.model, test, 5, chunk)
    return evaluator(group, weights, prototypes, averaged).accuracy


def wanted(parts) -> dict[str, float]:
    group, weights, test, prototypes, z, noise = parts
    w = torch.tensor(list(weights.values()), dtype=torch.float64)[:, None, None]
    own = group.state.params["prototypes"]
    logits = z @ own.mT
    informative = 1 - (z @ noise[:, :, None])
    right = lambda scores: (scores.argmax(1) == test.labels).double().mean().item()  # noqa: E731
    alone = [right(logits[k]) for k in range(3)]
    return {
        "feature_ensemble": right(F.normalize((w * z).sum(0), dim=1) @ prototypes.T),
        "nearest_prototype": right(-torch.cdist(F.normalize((w * z).sum(0), dim=1), prototypes)),
        "iffi_published": right(
            F.normalize((w * z).sum(0), dim=1)
            * (w * informative).sum(0)  # the same for all models: it cancels
            @ prototypes.T
        ),
        "iffi": right(F.normalize((w * informative * z).sum(0), dim=1) @ prototypes.T),
        "output_ensemble": right((w * logits.softmax(2)).sum(0)),
        "local_mean": sum(alone) / 3,
        "local_min": min(alone),
        "local_max": max(alone),
    }


def test_readouts_are_their_formulas(parts) -> None:
    found = measured(parts, 100)
    for name, value in wanted(parts).items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


def test_informativeness_averaged_over_models_cancels(parts) -> None:
    found = measured(parts, 100)
    assert found["iffi_published"] == found["feature_ensemble"]


def test_chunks_do_not_matter(parts) -> None:
    assert measured(parts, 100) == measured(parts, 4) == measured(parts, 23)


def test_the_averaged_model_of_equal_clients_is_that_client(parts) -> None:
    group, _, test, prototypes, z, _ = parts
    tensors = {k: v[1] for k, v in group.state.model_tensors().items()}
    like = dict(group.model.named_parameters()) | dict(group.model.named_buffers())
    averaged = average_models(LocalComm(), [(tensors, 0.25), (tensors, 0.75)], like)
    evaluator = Evaluator(LocalComm(), group.model, test, 5, 10)
    found = evaluator(group, {1: 1.0}, prototypes, averaged).accuracy
    own = (z[1] @ tensors["prototypes"].T).argmax(1)
    assert found["averaged"] == pytest.approx((own == test.labels).double().mean().item())
    assert found["local_min"] == found["local_max"] == found["averaged"]


def test_every_readout_has_a_name_of_its_own() -> None:
    assert not set(READOUTS.names()) & set(SINGLE)

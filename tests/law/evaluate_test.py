"""Are the read-outs their formulas, written out here with plain sums?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.evaluate import Evaluator
from fedcore.readouts import READOUTS, SINGLE, VALIDATED
from fedcore.seeds import generator
from fedcore.server.average import average_models
from fedcore.server.comm import LocalComm
from fedcore.tally import Evaluation
from tests.toy import SHAPE, ToyData, toy_group, toy_model, toy_order


class ToyTest:
    """23 test images; follows `TestData`."""

    shape = SHAPE

    def __init__(self) -> None:
        data = ToyData([23])
        self.images, self.labels = data.images[0], data.labels[0]

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        yield from self.images[start:stop].split(size)


class ToyValidation:
    """Clients 0 and 2 have samples set aside, client 1 has none; follows `ValidationData`."""

    samples: ClassVar[dict[int, int]] = {0: 7, 2: 11}
    sizes: ClassVar[list[int]] = [31, 32, 33]

    def __init__(self) -> None:
        data = ToyData(self.sizes)
        self.images, self.labels = data.images, data.labels

    def chunks(self, client: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        n = self.samples[client]
        both = (x[client][:n].split(size) for x in (self.images, self.labels))
        yield from zip(*both, strict=True)


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


def plain_hits(tensors, client: int) -> int:
    """Right answers on a client's validation samples, one at a time by the model itself."""
    model, aside = toy_model(), ToyValidation()
    model.load_state_dict(tensors)
    model.eval()
    right = 0
    for i in range(ToyValidation.samples[client]):
        scores = model.prototypes @ model(aside.images[client][i : i + 1])[0]
        right += int(scores.argmax()) == int(aside.labels[client][i])
    return right


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("name", ["v14", "fedavg", "otfusion"])
def test_each_client_is_evaluated_on_its_own_samples(name: str, chunk: int) -> None:
    clients = [0, 1, 2]
    group = toy_group(name, clients, ToyData([20, 9, 13]))
    group.train(toy_order(name, 0, clients))
    own = [{k: v[row] for k, v in group.state.model_tensors().items()} for row in clients]
    averaged = {k: sum(t[k] for t in own) / 3 for k in own[0]}
    averaged = {k: v.to(own[0][k].dtype) for k, v in averaged.items()}
    evaluator = Evaluator(LocalComm(), group.model, ToyTest(), 5, chunk, ToyValidation())
    weights = dict.fromkeys(clients, 1 / 3)
    found = evaluator(group, weights, own[0]["prototypes"], averaged)
    hits = {k: plain_hits(own[k], k) for k in (0, 2)}
    assert found.validation == {0: hits[0] / 7, 2: hits[2] / 11}
    assert found.accuracy["validation_local"] == (hits[0] + hits[2]) / 18
    if name == "v14":  # trains no averaged model and reports none
        assert "validation_averaged" not in found.accuracy
    else:
        of_average = sum(plain_hits(averaged, k) for k in (0, 2))
        assert found.accuracy["validation_averaged"] == of_average / 18
    only = evaluator(group, {1: 0.5, 2: 0.5}, own[0]["prototypes"], averaged)  # 0 has not trained
    assert only.validation == {2: hits[2] / 11}
    assert only.accuracy["validation_local"] == hits[2] / 11


def test_without_validation_samples_nothing_is_said_or_sent(parts) -> None:
    group, weights, test, prototypes, *_ = parts
    averaged = {k: v[0] for k, v in group.state.model_tensors().items()}
    sent: list[int] = []

    class Watched(LocalComm):
        def sum(self, values: Tensor) -> Tensor:
            sent.append(len(values))
            return super().sum(values)

    def evaluated(weights: dict[int, float], validation: ToyValidation | None) -> Evaluation:
        evaluator = Evaluator(Watched(), group.model, test, 5, 10, validation)
        return evaluator(group, weights, prototypes, averaged)

    nobody = evaluated(weights, None)
    assert nobody.validation == {}
    assert not set(nobody.accuracy) & set(VALIDATED)
    some = evaluated(weights, ToyValidation())
    assert some.accuracy == nobody.accuracy | {
        "validation_local": some.accuracy["validation_local"]
    }
    assert sent == [sent[0], sent[0] + 3]  # one more number of each client
    assert evaluated({1: 1.0}, ToyValidation()) == evaluated({1: 1.0}, None)


def test_every_readout_has_a_name_of_its_own() -> None:
    names = [*READOUTS.names(), *SINGLE, *VALIDATED]
    assert len({*names}) == len(names)

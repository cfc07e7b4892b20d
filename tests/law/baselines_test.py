"""Does each baseline do what its paper says, on cases small enough for pencil and paper?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedcore.algorithms import ALGORITHMS
from fedcore.clients import control
from fedcore.clients.launch import Eager
from fedcore.clients.optim import clip_each, sgd
from fedcore.clients.state import ClientState
from fedcore.clients.step import Lane, look
from fedcore.errors import ConfigError
from fedcore.models import MODELS, ModelSpec
from fedcore.models.neurons import neuron_groups
from fedcore.models.proto_head import ProtoHead, build_model
from fedcore.schedule import progress
from fedcore.server.average import average_models
from fedcore.server.comm import LocalComm
from fedcore.server.fusion import FUSIONS, ClientModel, match
from tests.toy import CLASSES, HYPER, WIDTH, ToyData, toy_group, toy_model, toy_order

AT = progress(0, 1, 0, 1, 1.0, torch.zeros((), dtype=torch.float64))


def test_fedprox_gradient_is_mu_times_the_distance() -> None:
    """One step of fedprox from w_t + 1 differs from fedavg's by -lr mu (w - w_t)."""
    moved = {}
    for name in ("fedavg", "fedprox"):
        group = toy_group(name, [0], ToyData([4]), momentum=0.0, max_norm=1e9)
        group.epochs = 1
        order = toy_order(name, 0, [0])
        far = {k: v - 1.0 for k, v in order.targets.weights.items()}
        order = order._replace(targets=order.targets._replace(weights=far))
        group.train(order)
        moved[name] = group.state.params
    for key, value in moved["fedavg"].items():
        torch.testing.assert_close(
            moved["fedprox"][key], value - 0.05 * 0.01 * torch.ones_like(value), rtol=0, atol=1e-12
        )


CENTRES = torch.tensor([[4.0], [-1.0]], dtype=torch.float64)
CURVATURE = torch.tensor([[1.0], [9.0]], dtype=torch.float64)
HALF = 0.5
OPTIMUM = float((CENTRES * CURVATURE).sum() / CURVATURE.sum())  # of the mean of both quadratics


def rounds_on_quadratics(corrected: bool, momentum: float, rounds: int = 200) -> float:
    """Two clients with losses c_k (w - m_k)^2 / 2, ten local steps a round: where w ends."""
    hyper = replace(HYPER, lr=0.02, momentum=momentum, max_norm=1e9)
    start = {"w": torch.zeros(1, dtype=torch.float64)}
    state = ClientState.start(start, {}, torch.zeros(2, 2, dtype=torch.float64))
    server = torch.zeros(state.layout.size, dtype=torch.float64)
    state.keep(control.OWN)
    for _ in range(rounds):
        state.forget_momentum()
        control.begin_round(state)
        for _ in range(10):
            grads = state.layout.rows({"w": CURVATURE * (state.params["w"] - CENTRES)})
            clip_each(grads, None, hyper.max_norm)
            if corrected:
                control.correct(grads, state, server)
            sgd(state, grads, None, hyper, AT)
        control.end_round(state, torch.tensor([10, 10]))
        state.drop("round")
        state.load(average_models(LocalComm(), rows(state.params), start))
        controls = rows({"c": state.flat[control.OWN]})
        server = average_models(LocalComm(), controls, {"c": server})["c"]
    return float(state.params["w"][0])


def rows(stacked: dict[str, Tensor]) -> list[tuple[dict[str, Tensor], float]]:
    return [({k: v[i] for k, v in stacked.items()}, HALF) for i in range(2)]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_control_variates_cancel_client_drift(momentum: float) -> None:
    """FedAvg's fixed point lies between the clients' optima; SCAFFOLD's is the common optimum."""
    drifted = rounds_on_quadratics(False, momentum)
    assert abs(drifted - OPTIMUM) > 0.3
    assert rounds_on_quadratics(True, momentum) == pytest.approx(OPTIMUM, abs=1e-6)


def test_control_variate_is_option_two_for_plain_sgd() -> None:
    """c_k+ = c_k - c + (x - y_k) / (steps lr), Karimireddy et al. 2020, algorithm 1."""
    group = toy_group("scaffold", [0], ToyData([9]), momentum=0.0)
    order = toy_order("scaffold", 0, [0])
    draws = torch.Generator().manual_seed(0)
    like = order.targets.weights
    own, server = (
        {k: 0.01 * torch.randn(v.shape, generator=draws, dtype=v.dtype) for k, v in like.items()}
        for _ in range(2)
    )
    group.state.flat[control.OWN][0] = group.layout.row(own)
    before = {k: v[0].clone() for k, v in group.state.params.items()}
    order = order._replace(targets=order.targets._replace(control=group.layout.row(server)))
    group.train(order)
    steps = int(group.state.steps[0])
    for name, first in before.items():
        way = (first - group.state.params[name][0]) / (steps * 0.05)
        wanted = own[name] - server[name] + way
        found = group.state.kept_under(control.OWN)[name][0]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_a_declaration_with_a_word_nobody_knows_is_refused() -> None:
    for key, word in (("mode", "avergaed"), ("classifier", "anchor"), ("upload", "means")):
        with pytest.raises(ConfigError, match=rf"algorithm\.{key}.*{word}"):
            replace(ALGORITHMS.get("v4"), **{key: word})


def test_control_variates_and_gradnorm_keep_their_own_memories() -> None:
    """Both keep something of a client: neither may drop the other's."""
    group = toy_group("gradnorm", [0], ToyData([20]))
    group.algorithm = replace(group.algorithm, control_variates=True, mode="averaged")
    group.setup = group.setup._replace(algorithm=group.algorithm)
    group.launch = Eager(group.setup)
    group.state.keep(control.OWN)
    order = toy_order("scaffold", 0, [0])
    group.train(order)
    assert (group.state.kept["first_losses"] > 0).all()
    assert group.state.kept_under(control.OWN)["prototypes"].abs().max() > 0


def models() -> list[ProtoHead]:
    small = build_model("small_cnn", ModelSpec(1, 8, 8, CLASSES, 12), 0)
    return [toy_model(), small.double(), build_model("resnet18", ModelSpec(3, 8, 8, 4), 0).double()]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    return {k: v.detach().clone() for k, v in found.items()}


def shuffled(model: ProtoHead) -> dict[str, Tensor]:
    """The same function with the neurons of every group in another order."""
    draws, found = torch.Generator().manual_seed(5), tensors_of(model)
    for group in neuron_groups(model):
        size = len(found[group.by[0]])
        order = torch.randperm(size, generator=draws)
        for name, axis in group.axes:
            blocks = found[name].unflatten(axis, (size, -1))
            found[name] = blocks.index_select(axis, order).flatten(axis, axis + 1)
    return found


@pytest.mark.parametrize("model", models(), ids=["toy", "small_cnn", "resnet18"])
def test_optimal_transport_undoes_a_permutation_exactly(model: ProtoHead) -> None:
    own, other = tensors_of(model), shuffled(model)
    images = torch.randn(3, *first_shape(model), dtype=torch.float64)
    model.eval()
    z, same = functional_call(model, own, images), functional_call(model, other, images)
    logits = z @ own["prototypes"].T
    torch.testing.assert_close(same @ other["prototypes"].T, logits)  # the same function ...
    assert (same - z).abs().max() > 1e-3  # ... of neurons in another order
    back = match(other, own, neuron_groups(model))
    assert all(torch.equal(back[name], value) for name, value in own.items())
    shares = {0: 0.6, 1: 0.4}
    clients = [ClientModel(0, own, 0.6), ClientModel(1, other, 0.4)]
    fused = FUSIONS.get("optimal_transport")(LocalComm(), model, clients, shares)
    mean = FUSIONS.get("mean")(LocalComm(), model, clients, shares)
    for name, value in own.items():
        torch.testing.assert_close(fused[name], value, rtol=0, atol=1e-12)
    assert (mean["prototypes"] - own["prototypes"]).abs().max() > 1e-3


def first_shape(model: ProtoHead) -> tuple[int, int, int]:
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    return (first.in_channels, 8, 8)


def test_a_model_whose_neurons_are_unknown_is_refused_by_name() -> None:
    encoder, width = MODELS.get("mobilenet_v2")(ModelSpec(3, 32, 32, 4))
    with pytest.raises(ConfigError, match=r"algorithm\.fuse=mean"):
        neuron_groups(ProtoHead(encoder, 4, width))


def test_a_fixed_classifier_stays_at_the_anchors() -> None:
    group = toy_group("fedetf", [0, 1], ToyData([12, 8]), weight_decay=0.1, width=2)
    before = group.state.params["prototypes"].clone()
    torch.testing.assert_close(before[0], toy_order("fedetf", 0, [0]).targets.anchors)
    group.train(toy_order("fedetf", 0, [0, 1]))
    assert torch.equal(group.state.params["prototypes"], before)


@pytest.mark.parametrize("width", [1, 3])
def test_fedproto_uploads_mean_embeddings(width: int) -> None:
    """By hand: the model in eval mode over one more epoch's views, mean per class."""
    data = ToyData([20, 9, 13])
    group = toy_group("fedproto", [0, 1, 2], data, width=width)
    order = toy_order("fedproto", 0, [0, 1, 2])
    uploaded = group.train(order).prototypes(torch.arange(3))
    group.model.eval()
    for client in range(3):
        sums, counts = torch.zeros(CLASSES, WIDTH, dtype=torch.float64), torch.zeros(CLASSES)
        params = {k: v[client] for k, v in group.state.params.items()}
        buffers = {k: v[client] for k, v in group.state.buffers.items()}
        lane = Lane(group.label_counts[client], order.targets.anchors)
        for batch in data.epoch([client], 0, group.epochs):
            one = batch._replace(
                images=batch.images[0], labels=batch.labels[0], weight=batch.weight[0]
            )
            view = look(group.setup, params, buffers, one, lane, order.targets)
            for z, y, w in zip(view.features, view.labels, view.weight, strict=True):
                sums[y] += (w * z).detach()
                counts[y] += w
        wanted = sums / counts.clamp(min=1)[:, None]
        torch.testing.assert_close(uploaded[client], wanted, rtol=0, atol=1e-12)
        assert torch.equal(counts / 2, data.label_counts(client).float())


def test_the_family_runs_averaged_under_its_published_names() -> None:
    for name, own in (("fafi_fedavg", "v4"), ("v7_fedavg", "v7"), ("aurora_fedavg", "v14")):
        averaged, alone = ALGORITHMS.get(name), ALGORITHMS.get(own)
        assert averaged.mode == "averaged"
        assert replace(averaged, about=alone.about, mode="one_shot", readout=alone.readout) == alone

"""Does every model give features for small images, and train in a lane as it does alone?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from fedcore.clients.lanes import over_clients
from fedcore.models import MODELS, ModelSpec
from fedcore.models.proto_head import ProtoHead, build_model

WIDTHS = {"small_cnn": 64, "resnet18": 512, "mobilenet_v2": 1280}
Tensors = dict[str, Tensor]


def model_of(name: str, **spec: int) -> ProtoHead:
    return build_model(name, ModelSpec(3, 16, 16, classes=5, **spec), run_seed=0)


@pytest.mark.parametrize("name", MODELS.names())
def test_its_width_is_known_and_can_be_projected(name: str) -> None:
    images = torch.randn(2, 3, 16, 16)
    own, projected = model_of(name), model_of(name, feature_dim=24)
    said = MODELS.get(name)(ModelSpec(3, 16, 16, classes=5)).width
    assert said == WIDTHS.get(name, said)
    assert own(images).shape == (2, said)
    assert projected(images).shape == (2, 24)
    assert projected.prototypes.shape == (5, 24)


def test_mobilenet_leaves_sixteen_places_of_a_cifar_image() -> None:
    features = model_of("mobilenet_v2").encoder.features
    assert features(torch.randn(2, 3, 32, 32)).shape[2:] == (4, 4)


def trained(model: ProtoHead, params: Tensors, buffers: Tensors, images: Tensor) -> list[Tensor]:
    """Features, gradients and moved batch-norm statistics of stacked clients, as in a step."""
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    moved = {k: v.clone() for k, v in buffers.items()}

    def one(params: Tensors, buffers: Tensors, images: Tensor) -> Tensor:
        return functional_call(model, (params, buffers), images)

    features = over_clients(one, leaves, moved, images)
    grads = torch.autograd.grad(features.square().sum(), list(leaves.values()), allow_unused=True)
    return [features.detach(), *(g for g in grads if g is not None), *moved.values()]


@pytest.mark.parametrize("name", MODELS.names())
def test_two_copies_in_a_lane_train_as_each_alone(name: str) -> None:
    model = model_of(name).double()
    params = {k: torch.stack([v, 1.1 * v]).detach() for k, v in model.named_parameters()}
    buffers = {k: torch.stack([v, v]) for k, v in model.named_buffers()}
    images = torch.randn(2, 4, 3, 16, 16, dtype=torch.float64)
    together = trained(model, params, buffers, images)
    second = [{n: v[1:] for n, v in stacked.items()} for stacked in (params, buffers)]
    alone = trained(model, *second, images[1:])
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[1:], b, rtol=1e-6, atol=1e-8)

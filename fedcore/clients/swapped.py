"""A module run with other tensors in the places of its parameters and buffers."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.func import functional_call

from fedcore.clients.layout import Tensors

Place = tuple[dict[str, Tensor | None], str, str]  # a submodule's dictionary, a key, the full name

_PLACES: WeakKeyDictionary[nn.Module, list[Place]] = WeakKeyDictionary()


def swapped(model: nn.Module, tensors: Tensors, images: Tensor) -> Tensor:
    """`functional_call(model, tensors, images)`, for all of the model's tensors.

    The places are looked up once for a model, where torch looks them up in each call: that is a
    sixtieth of a step of a small network on a CPU.
    """
    places = _PLACES.get(model)
    if places is None:
        places = _PLACES[model] = _places(model)
    own = [held[key] for held, key, _ in places]
    try:
        for held, key, name in places:
            held[key] = tensors[name]
        found: Tensor = model(images)
        return found
    finally:
        for (held, key, _), value in zip(places, own, strict=True):
            held[key] = value


def plainly(model: nn.Module, tensors: Tensors, images: Tensor) -> Tensor:
    """The same by torch, which torch.compile can follow."""
    found: Tensor = functional_call(model, tensors, images)
    return found


def _places(model: nn.Module) -> list[Place]:
    found: list[Place] = []
    for prefix, module in model.named_modules():
        for held in (module._parameters, module._buffers):
            keys = [key for key, value in held.items() if value is not None]
            found += [(held, key, f"{prefix}.{key}" if prefix else key) for key in keys]
    return found

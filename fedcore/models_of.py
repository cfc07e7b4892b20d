"""The models of this rank's clients, one after another: they need not all be in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedcore.clients import control
from fedcore.clients.group import ClientGroup
from fedcore.server.fusion import ClientModel


class ModelsOf:
    """Models of this rank's clients, each with its share; fetched anew on every pass."""

    def __init__(self, group: ClientGroup, share: Mapping[int, float]) -> None:
        self.group, self.share = group, share

    def __iter__(self) -> Iterator[ClientModel]:
        for clients, tensors in self.group.models(self.share.keys()):
            for row, k in enumerate(clients):
                yield ClientModel(k, {name: v[row] for name, v in tensors.items()}, self.share[k])


class ControlsOf(ModelsOf):
    """Control variates [P] of this rank's clients, each with its client's share."""

    def __iter__(self) -> Iterator[Any]:
        for clients, part in self.group.parts(self.share.keys()):
            for row, k in enumerate(clients):
                yield {"control": part.flat[control.OWN][row]}, self.share[k]


def digest(tensors: Sequence[Tensor]) -> str:
    """SHA-256 of the tensors' little-endian bytes, in order."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()

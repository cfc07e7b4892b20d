"""An exported model, ready for images: docs/export.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.errors import ConfigError, ShardError
from fedcore.export import Tensors, empty_model, read
from fedcore.models.proto_head import ProtoHead


class Exported:
    """What `fedcore checkpoint export` wrote: one averaged model, or all clients' models.

    `facts` are those of the file's header, `prototypes` [C, D] what features are held against.
    """

    def __init__(
        self, facts: dict[str, Any], tensors: Tensors, device: torch.device | str = "cpu"
    ) -> None:
        self.facts = facts
        self.prototypes = tensors["prototypes"].to(device)
        self._tensors = {name: value.to(device) for name, value in tensors.items()}
        self._model = empty_model(facts, _dtype(tensors)).to(device)

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu") -> Exported:
        """Read a safetensors file; `ShardError` for one that holds no models of this kind."""
        facts, tensors = read(Path(path))
        if facts.get("what") not in ("averaged", "ensemble"):
            problem = f"holds {facts.get('what', 'no exported model')}"
            raise ShardError(str(path), problem, "fedcore checkpoint export RUN --what averaged")
        return cls(facts, tensors, device)

    def pixels(self, images: Tensor) -> Tensor:
        """Images uint8 [M, channels, height, width] as the models take them: normalised.

        `ConfigError` for another type or shape: values of 0...1 would be answered, and wrongly.
        """
        shape = self.facts["model"]["shape"]
        if images.dtype != torch.uint8 or list(images.shape[1:]) != shape:
            got = f"{images.dtype} {list(images.shape)}"
            want = f"torch.uint8 [M, {', '.join(map(str, shape))}], not divided by 255"
            raise ConfigError("images", got, want, "images as the dataset has them")
        held = self._model.prototypes
        mean, std = (held.new_tensor(self.facts[name])[:, None, None] for name in ("mean", "std"))
        return (images.to(held) / 255 - mean) / std

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """z [M, D] of unit length; of an ensemble sum_k w_k z_k, with w_k = n_k / sum n."""
        pixels, total = self.pixels(images), None
        for model, weight in self._models():
            z = weight * F.normalize(model(pixels), dim=1).to(self.prototypes.dtype)
            total = z if total is None else total + z
        assert total is not None
        return total

    def logits(self, images: Tensor) -> Tensor:
        """Features against prototypes [M, C]."""
        return self.features(images) @ self.prototypes.T

    def predict(self, images: Tensor) -> Tensor:
        """The label of each image [M]: what the run's read-out says of it."""
        return self.logits(images).argmax(1)

    def _models(self) -> Iterator[tuple[ProtoHead, float]]:
        """Each client's model with its weight, one after another; the averaged one with 1."""
        if self.facts["what"] == "averaged":
            self._model.load_state_dict(self._tensors)
            yield self._model, 1.0
            return
        stacked = {n[len(EACH) :]: v for n, v in self._tensors.items() if n.startswith(EACH)}
        for row, weight in enumerate(self._tensors["weights"].tolist()):
            self._model.load_state_dict({name: v[row] for name, v in stacked.items()})
            yield self._model, weight


EACH = "models/"


def _dtype(tensors: Tensors) -> torch.dtype:
    """Of the models' weights: a run in fp64 has them in float64."""
    return tensors.get(f"{EACH}prototypes", tensors["prototypes"]).dtype

"""The averaged model as an ONNX graph, from pixels to class scores. The only user of onnx.

torch.onnx.export needs the packages of the extra `export`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcore.errors import ConfigError
from fedcore.export import HEADER, Tensors, empty_model, replaced

NEEDED = ("onnx", "onnxscript")


class Network(nn.Module):
    """uint8 images [B, channels, height, width] -> logits z P^T [B, C], features z [B, D].

    The normalisation of the data is inside; z is of unit length, as in fedcore/evaluate.py.
    """

    def __init__(self, tensors: Tensors, facts: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = empty_model(facts)
        self.model.load_state_dict(tensors)
        self.mean: Tensor
        self.std: Tensor
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(facts[name])[:, None, None])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = F.normalize(self.model((images.float() / 255 - self.mean) / self.std), dim=1)
        return features @ self.model.prototypes.T, features


def check_installed() -> None:
    """`ConfigError` with the command that installs what is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        want = f"the package{'s' * (len(missing) > 1)} {' and '.join(missing)}"
        raise ConfigError("--format", "onnx", want, "pip install 'fedcore[export]'")


def write_onnx(out: Path, tensors: Tensors, facts: Mapping[str, Any]) -> Path:
    """One file: input `images` (any number of them), outputs `logits` and `features`; float32."""
    network = Network(tensors, facts).eval()
    example = torch.zeros(2, *facts["model"]["shape"], dtype=torch.uint8)
    program = torch.onnx.export(
        network,
        (example,),
        input_names=["images"],
        output_names=["logits", "features"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props[HEADER] = json.dumps(facts)
    return replaced(out, lambda part: program.save(str(part), external_data=False))

"""What a federated run learned, as one file for other programs: safetensors, or ONNX (onnx.py).

The file's header says under `fedcore` all that is needed to use the tensors: docs/export.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedcore.checkpoint import Checkpoint
from fedcore.errors import ShardError, StorageError
from fedcore.files import parse_json
from fedcore.models import ModelSpec
from fedcore.models.proto_head import ProtoHead, build_model
from fedcore.server.comm import LocalComm
from fedcore.server.fusion import FUSIONS, ClientModel

What = Literal["averaged", "ensemble", "prototypes"]
Tensors = dict[str, Tensor]
HEADER = "fedcore"  # key of the header under which the facts stand, in JSON


class Clients(NamedTuple):
    """The models of all clients that have trained, on the CPU."""

    ids: list[int]  # [N]
    shares: dict[int, float]  # w_k by client, summing to 1
    models: Tensors  # each [N, ...], in the order of `ids`

    def each(self) -> list[ClientModel]:
        """The clients' models, one record each."""
        return [
            ClientModel(k, {name: v[row] for name, v in self.models.items()}, self.shares[k])
            for row, k in enumerate(self.ids)
        ]


def clients_of(checkpoint: Checkpoint, samples: Mapping[int, int]) -> Clients:
    """Models and weights n_k / sum n of the clients in `samples`, which says n_k."""
    ids, total = sorted(samples), sum(samples.values())
    own = checkpoint.own(ids)
    groups = ("params/", "buffers/")
    models = {n.removeprefix(g): v for g in groups for n, v in own.items() if n.startswith(g)}
    return Clients(ids, {k: samples[k] / total for k in ids}, models)


def servers_own(checkpoint: Checkpoint) -> Tensors:
    """The averaged model that the server keeps, in averaged mode; else nothing."""
    prefix = "weights/"
    held = checkpoint.shared("server").items()
    return {n.removeprefix(prefix): v for n, v in held if n.startswith(prefix)}


def fused(model: ProtoHead, clients: Clients, fuse: str) -> Tensors:
    """The model of the read-out `averaged` where the server keeps none."""
    return dict(FUSIONS.get(fuse)(LocalComm(), model, clients.each(), clients.shares))


def ensemble(checkpoint: Checkpoint, clients: Clients) -> Tensors:
    """`models/...` each [N, ...], `weights` [N] and the global `prototypes` [C, D]."""
    weights = torch.tensor([clients.shares[k] for k in clients.ids], dtype=torch.float64)
    stacked = {f"models/{name}": v for name, v in clients.models.items()}
    return stacked | {"weights": weights} | prototypes(checkpoint)


def prototypes(checkpoint: Checkpoint) -> Tensors:
    """The global `prototypes` G [C, D]."""
    return {"prototypes": checkpoint.shared("server")["prototypes"]}


def empty_model(facts: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> ProtoHead:
    """A model of the kind that facts["model"] says, its weights still to be loaded."""
    said = facts["model"]
    channels, height, width = said["shape"]
    spec = ModelSpec(channels, height, width, said["classes"], said["feature_dim"])
    return build_model(said["name"], spec, 0).to(dtype).eval()


def write(out: Path, tensors: Tensors, facts: Mapping[str, Any]) -> Path:
    """The tensors and the facts in one file, which is complete or absent."""
    whole = {name: value.contiguous() for name, value in tensors.items()}
    header = {"format": "pt", HEADER: json.dumps(facts)}
    return replaced(out, lambda part: save_file(whole, part, header))


def replaced(out: Path, fill: Callable[[Path], object]) -> Path:
    """Let `fill` write a file that takes the name `out` once it is whole; else `StorageError`."""
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fill(part)
        part.chmod(0o600)  # as the checkpoints it comes from
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(out)
    except (OSError, SafetensorError) as error:
        raise StorageError(str(out), str(error), "freeing space, or another --out") from error
    finally:
        with suppress(OSError):  # it has been told
            part.unlink(missing_ok=True)
    return out


def read(path: Path) -> tuple[dict[str, Any], Tensors]:
    """The facts and the tensors of an exported file; `ShardError` for another or a damaged one."""
    tensors = read_tensors(path)
    with safe_open(path, framework="pt") as file:
        said = (file.metadata() or {}).get(HEADER, "")
    try:
        facts = parse_json(said)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise ShardError(str(path), "says nothing about itself", "a file of this fedcore's export")
    return facts, tensors


def read_tensors(path: Path) -> Tensors:
    """All tensors of a safetensors file; `ShardError` if it is not one."""
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ShardError(str(path), f"no safetensors file ({error})", "another copy") from None

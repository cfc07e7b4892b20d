"""What is read out of the clients' models: ensembles, each the argmax of sums over clients.

A read-out names the parts it sums; what several of them sum is summed once. The clients' models run
once per sample for all of them together (fedcore/evaluate.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from fedcore.algorithms import Algorithm
from fedcore.errors import ConfigError
from fedcore.registry import Registry, nearest
from fedcore.telemetry.events import VALIDATION


class Seen(NamedTuple):
    """One client's view of a chunk of m test samples."""

    features: Tensor  # z [m, D], unit length
    logits: Tensor  # z P^T [m, C]
    noise: Tensor  # z of this client's noise image [D]


@dataclass(frozen=True)
class Part:
    """What one client adds to a sum over clients, weighted by its share w_k."""

    width: Callable[[int, int], int]  # (C, D) -> columns
    of: Callable[[Seen], Tensor]  # [m, width], entries within +-2


@dataclass(frozen=True)
class Ensemble:
    """A read-out: which parts are summed over all clients, and what is predicted from the sums."""

    about: str
    parts: tuple[Part, ...]
    predict: Callable[[Sequence[Tensor], Tensor], Tensor]  # (sum of each part, G [C, D]) -> [m]


READOUTS: Registry[Ensemble] = Registry("algorithm.readout")


def _informativeness(seen: Seen) -> Tensor:
    """1 - cos(f_k(x), f_k(noise)) [m, 1]: a model that sees x as it sees noise has no say."""
    return 1 - (seen.features @ seen.noise)[:, None]


FEATURES = Part(lambda classes, width: width, lambda s: s.features)
INFORMATIVENESS = Part(lambda classes, width: 1, _informativeness)
INFORMED = Part(lambda classes, width: width, lambda s: s.features * _informativeness(s))
PROBABILITIES = Part(lambda classes, width: classes, lambda s: s.logits.softmax(1))


def _nearest_prototype(sums: Sequence[Tensor], prototypes: Tensor) -> Tensor:
    # argmax z G^T: the length of z does not matter, so the sum need not be normalised
    return (sums[0] @ prototypes.T).argmax(1)


def _weighed_by_mean(sums: Sequence[Tensor], prototypes: Tensor) -> Tensor:
    return _nearest_prototype([sums[0] * sums[1]], prototypes)


def _least_distance(sums: Sequence[Tensor], prototypes: Tensor) -> Tensor:
    """argmin |z - G_c| of the normalised sum z: 2 z G^T - |G|^2 is largest there."""
    z = F.normalize(sums[0], dim=1)
    return (2 * z @ prototypes.T - prototypes.square().sum(1)).argmax(1)


READOUTS.add(
    "feature_ensemble",
    Ensemble("argmax (sum_k w_k z_k) G^T", (FEATURES,), _nearest_prototype),
)
READOUTS.add(
    "nearest_prototype",
    Ensemble(
        "argmin |z - G_c|, z the normalised sum_k w_k z_k (FedProto)",
        (FEATURES,),
        _least_distance,
    ),
)
READOUTS.add(
    "iffi",
    Ensemble(
        "feature_ensemble with w_k (1 - cos(z_k(x), z_k(noise))) per sample and model",
        (INFORMED,),
        _nearest_prototype,
    ),
)
READOUTS.add(
    "iffi_published",
    Ensemble(
        "iffi with the informativeness averaged over models: it cancels, as in feature_ensemble",
        (FEATURES, INFORMATIVENESS),
        _weighed_by_mean,
    ),
)
READOUTS.add(
    "output_ensemble",
    Ensemble(
        "argmax sum_k w_k softmax(z_k P_k^T)",
        (PROBABILITIES,),
        lambda sums, prototypes: sums[0].argmax(1),
    ),
)

LOCAL = ("local_mean", "local_min", "local_max")
SINGLE = ("averaged", *LOCAL)
"""Read-outs that are no ensemble: the averaged model, and each client alone."""

VALIDATED = (f"{VALIDATION}local", f"{VALIDATION}averaged")
"""Read-outs of one model on each client's own validation samples, all samples counting alike: the
client's own model, and the averaged one."""


def all_parts() -> list[Part]:
    """The parts of all registered read-outs, each once."""
    return [*dict.fromkeys(part for _, readout in READOUTS for part in readout.parts)]


def check_readout(algorithm: Algorithm, keeps_models: bool) -> None:
    """Raise `ConfigError` for an unknown read-out, and for one of models that are not kept."""
    known = [*READOUTS.names(), *SINGLE]
    if algorithm.readout not in known:
        way_out = nearest(algorithm.readout, known)
        raise ConfigError("algorithm.readout", algorithm.readout, "a known name", way_out)
    if not keeps_models and algorithm.readout != "averaged":
        want = f"true, since algorithm.readout={algorithm.readout} looks at each client's model"
        way_out = "clients.keep_models=true, or algorithm.readout=averaged"
        raise ConfigError("clients.keep_models", False, want, way_out)

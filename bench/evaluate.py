"""What an evaluation costs over the bare forward passes of the same models and images.

    PYTHONPATH=. .venv/bin/python bench/evaluate.py [--device cpu] [--repeats 9] [--only cnn]

Bare: a loop over the clients and then the averaged model, in eval mode without gradients, one
forward pass a chunk, and nothing else. Blocks of both take turns; figures are medians with the
least and the greatest. The ratio of processor time is the steadier one on a busy machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.lm_common import Cost, Ratio, Spread, facts, keep, timed, told
from fedcore.algorithms import ALGORITHMS
from fedcore.clients.layout import Tensors
from fedcore.evaluate import Evaluator
from fedcore.models import MODELS, ModelSpec
from fedcore.models.proto_head import ProtoHead
from fedcore.server.comm import LocalComm

CHUNK, CLASSES = 256, 10


class Case(NamedTuple):
    """A model and its images."""

    model: str
    shape: tuple[int, int, int]


CASES = {
    "small_cnn 8x8": Case("small_cnn", (1, 8, 8)),
    "small_cnn 28x28": Case("small_cnn", (1, 28, 28)),
    "cnn 32x32x3": Case("cnn", (3, 32, 32)),
    "resnet18 32x32x3": Case("resnet18", (3, 32, 32)),
}


def build(case: Case) -> ProtoHead:
    """The model; `cnn` is conv 3-32-64 with two max-pools, then 4096-128."""
    if case.model != "cnn":
        return ProtoHead(*_swapped(case))
    parts: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64)):
        parts += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    parts += [nn.Flatten(), nn.Linear(4096, 128), nn.ReLU()]
    return ProtoHead(nn.Sequential(*parts), CLASSES, 128)


def _swapped(case: Case) -> tuple[nn.Module, int, int]:
    encoder, width = MODELS.get(case.model)(ModelSpec(*case.shape, CLASSES))
    return encoder, CLASSES, width


class Images:
    """Test images as the device keeps them; follows `TestData`."""

    def __init__(self, shape: tuple[int, int, int], samples: int, device: torch.device) -> None:
        self.shape, images = shape, torch.randn(samples, *shape, device=device)
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(CLASSES, (samples,), device=device)

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        yield from torch.split(self.images[start:stop], size)


class Clients:
    """Models lane by lane; what an evaluation asks of a `ClientGroup`."""

    keeps_models, algorithm = True, ALGORITHMS.get("v14")

    def __init__(self, model: ProtoHead, clients: int, width: int) -> None:
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        self.tensors = {k: _stacked(v.detach(), clients) for k, v in tensors.items()}
        ids = list(range(clients))
        self.lanes = [ids[i : i + width] for i in range(0, clients, width)]

    def models(self, clients: Collection[int]) -> Iterator[tuple[list[int], Tensors]]:
        for lane in self.lanes:
            yield lane, {k: v[lane[0] : lane[-1] + 1] for k, v in self.tensors.items()}


def _stacked(tensor: Tensor, clients: int) -> Tensor:
    """K copies; those of a convolution's weights lie channels last."""
    if tensor.dim() != 4:
        return tensor.expand(clients, *tensor.shape).clone()
    last = tensor.permute(0, 2, 3, 1).expand(clients, *tensor.permute(0, 2, 3, 1).shape).clone()
    return last.permute(0, 1, 4, 2, 3)


class Pair(NamedTuple):
    """An evaluation, and the bare passes."""

    ours: Callable[[int], object]
    bare: Callable[[int], object]


def pair(
    case: Case, width: int, clients: int, samples: int, device: torch.device, at_once: bool
) -> Pair:
    """Both of the same models and images."""
    torch.manual_seed(0)
    model, images = build(case).to(device), Images(case.shape, samples, device)
    group: Any = Clients(model, clients, width)
    averaged = {k: v[0] for k, v in group.tensors.items()}
    evaluator = Evaluator(LocalComm(device), model, images, 0, CHUNK)
    evaluator.at_once = evaluator.at_once or at_once
    weights = dict.fromkeys(range(clients), 1 / clients)
    prototypes = model.prototypes.detach().double()

    @torch.no_grad()
    def bare(step: int) -> None:
        model.eval()
        for row in range(clients + 1):
            tensors = {k: v[row] for k, v in group.tensors.items()} if row < clients else averaged
            for chunk in images.chunks(CHUNK):
                functional_call(model, tensors, chunk)

    return Pair(lambda step: evaluator(group, weights, prototypes, averaged), bare)


def measured(both: Pair, repeats: int, device: torch.device) -> dict[str, Any]:
    """Ratios of neighbouring blocks; each takes its turn to be the first."""
    costs: dict[bool, list[Cost]] = {True: [], False: []}
    for block in range(-1, repeats):
        for ours in (True, False) if block % 2 else (False, True):
            cost = timed(both.ours if ours else both.bare, 0, 1, device)
            if block >= 0:
                costs[ours].append(cost)
    ratio = Ratio.of(costs[True], costs[False])
    seconds = {k: Spread.of([c.wall for c in v]) for k, v in costs.items()}
    print(f"{ratio.wall.told('.3f')}, processor {ratio.processor.told('.3f')}; ", end="")
    print(f"{seconds[True].median:.3f} s and {seconds[False].median:.3f} s")
    return {
        "ratio": ratio.facts(),
        "seconds": seconds[True]._asdict(),
        "bare_seconds": seconds[False]._asdict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--at-once", action="store_true", help="a lane's models, on CPUs too")
    parser.add_argument("--only", default="cnn", help="cases with this in their name")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/evaluate.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device = torch.device(given.device)
    found = facts(vars(given), device) | {"cases": []}
    for name, case in CASES.items():
        for width in given.widths if given.only in name else ():
            print(f"{name}, {given.samples} images, lanes of {width}: ", end="", flush=True)
            both = pair(case, width, given.clients, given.samples, device, given.at_once)
            result = measured(both, given.repeats, device)
            found["cases"].append({"case": name, "width": width, **result})
    print(told(found))
    keep(given.out, found)


if __name__ == "__main__":
    main()

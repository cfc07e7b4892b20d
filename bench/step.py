"""v14's step beside a bare forward and backward pass of the same views and losses, in one run.

    PYTHONPATH=. .venv/bin/python bench/step.py [--blocks 9] [--steps 32]

Ours trains one client for a round of `steps` steps, upload included, on views that lie ready. The
loops are those of bench/bare.py: the same model as a plain module, the four base losses and the
alignment loss, backward, clip, SGD with momentum; with lambda held, and learned as in v14.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench import engine
from bench.bare import V14
from bench.figures import Sheet, Spread, in_turns, keep, ratio, show
from bench.lm_common import facts, settle
from fedcore.config import RunConfig
from launcher.build import build_objects

ARMS = {"bare": False, "bare, lambda learned": True}


class Case(NamedTuple):
    """A model and its batch."""

    model: str
    feature_dim: int | None
    batch_size: int
    shape: tuple[int, int, int]


CASES = {
    "small CNN, 28x28, B 16": Case("small_cnn", 256, 16, (1, 28, 28)),  # the default job's
    "CNN of 545,088, 32x32, B 32": Case("bench_cnn", None, 32, (3, 32, 32)),
}


def configuration(case: Case, given: argparse.Namespace, channels_last: bool) -> RunConfig:
    """One client of v14."""
    return RunConfig.of(
        {
            "rounds": engine.NEVER,
            "device": given.device,
            "clients": {"count": 1, "local_epochs": 1, "batch_size": case.batch_size, "width": 1},
            "model": {
                "name": case.model,
                "feature_dim": case.feature_dim,
                "channels_last": channels_last,
            },
            "algorithm": {"name": "v14"},
        }
    )


def measured(
    case: Case, given: argparse.Namespace, device: torch.device, channels_last: bool
) -> dict[str, Any]:
    """Milliseconds a step of each, and ours over the bare ones."""
    config = configuration(case, given, channels_last)
    images = torch.randn(4, 2, case.batch_size, *case.shape, device=device)
    labels = torch.randint(10, (4, case.batch_size), device=device)
    data = engine.InMemory(images, labels, given.steps, channels_last=channels_last)
    _, train = engine.trainer(config, data, 1, 1, device)
    numbers = iter(range(engine.NEVER))
    acts: dict[str, Callable[[], object]] = {"ours": lambda: train(next(numbers))}
    for name, learned in ARMS.items():
        _, model, anchors = build_objects(config, case.shape, 10)
        batches = list(zip(images, labels, strict=True))
        like = model.prototypes.to(device)
        loop = V14(
            model.to(device),
            anchors.to(like),
            batches,
            learned=learned,
            channels_last=channels_last,
        )
        acts[name] = lambda loop=loop: loop.steps(given.steps)

    def timed(act: Callable[[], object]) -> Callable[[], float]:
        def block() -> float:
            settle(device)
            began = time.perf_counter()
            act()
            settle(device)
            return 1000 * (time.perf_counter() - began) / given.steps

        return block

    costs = in_turns({name: timed(act) for name, act in acts.items()}, given.blocks)
    return {
        "milliseconds": {name: Spread.of(cost)._asdict() for name, cost in costs.items()},
        "ratio": {name: ratio(costs["ours"], costs[name])._asdict() for name in ARMS},
    }


def sheet(found: dict[str, Any]) -> Sheet:
    """A row for each model and layout."""
    rows = [
        [
            name,
            *(Spread(**case["ratio"][arm]).told(".2f") for arm in ARMS),
            " / ".join(f"{case['milliseconds'][arm]['median']:.2f}" for arm in ("ours", *ARMS)),
        ]
        for name, case in found["cases"].items()
    ]
    return Sheet(
        "v14's step over a bare one of the same two views and losses: ratio of time, neighbouring "
        "blocks.",
        ["step", "over bare", "over bare, lambda learned", "ms: ours / bare / lambda learned"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=9, help="of each")
    parser.add_argument("--steps", type=int, default=32, help="in a block: of a round, as usual")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/step.json"))
    given = parser.parse_args()
    device = engine.join(RunConfig.of({"device": given.device})).device
    found = facts(vars(given), device)
    found["cases"] = {
        f"{name}, channels {'last' if last else 'first'}": measured(case, given, device, last)
        for name, case in CASES.items()
        for last in (True, False)
    }
    found["sheets"] = [sheet(found)._asdict()]
    show(found)
    keep(given.out, found)


if __name__ == "__main__":
    main()

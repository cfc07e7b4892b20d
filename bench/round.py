"""Whole rounds of FedAvg beside a bare hand-written loop with the same steps, in one run.

    PYTHONPATH=. .venv/bin/python bench/round.py [--cases 32x128 256x16] [--blocks 7] [--ranks 2]

Processes with one thread each train the same clients by turns: ours, and the loop of bench/bare.py
(nn.Module, SGD, backward, one all_reduce a round; samples as normalised floats in memory) in both
memory layouts. Ours is built from a configuration and reads uint8 shards; metrics, checkpoints and
evaluation are off (bench/overheads.py has what they cost). Peak memory is that of all processes
together, in runs of one side each.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import ranks
from bench.figures import Sheet, Spread, in_turns, keep, ratio, show

VARIANTS: dict[str, dict[str, Any]] = {
    "auto": {"clients": {"width": "auto"}},
    "width 1": {"clients": {"width": 1}},
    "width 4": {"clients": {"width": 4}},
    "auto, channels_last false": {"clients": {"width": "auto"}, "model": {"channels_last": False}},
    "auto, keep_models false": {"clients": {"width": "auto", "keep_models": False}},
}
BARE = {"bare": False, "bare, channels last": True}  # and whether it is channels last
TORCH, JOINED = "only torch", "only ours"  # processes that import and join
LR = 0.01


def configuration(case: str, store: str, **changed: Any) -> Any:
    """Of a run of `clients`x`samples`."""
    from fedcore.config import RunConfig

    clients, samples = map(int, case.split("x"))
    parts: dict[str, Any] = {
        "clients": {"count": clients, "local_epochs": 1, "batch_size": 32, "views": 1, "lr": LR},
        "model": {"name": "bench_cnn"},
    }
    parts["clients"] |= {"max_norm": 1e6} | changed.get("clients", {})
    parts["model"] |= changed.get("model", {})
    synthetic = {"samples": clients * samples, "test_samples": 10, "size": 32, "channels": 3}
    data = {"source": "synthetic", "synthetic": synthetic, "partition": "iid", "augment": False}
    never = 1_000_000
    return RunConfig.of(
        parts
        | {
            "rounds": never,
            "device": "cpu",
            "data": data | {"store": store},
            "algorithm": {"name": "fedavg"},
            "evaluate": {"every": never},
            "checkpoint": {"every": never, "minutes": None},
            "metrics": {"enabled": False},
        }
    )


def bare(case: str, rank: int, size: int, channels_last: bool) -> Callable[[], None]:
    """A round of the hand-written loop."""
    import torch

    from bench.bare import FedAvg

    clients, samples = map(int, case.split("x"))
    own = len(range(rank, clients, size))
    images, labels = torch.randn(own * samples, 3, 32, 32), torch.randint(10, (own * samples,))
    return FedAvg(images, labels, own, min(32, samples), LR, own / clients, channels_last).round


def ours(case: str, here: Any, folder: str, variant: str) -> tuple[Callable[[], None], Any]:
    """A round of ours, and the run."""
    from bench import engine

    config = configuration(case, folder, **VARIANTS[variant])
    engine.stored(config, here)
    run = engine.federation(config, here, Path(folder) / "checkpoints")
    numbers = iter(range(engine.NEVER))
    return lambda: engine.one_round(run, next(numbers)), run


def speed(case: str, here: Any, folder: str, given: argparse.Namespace) -> dict[str, Any]:
    """Samples a second of each variant beside the bare loops, in turns."""
    from bench import engine

    clients, samples = map(int, case.split("x"))

    def timed(act: Callable[[], None]) -> Callable[[], float]:
        def block() -> float:
            here.comm.barrier()
            began = time.perf_counter()
            for _ in range(given.rounds):
                act()
            here.comm.barrier()
            return given.rounds * clients * samples / (time.perf_counter() - began)

        return block

    found = {}
    for variant in given.variants:
        act, run = ours(case, here, folder, variant)
        place = here.comm.rank, here.comm.size
        arms = {"ours": act} | {name: bare(case, *place, last) for name, last in BARE.items()}
        rates = in_turns({name: timed(arm) for name, arm in arms.items()}, given.blocks)
        found[variant] = {
            "width": engine.width(run),
            "samples_per_second": {k: Spread.of(v)._asdict() for k, v in rates.items()},
            "ratio": {name: ratio(rates["ours"], rates[name])._asdict() for name in BARE},
        }
        del act, run, arms
        gc.collect()
    return found


def alone(given: argparse.Namespace) -> None:
    """One rank of two rounds of one side, watched from outside; a bare one without fedcore."""
    side, case = given.alone, given.cases[0]
    if side in VARIANTS or side == JOINED:
        from bench import engine

        here = engine.join(configuration(case, given.store))
        act, _ = ours(case, here, given.store, side) if side in VARIANTS else (None, None)
    else:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        act = bare(case, rank, size, BARE[side]) if side in BARE else None
    for _ in range(2 if act else 0):
        act()
    time.sleep(0.5)  # long enough to be seen
    ranks.leave({})
    os._exit(0)


def worker(given: argparse.Namespace) -> None:
    """One rank of the comparison."""
    import torch

    from bench import engine
    from bench.lm_common import facts

    with ranks.scratch() as folder:
        here = engine.join(configuration(given.cases[0], folder))
        folder = given.store or here.comm.gather_json(folder)[0]
        found = facts(vars(given), torch.device("cpu"))
        found["cases"] = {case: speed(case, here, folder, given) for case in given.cases}
        here.comm.barrier()
    if here.comm.rank == 0 and not ranks.leave(found):
        finish(found, given)
    here.leave(together=True)


def memory(given: argparse.Namespace, store: str) -> dict[str, dict[str, float]]:
    """Peak PSS in bytes of all processes, by case and side."""
    found: dict[str, dict[str, float]] = {}
    for case in given.cases:
        floors = [TORCH, JOINED] if case == given.cases[0] else []
        for side in [*floors, *BARE, *given.variants]:
            words = ["--alone", side, "--cases", case, "--store", store]
            ran = ranks.run(__file__, words, given.ranks, watched=True)
            assert ran.memory is not None
            found.setdefault(case, {})[side] = ran.memory.pss
    return found


def sheet(found: dict[str, Any]) -> Sheet:
    """A row for each case and variant."""
    rows = []
    for case, variants in found["cases"].items():
        clients, samples = case.split("x")
        peaks = found.get("peak_pss", {}).get(case, {})
        for variant, values in variants.items():
            each = values["samples_per_second"]
            rows.append(
                [
                    f"{clients} clients x {samples}, {variant}",
                    str(values["width"]),
                    *(Spread(**values["ratio"][name]).told(".2f") for name in BARE),
                    " / ".join(f"{each[name]['median']:,.0f}" for name in ("ours", *BARE)),
                    " / ".join(gigabytes(peaks.get(name)) for name in (variant, *BARE)),
                ]
            )
    first: dict[str, float] = next(iter(found.get("peak_pss", {}).values()), {})
    floors = " and ".join(gigabytes(first.get(name)) for name in (TORCH, JOINED))
    return Sheet(
        "Rounds of FedAvg over those of a bare loop (545,098 parameters, batch 32, one epoch), "
        f"{found['settings']['ranks']} processes: samples a second, ratio of neighbouring blocks. "
        "Peak PSS of all processes together; of those that only import torch, or all of ours, and "
        f"join: {floors} GB.",
        [
            "ours",
            "width",
            "over bare",
            "over bare, channels last",
            "samples/s: ours / bare / channels last",
            "peak PSS, GB: ours / bare / channels last",
        ],
        rows,
    )


def gigabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e9:.2f}"


def finish(found: dict[str, Any], given: argparse.Namespace) -> None:
    found["sheets"] = [sheet(found)._asdict()]
    show(found)
    keep(given.out, found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=["32x128", "256x16"], help="clients x each")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--blocks", type=int, default=7, help="of each side")
    parser.add_argument("--rounds", type=int, default=1, help="in a block")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/round.json"))
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        alone(given)
    if ranks.is_rank():
        worker(given)
        return
    with ranks.scratch() as store:
        words = ["--cases", *given.cases, "--variants", *given.variants, "--store", store]
        for name in ("blocks", "rounds", "ranks"):
            words += [f"--{name}", str(getattr(given, name))]
        found = ranks.run(__file__, words, given.ranks).found
        if given.memory:
            found["peak_pss"] = memory(given, store)
    finish(found, given)


if __name__ == "__main__":
    main()

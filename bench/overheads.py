"""What metrics, lines and checkpoints together cost a round of the default job.

    PYTHONPATH=. .venv/bin/python bench/overheads.py [--blocks 9] [--rounds 1] [--ranks 2]

Two runs of the default job live in the same processes and take turns, block by block: one as the
command line starts it (an endpoint for Prometheus, metrics.jsonl, the console's lines, a checkpoint
after every round, all complete when the block ends), and one with none of them. Both are evaluated
after every round. Processor time is that of all threads of all processes, and steadier than the
clock on a busy machine. Counted is what can be told apart without comparing rounds: the seconds of
all calls that training waits for, and the processor time of all threads beside it.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import ranks
from bench.figures import Sheet, Spread, keep, show


def configuration(given: argparse.Namespace) -> Any:
    """The default job's, for as many rounds as are wanted."""
    from fedcore.config import RunConfig

    overrides = [
        f"rounds={(given.blocks + 2) * given.rounds}",
        "device=cpu",
        "metrics.port=0",
        "metrics.targets=null",
        "checkpoint.minutes=null",
        f"data.store={given.store}",
    ]
    return RunConfig.load(Path("launcher/configs/default.yaml"), overrides)


def block(here: Any, rounds: range, act: Callable[[int], None], end: Callable[[], None]) -> Any:
    """Seconds by the clock, of all ranks' processors, and of those the ones of other threads."""
    here.comm.barrier()
    began, spent, main = time.perf_counter(), time.process_time(), time.thread_time()
    for number in rounds:
        act(number)
    end()
    mine = time.process_time() - spent
    others = mine - (time.thread_time() - main)
    here.comm.barrier()
    wall = time.perf_counter() - began
    return wall, *map(sum, zip(*here.comm.gather_json([mine, others]), strict=True))


def measured(config: Any, here: Any, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Costs of each block, by side."""
    from bench import engine

    bare = engine.federation(config, here, folder / "bare")
    full, waited = engine.watched(config, here, folder / "full")
    sides: dict[str, tuple[Callable[[int], None], Callable[[], None]]] = {
        "without": (lambda number: engine.one_round(bare, number), lambda: None),
        "with": (lambda number: engine.saved_round(full, number), lambda: engine.saved(full)),
    }
    costs: dict[str, list[Any]] = {name: [] for name in sides}
    for number in range(-1, given.blocks):
        rounds = range((number + 1) * given.rounds, (number + 2) * given.rounds)
        for name in sides if number % 2 else reversed(sides):
            cost = block(here, rounds, *sides[name])
            if number >= 0:
                costs[name].append(cost)
        if number < 0:
            waited.clear()
    return costs | {"waited": sum(here.comm.gather_json(sum(waited)))}


def percent(costs: dict[str, Any], which: int) -> dict[str, float]:
    """How much more a block took with all of it; and all blocks together."""
    pairs = [(x[which], y[which]) for x, y in zip(costs["with"], costs["without"], strict=True)]
    each = Spread.of([100 * (x / y - 1) for x, y in pairs])
    with_it, without = map(sum, zip(*pairs, strict=True))
    return each._asdict() | {"in_all": 100 * (with_it / without - 1)}


def counted(costs: dict[str, Any], ranks: int) -> float:
    """Percent of the time of all ranks without."""
    beside = sum(x[2] for x in costs["with"]) - sum(x[2] for x in costs["without"])
    return 100 * (costs["waited"] + beside) / (ranks * sum(x[0] for x in costs["without"]))


def sheet(found: dict[str, Any]) -> Sheet:
    """One row by the clock, one by the processors."""
    rows = []
    for name in ("wall", "processor"):
        values = dict(found["percent"][name])
        in_all = values.pop("in_all")
        label = "by the clock" if name == "wall" else "processor time"
        rows.append([label, f"{Spread(**values).told('.1f')} %", f"{in_all:.1f} %"])
    rows.append(["counted", "", f"{found['percent']['counted']:.2f} %"])
    seconds = Spread(**found["round_seconds"]).told(".2f")
    return Sheet(
        "What the endpoint, metrics.jsonl, the console and a checkpoint after every round cost the "
        f"default job, {found['settings']['ranks']} processes; a round takes {seconds} s without.",
        ["", "more than without, neighbouring blocks", "in all"],
        rows,
    )


def worker(given: argparse.Namespace) -> None:
    """One rank."""
    import torch

    from bench import engine
    from bench.lm_common import facts

    config = configuration(given)
    here = engine.join(config)
    engine.stored(config, here)
    found = facts(vars(given), torch.device("cpu"))
    folder = Path(here.comm.gather_json(tempfile.mkdtemp(dir=given.store))[0])
    costs = measured(config, here, folder, given)
    found["costs"] = costs
    found["percent"] = {
        "wall": percent(costs, 0),
        "processor": percent(costs, 1),
        "counted": counted(costs, here.comm.size),
    }
    wall = [cost[0] / given.rounds for cost in costs["without"]]
    found["round_seconds"] = Spread.of(wall)._asdict()
    if here.comm.rank == 0:
        ranks.leave(found)
    here.leave(together=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=9, help="of each side")
    parser.add_argument("--rounds", type=int, default=1, help="in a block")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/overheads.json"))
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if ranks.is_rank():
        worker(given)
        return
    with ranks.scratch() as store:
        named = [(f"--{name}", str(getattr(given, name))) for name in ("blocks", "rounds", "ranks")]
        words = [*itertools.chain(*named), "--store", store]
        found = ranks.run(__file__, words, given.ranks).found
    found["sheets"] = [sheet(found)._asdict()]
    show(found)
    keep(given.out, found)


if __name__ == "__main__":
    main()

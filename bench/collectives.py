"""What the server does in a round, in bytes and milliseconds, on 1, 2, 4 and 8 ranks (gloo).

    PYTHONPATH=. .venv/bin/python bench/collectives.py [--ranks 1 2 4 8] [--repeats 7]

- order: one broadcast of anchors and global prototypes;
- upload: the clients' prototypes, counts and readings, sent by the piece in their order;
- average: the exact mean of flat models of 0.5M and 11M parameters, two clients a rank: turned into
  64-bit integers, added up on each rank, one integer sum over all ranks, turned back;
- beside it, in turns: the same clients added up as floats and one plain float all_reduce, and an
  integer sum in two levels (within halves of the ranks, between their first ranks, and back), which
  is what nodes with slow links between them would want.

Bytes are those that a rank hands in.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import ranks
from bench.figures import Sheet, Spread, in_turns, keep, ratio, show

SIZES = {"0.5M": 545_098, "11M": 11_173_962}  # the small CNN's parameters, ResNet-18's
CLASSES, WIDTH, READINGS = 10, 128, 14


class Levels:
    """An integer sum within each half of the ranks, between their first ranks, and back."""

    def __init__(self, rank: int, size: int) -> None:
        import torch.distributed as dist

        halves = [list(range(size // 2)), list(range(size // 2, size))]
        groups = [dist.new_group(half) for half in halves]  # all ranks make all groups
        self.leaders = dist.new_group([half[0] for half in halves])
        self.first, self.rank = halves[rank >= size // 2][0], rank
        self.half = groups[rank >= size // 2]

    def sum(self, values: Any) -> None:
        """In its place."""
        import torch.distributed as dist

        dist.reduce(values, self.first, group=self.half)
        if self.rank == self.first:
            dist.all_reduce(values, group=self.leaders)
        dist.broadcast(values, self.first, group=self.half)


def acts(here: Any, clients: int) -> tuple[dict[str, Callable[[], Any]], dict[str, int]]:
    """What is timed, and the bytes that a rank hands in at a time."""
    import torch
    import torch.distributed as dist

    from bench import engine
    from fedcore.clients.order import Upload
    from fedcore.server.uploads import pieces

    comm = here.comm
    order = torch.randn(4 + 2 * CLASSES * WIDTH, dtype=torch.float64)
    prototypes, rows = torch.randn(clients, CLASSES, WIDTH), torch.arange(clients)
    counts = torch.ones(clients, CLASSES, dtype=torch.int64)
    readings = torch.randn(clients, READINGS, dtype=torch.float64)
    mine = Upload(rows + comm.rank * clients, lambda at: prototypes[at], counts, readings)
    everyone = range(clients * comm.size)
    made: dict[str, Callable[[], Any]] = {
        "order": lambda: comm.broadcast(order),
        "upload": lambda: list(pieces(comm, mine, everyone)),
    }
    size = {
        "order": order.nbytes,
        "upload": 4 * len(everyone) * (1 + CLASSES + CLASSES * WIDTH + 2 * READINGS),
    }
    levels = Levels(comm.rank, comm.size) if comm.size >= 4 else None
    share = 1 / (clients * comm.size)
    for name, count in SIZES.items():
        models = [torch.randn(count) for _ in range(clients)]

        def plain(models: list[Any] = models) -> None:
            total = torch.zeros_like(models[0])
            for model in models:
                total.add_(model, alpha=share)
            if comm.size > 1:
                dist.all_reduce(total)

        whole = torch.zeros(count, dtype=torch.int64)
        exact = engine.averager(comm, clients, count)
        made |= {f"average, {name}": exact, f"floats, {name}": plain}
        size |= {f"average, {name}": 8 * count, f"floats, {name}": 4 * count}
        if comm.size > 1:
            made[f"integer sum, {name}"] = lambda whole=whole: comm.sum(whole)
            size[f"integer sum, {name}"] = 8 * count
        if levels:
            made[f"integer sum in two levels, {name}"] = lambda whole=whole: levels.sum(whole)
            size[f"integer sum in two levels, {name}"] = 8 * count
    return made, size


def worker(given: argparse.Namespace) -> None:
    """One rank of a world."""
    import torch

    from bench import engine
    from bench.lm_common import facts
    from fedcore.config import RunConfig

    here = engine.join(RunConfig.of({"device": "cpu"}))

    def timed(act: Callable[[], Any]) -> Callable[[], float]:
        def block() -> float:
            here.comm.barrier()
            began = time.perf_counter()
            act()
            here.comm.barrier()
            return 1000 * (time.perf_counter() - began)

        return block

    made, size = acts(here, given.clients)
    costs = in_turns({name: timed(act) for name, act in made.items()}, given.repeats)
    found = facts(vars(given), torch.device("cpu"))
    found["costs"] = {
        name: {
            "milliseconds": Spread.of(cost)._asdict(),
            "bytes": size[name] if here.comm.size > 1 else 0,
            "ratio": _beside(name, costs),
        }
        for name, cost in costs.items()
    }
    here.comm.barrier()
    if here.comm.rank == 0:
        ranks.leave(found)
    here.leave(together=True)


def _beside(name: str, costs: dict[str, list[float]]) -> dict[str, float] | None:
    """Of an average over that in floats, of two levels over one."""
    what, _, size = name.partition(", ")
    other = {"average": "floats", "integer sum in two levels": "integer sum"}.get(what)
    return ratio(costs[name], costs[f"{other}, {size}"])._asdict() if other else None


def sheet(found: dict[str, Any]) -> Sheet:
    """A row for each operation, a column for each world."""
    worlds = found["worlds"]
    names = list(dict.fromkeys(name for world in worlds.values() for name in world))
    rows = []
    for name in names:
        cells = [name, f"{max(w[name]['bytes'] for w in worlds.values() if name in w) / 1e6:.3f}"]
        for world in worlds.values():
            if name not in world:
                cells.append("")
                continue
            told = Spread(**world[name]["milliseconds"]).told(".1f")
            beside = world[name]["ratio"]
            cells.append(f"{told}; x {beside['median']:.2f}" if beside else told)
        rows.append(cells)
    return Sheet(
        "Milliseconds of what the server does in a round, "
        f"{found['settings']['clients']} clients a rank, all ranks on this machine; x: over the "
        "same in floats, or in one level.",
        ["", "MB from a rank", *(f"{n} rank(s)" for n in worlds)],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--clients", type=int, default=2, help="of each rank")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/collectives.json"))
    given = parser.parse_args()
    if ranks.is_rank():
        worker(given)
        return
    words = ["--clients", str(given.clients), "--repeats", str(given.repeats)]
    found, worlds = {}, {}
    for count in given.ranks:
        found = ranks.run(__file__, words, count).found
        worlds[str(count)] = found.pop("costs")
    found |= {"worlds": worlds}
    found["settings"] |= {"ranks": given.ranks}
    found["sheets"] = [sheet(found)._asdict()]
    show(found)
    keep(given.out, found)


if __name__ == "__main__":
    main()

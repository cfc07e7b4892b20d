"""The same samples dealt out to 10 ... 10,000 clients on 1 ... 8 ranks: a round's time and memory.

    PYTHONPATH=. .venv/bin/python bench/scale.py [--clients 100 1000 10000] [--ranks 2]

All numbers of clients train the same samples in batches of one size, so the same steps; more
clients only change hands more often. Each case is a group of processes of its own, whose memory is
watched from outside. FedAvg keeps no client's model; v14's clients rest on the disk. With `part` a
tenth of the clients, drawn by seed, trains in a round.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import ranks
from bench.figures import Sheet, Spread, keep, show

KINDS: dict[str, dict[str, Any]] = {
    "fedavg": {
        "model": {"name": "bench_cnn"},
        "clients": {"views": 1, "width": 1, "keep_models": False, "max_norm": 1e6, "lr": 0.01},
        "algorithm": {"name": "fedavg"},
    },
    "v14": {
        "model": {"name": "small_cnn"},
        "clients": {"views": 2, "width": 8, "store": "disk"},
        "algorithm": {"name": "v14"},
    },
}
KINDS["fedavg, part"] = KINDS["fedavg"]
IMAGES = {"fedavg": {"size": 32, "channels": 3}, "v14": {"size": 8, "channels": 1}}


class Case(NamedTuple):
    """A row."""

    kind: str
    clients: int
    ranks: int


def configuration(case: Case, given: argparse.Namespace) -> Any:
    """Of a run without metrics, checkpoints and evaluation."""
    from fedcore.config import RunConfig

    never, kind, samples = 1_000_000, case.kind.partition(",")[0], max(given.clients) * given.batch
    synthetic = {"samples": samples, "test_samples": 10, **IMAGES[kind]}
    clients = {"count": case.clients, "local_epochs": 1, "batch_size": given.batch}
    clients |= KINDS[case.kind]["clients"]
    if given.width:
        clients["width"] = given.width
    if case.kind.endswith("part"):
        clients["per_round"] = max(1, case.clients // 10)
    return RunConfig.of(
        {
            **KINDS[case.kind],
            "rounds": never,
            "device": given.device,
            "clients": clients,
            "data": {
                "source": "synthetic",
                "synthetic": synthetic,
                "partition": "iid",
                "augment": False,
                "store": given.store,
            },
            "evaluate": {"every": never},
            "checkpoint": {"every": never, "minutes": None},
            "metrics": {"enabled": False},
        }
    )


def worker(given: argparse.Namespace) -> None:
    """One rank of a case: seconds of its rounds after the first."""
    from bench import engine

    case = Case(*json.loads(given.case))
    config = configuration(case, given)
    here = engine.join(config)
    engine.stored(config, here)
    found: dict[str, Any] = {}
    if given.rounds:
        with tempfile.TemporaryDirectory(dir=given.store) as folder:
            began = time.perf_counter()
            run = engine.federation(config, here, Path(here.comm.gather_json(folder)[0]))
            here.comm.barrier()
            found = {"build": time.perf_counter() - began, "seconds": []}
            for number in range(given.rounds + 1):
                here.comm.barrier()
                began = time.perf_counter()
                engine.one_round(run, number)
                here.comm.barrier()
                found["seconds"].append(time.perf_counter() - began)
            found |= {"first": found["seconds"].pop(0), "width": engine.width(run)}
            here.comm.barrier()
    else:  # only the data, and what is said of the machine
        from bench.lm_common import facts

        found = facts(vars(given), here.device)
    if here.comm.rank == 0:
        ranks.leave(found)
    here.leave(together=True)


def measured(cases: list[Case], given: argparse.Namespace) -> dict[str, Any]:
    """All cases, one after another; what is there so far is kept."""
    found: dict[str, Any] = {"cases": []}
    fixed = ["--store", given.store, "--batch", str(given.batch), "--width", given.width]
    fixed += ["--clients", *map(str, given.clients), "--device", given.device]
    about: dict[tuple[str, int], Any] = {}  # by what the data are made of
    for case in cases:
        words, data = [*fixed, "--case", json.dumps(case)], (case.kind[:3], case.clients)
        if data not in about:
            about[data] = ranks.run(__file__, [*words, "--rounds", "0"], 1).found
        words += ["--rounds", str(given.rounds)]
        ran = ranks.run(__file__, words, case.ranks, watched=True, limit=given.limit)
        assert ran.memory is not None
        found = about[data] | {
            "settings": {k: str(v) for k, v in vars(given).items()},
            "cases": [*found["cases"], case._asdict() | ran.found | ran.memory._asdict()],
        }
        found["sheets"] = [sheet(found)._asdict()]
        keep(given.out, found)
    return found


def sheet(found: dict[str, Any]) -> Sheet:
    """A row for each case; the ratio is to the fewest clients of that kind on as many ranks."""
    rows, first = [], {}
    for case in found["cases"]:
        time_of = Spread.of(case["seconds"])
        base = first.setdefault((case["kind"], case["ranks"]), time_of.median)
        rows.append(
            [
                case["kind"],
                f"{case['clients']:,}",
                str(case["ranks"]),
                str(case["width"]),
                time_of.told(".2f"),
                f"{time_of.median / base:.2f}",
                f"{case['pss'] / 1e9:.2f}",
                f"{case['largest_rss'] / 1e9:.2f}",
                f"{case['largest_own'] / 1e9:.2f}",
            ]
        )
    settings = found["settings"]
    return Sheet(
        f"The same samples dealt out to more clients, batch {settings['batch']}: seconds of a "
        "round, peak memory in GB: PSS of all processes together, and of the largest process what "
        "is resident, with and without files.",
        ["", "clients", "ranks", "width", "round, s", "ratio", "PSS", "RSS", "RSS, no files"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1000, 10_000])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2])
    parser.add_argument("--batch", type=int, default=8, help="and samples of the smallest clients")
    parser.add_argument("--rounds", type=int, default=2, help="measured, after a first one")
    parser.add_argument("--width", default="", help="instead of each kind's own; may be auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a case")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/scale.json"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if ranks.is_rank():
        worker(given)
        return
    cases = [Case(k, n, r) for k in given.kinds for r in given.ranks for n in given.clients]
    with ranks.scratch() as given.store:
        found = measured(cases, given)
    show(found)


if __name__ == "__main__":
    main()

"""What being watched costs: the size and time of a scrape, and what it takes from a training step.

    PYTHONPATH=. .venv/bin/python bench/scrape.py [--clients 1000] [--ranks 8] [--interval 1]

First `ranks` processes serve the numbers of so many clients each, with a series for each client and
as quantiles, and one scraper reads them all. Then a process trains the default job's clients: bare,
with an endpoint that nobody reads, with one of `clients` clients that another process reads every
`interval` seconds, as quantiles or a series for each, and with one that is attacked: every second
100 connections that say nothing, 20 of endless headers and 80 readers at once. They take turns in
blocks; ratios are of neighbouring blocks, so that the load of the machine falls on all.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.lm_common import Spread, facts, keep, told
from fedcore.config import MetricsConfig
from fedcore.telemetry.events import ClientEvent, RoundEvent
from fedcore.telemetry.prometheus import PrometheusSink, RunFacts

WATCHED = {
    "idle": "nobody reads",
    "quantiles": "quantiles read every {:g} s",
    "per_client": "a series for each client read every {:g} s",
    "attacked": "attacked",
}
TERMS = ("cross_entropy", "supcon", "proto_feature", "proto_separation", "present_proto_to_anchor")


def sink(first: int, clients: int, ranks: int, limit: int) -> PrometheusSink:
    """An endpoint that has seen one round of its clients."""
    info = {"algorithm": "v14", "dataset": "synthetic", "model": "small_cnn", "seed": 0}
    config = MetricsConfig(port=0, per_client_limit=limit)
    made = PrometheusSink(config, 0, 1, RunFacts(info, clients * ranks, ranks, 50.0), print)
    for op in ("broadcast", "gather", "sum", "max"):
        made.traffic(op, 10_000, 0.01)
    for phase in ("order", "train", "collect", "evaluate", "checkpoint"):
        made.phase(phase, 1.5)
    made.write([*(client_event(first + k) for k in range(clients)), round_event()])
    return made


def client_event(client: int) -> ClientEvent:
    """A client whose numbers have as many digits as real ones."""
    x = (client * 0.6180339887) % 1 + 0.1
    parts = dict.fromkeys(TERMS, x / 3)
    return ClientEvent(0, client, 200, x, x / 7, 9 * x, 8 * x, 10 * x, x, x / 9, 0.97, 2 * x, parts)


def round_event() -> RoundEvent:
    """A round with the read-outs of v14."""
    names = ("iffi", "feature_ensemble", "output_ensemble", "nearest_prototype", "averaged")
    accuracy = dict.fromkeys(names, 0.8123)
    return RoundEvent(0, 10, 0.1, 0.97, accuracy, 0.1, 0.2, 0.3, 0.4, 0, {"train": 1.5}, 1e4, 10**6)


# -- size and time


def serve(first: int, clients: int, ranks: int, limit: int, pipe: Any) -> None:
    """A process that serves until the other end says something."""
    made = sink(first, clients, ranks, limit)
    pipe.send(made.address)
    pipe.recv()


def sizes(clients: int, ranks: int, limit: int, repeats: int) -> dict[str, Any]:
    """Bytes and seconds of one scrape of a rank, and seconds for all ranks in turn."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        words = (rank * clients, clients, ranks, limit, theirs)
        context.Process(target=serve, args=words, daemon=True).start()
        pipes.append(ours)
    addresses = [pipe.recv() for pipe in pipes]
    with urllib.request.urlopen(f"http://{addresses[0]}/metrics") as answer:
        plain = answer.read()
    each, whole = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        for address in addresses:
            start = time.perf_counter()
            packed = len(fetch(address))
            each.append(1000 * (time.perf_counter() - start))
        whole.append(1000 * (time.perf_counter() - began))
        time.sleep(0.3)  # until the page is made anew
    for pipe in pipes:
        pipe.send("over")
    series = sum(not line.startswith(b"#") for line in plain.splitlines())
    return {
        "series": series,
        "bytes": len(plain),
        "gzip_bytes": packed,
        "rank_ms": Spread.of(each)._asdict(),
        "all_ms": Spread.of(whole)._asdict(),
    }


def fetch(address: str) -> bytes:
    """One scrape, packed as Prometheus asks for it."""
    request = urllib.request.Request(
        f"http://{address}/metrics", headers={"Accept-Encoding": "gzip"}
    )
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
    return content


# -- what it takes from a step


def scrape_for_ever(address: str, interval: float) -> None:
    """Reads the page every `interval` seconds."""
    while True:
        fetch(address)
        time.sleep(interval)


class Training:
    """Blocks of real training: a round of one client of the default job, in this process."""

    def __init__(self, folder: Path) -> None:
        import torch

        from fedcore.server.comm import LocalComm
        from fedcore.telemetry.telemetry import Telemetry
        from launcher import prepare
        from launcher.build import build
        from launcher.cli import load_config
        from launcher.rundir import RunDir
        from launcher.world import Place, World

        config = load_config("default", [f"data.store={folder}", "data.alpha=1000"])
        world = World(Place.of(os.environ), torch.device("cpu"), LocalComm())
        torch.set_num_threads(1)
        store = prepare.ensure(config)
        checkpoints = RunDir(folder).checkpoints_of(config, world, "round")
        self.federation = build(config, store, world, Telemetry(), checkpoints, {})
        self.order = self.federation.server.order(0)
        self.clients = self.federation.group.clients

    def block(self, number: int, tick: Any) -> float:
        """Seconds of one block; which client it trains depends on the number."""
        who = frozenset({self.clients[number % len(self.clients)]})
        began = time.perf_counter()
        self.federation.group.train(self.order._replace(participants=who), tick)
        return time.perf_counter() - began


def attack_for_ever(address: str, interval: float) -> None:
    """Connections that say nothing, that do not stop talking, and all too many readers."""
    host, port = address.rsplit(":", 1)
    talk = b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 500_000
    while True:
        with contextlib.ExitStack() as held:
            for number in range(200):
                with contextlib.suppress(OSError):
                    end = held.enter_context(socket.create_connection((host, int(port)), 5))
                    if number >= 100:
                        end.sendall(talk if number < 120 else b"GET /metrics HTTP/1.1\r\n\r\n")
            time.sleep(interval)


@contextlib.contextmanager
def beside(act: Callable[[str, float], None], address: str, interval: float) -> Iterator[int]:
    """A process that does that; its id. It is stopped until it gets SIGCONT."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=act, args=(address, interval), daemon=True)
    process.start()
    assert process.pid is not None
    time.sleep(5)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield process.pid
    finally:
        os.kill(process.pid, signal.SIGKILL)


def slow_down(clients: int, interval: float, blocks: int, length: int) -> dict[str, Any]:
    """Seconds of training with an endpoint over seconds without, read and not read."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder))
        made, few = sink(0, clients, 1, limit=clients), sink(0, clients, 1, limit=0)
        arms: dict[str, list[float]] = {arm: [] for arm in ("bare", *WATCHED)}
        with (
            beside(scrape_for_ever, few.address, interval) as reader,
            beside(scrape_for_ever, made.address, interval) as big_reader,
            beside(attack_for_ever, made.address, 1.0) as attacker,
        ):
            busy = {"quantiles": reader, "per_client": big_reader, "attacked": attacker}
            for number in range(-1, blocks):
                for arm in arms if number % 2 else reversed(arms):
                    tick = (lambda n: None) if arm == "bare" else made.samples
                    with going(busy.get(arm)):
                        took = sum(training.block(k, tick) for k in range(length))
                    if number >= 0:  # the first is a warm-up
                        arms[arm].append(took)
    found: dict[str, Any] = {"block_seconds": Spread.of(arms["bare"])._asdict()}
    for arm in WATCHED:
        pairs = [x / y for x, y in zip(arms[arm], arms["bare"], strict=True)]
        in_all = sum(arms[arm]) / sum(arms["bare"])
        found[arm] = {**Spread.of(pairs)._asdict(), "in_all": in_all}
    return found


@contextlib.contextmanager
def going(process: int | None) -> Iterator[None]:
    """Lets a stopped process go on meanwhile."""
    if process is not None:
        os.kill(process, signal.SIGCONT)
    yield
    if process is not None:
        os.kill(process, signal.SIGSTOP)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000, help="of each rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between scrapes")
    parser.add_argument("--blocks", type=int, default=15, help="of each kind")
    parser.add_argument("--length", type=int, default=8, help="client-rounds in a block")
    parser.add_argument("--repeats", type=int, default=10, help="scrapes of each rank")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/scrape.json"))
    given = parser.parse_args()
    import torch

    found = facts(vars(given), torch.device("cpu"))
    found["per_client"] = sizes(
        given.clients, given.ranks, given.clients * given.ranks, given.repeats
    )
    found["quantiles"] = sizes(given.clients, given.ranks, 100, given.repeats)
    what = f"{given.ranks} ranks x {given.clients:,} clients"
    print(f"| {what} | series a rank | kB | gzip kB | ms a rank | ms all ranks |")
    print("|---|---|---|---|---|---|")
    for name in ("per_client", "quantiles"):
        row = found[name]
        each, whole = (Spread(**row[k]).told(".1f") for k in ("rank_ms", "all_ms"))
        size = f"{row['bytes'] / 1e3:,.0f} | {row['gzip_bytes'] / 1e3:,.1f}"
        print(f"| {name.replace('_', ' ')} | {row['series']:,} | {size} | {each} | {whole} |")
    found["step"] = slow_down(given.clients, given.interval, given.blocks, given.length)
    for arm, words in WATCHED.items():
        row = found["step"][arm]
        ratio = Spread(row["median"], row["low"], row["high"]).told(".3f")
        print(
            f"step, {words.format(given.interval)}, over bare: {ratio}, in all {row['in_all']:.3f}"
        )
    print(told(found))
    keep(given.out, found)


if __name__ == "__main__":
    main()

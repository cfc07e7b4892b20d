"""The doctor's visit: the steps in order, on every rank it is started on."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.config import RunConfig
from launcher.doctor import disk, machine, ports, shards, slurm, watched
from launcher.doctor.check import Check, Look, tried
from launcher.doctor.table import code, show

if TYPE_CHECKING:
    import torch

    from launcher.world import Place

COMING = 2.0  # times the patience: importing torch from a busy file system takes its time


@dataclass(frozen=True)
class Options:
    """What the visit is about."""

    config: RunConfig = RunConfig()
    folder: Path = Path()
    """Where runs are kept."""
    patience: float = 30.0
    """Seconds a step may take before the ranks that have not ended it are named."""
    megabytes: int = 64
    """MiB of the large all_reduce, and of the file written."""
    prometheus: str | None = None
    """URL; None = where it usually is, and good to have."""
    as_json: bool = False


def visit(options: Options) -> int:
    """The exit code, the same on every rank; the lowest rank prints what was found."""
    block_sigterm()
    first = tried("packages", machine.packages)
    first += tried("fedcore", machine.imports)
    if code([(0, check) for check in first]):  # without these there is no joining the others
        show([(0, check) for check in first], [_node()], options.as_json)
        unblock_sigterm()
        return 1
    from launcher.doctor.ranks import Visit

    return Visit(options, first)()


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def of_rank(place: Place, device: torch.device) -> Iterator[Check]:
    """What each rank looks at for itself."""
    from launcher.doctor.compute import computing

    looks: dict[str, Look] = {
        "devices": lambda: machine.devices(place.local_rank if place.local_size > 1 else None),
        "computing": lambda: computing(device),
        "open files": lambda: machine.open_files(place.size),
        "/dev/shm": lambda: machine.shared_memory(place.local_size),
        "memory": lambda: machine.memory(place.local_size),
    }
    yield from _all(looks)


def of_node(options: Options, place: Place, device: torch.device) -> Iterator[Check]:
    """What one rank of each node looks at for all of it."""
    if place.local_rank:
        return
    metrics, count = options.config.metrics, max(place.local_size, 1)
    looks: dict[str, Look] = {
        "metrics ports": lambda: ports.metrics_ports(metrics.bind, metrics.port, count),
        "folder of runs": lambda: disk.room(options.folder),
        "writing": lambda: disk.speed(options.folder, options.megabytes * 2**20),
    }
    if device.type == "cuda":
        looks["driver"] = machine.driver
    yield from _all(looks)


def of_site(options: Options, place: Place) -> Iterator[Check]:
    """What is the same for all nodes, by rank 0."""
    if place.rank:
        return
    looks: dict[str, Look] = {
        "shards": lambda: shards.of_run(options.config),
        "torchrun": watched.torchrun,
        "Slurm": slurm.slurm,
        "Prometheus": lambda: watched.prometheus(options.prometheus),
        "targets folder": lambda: watched.targets(options.config.metrics.targets),
    }
    if place.size == 1:
        looks["rendezvous port"] = ports.rendezvous_port
    yield from _all(looks)


def _all(looks: dict[str, Look]) -> Iterator[Check]:
    for name, look in looks.items():
        yield from tried(name, look)


def block_sigterm() -> None:
    """Keep SIGTERM for `Roll.listen`; before any thread starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def unblock_sigterm() -> None:
    """Let SIGTERM end this process again."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

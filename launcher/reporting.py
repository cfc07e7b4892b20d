"""Telemetry of a run: which sinks this rank has, and the table at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from data_shards.manifest import Manifest
from fedcore.algorithms import resolve
from fedcore.clients.assign import balance
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.server.comm import together
from fedcore.telemetry.console import ConsoleSink, accuracy_table
from fedcore.telemetry.jsonl import JsonlSink
from fedcore.telemetry.prometheus import PrometheusSink, write_targets
from fedcore.telemetry.telemetry import Telemetry
from launcher.rundir import RunDir
from launcher.world import World


def telemetry_of(config: RunConfig, run: RunDir, manifest: Manifest, world: World) -> Telemetry:
    """This rank's sinks; collective, since rank 0 writes all ranks' addresses for Prometheus."""
    samples = [part.samples for part in manifest.clients]
    own = balance(samples, world.comm.size)[world.comm.rank]
    first = world.comm.rank == 0
    telemetry = Telemetry()
    if first:
        telemetry.jsonl = JsonlSink(run.metrics, warn)
        telemetry.console = _console(config, run, samples, own, world)
    if config.metrics.enabled:
        with together(world.comm):
            telemetry.prometheus = _endpoint(config, len(own), world)
        mine = (world.place.rank, world.node, telemetry.prometheus.address)
        everyone = world.comm.gather_json(mine)
        if first:
            write_targets(run.targets, [tuple(a) for a in everyone], run.path.name)
    return telemetry


def warn(words: str) -> None:
    """One line on standard error."""
    print(f"fedcore: warning: {words}", file=sys.stderr, flush=True)


def _console(
    config: RunConfig, run: RunDir, samples: list[int], own: list[int], world: World
) -> ConsoleSink:
    algorithm = resolve(config.algorithm)
    working = sum(n > 0 for n in samples)
    title = (
        f"{config.algorithm.name} on {config.data.source}: {working} clients, "
        f"{config.rounds} rounds, {world.comm.size} rank(s), {world.device.type} -> {run.path}"
    )
    per_round = sum(samples[k] for k in own) * config.clients.local_epochs
    return ConsoleSink(config.rounds, max(per_round, 1), algorithm.readout, title)


def _endpoint(config: RunConfig, own: int, world: World) -> PrometheusSink:
    info = {
        "algorithm": config.algorithm.name,
        "dataset": config.data.source,
        "model": config.model.name,
        "seed": str(config.seed),
        "digest": config.digest(),
    }
    try:
        return PrometheusSink(
            config.metrics,
            local_rank=world.place.local_rank,
            local_size=world.place.local_size,
            clients=config.clients.count,
            own=own,
            info=info,
            warn=lambda words: warn(f"rank {world.place.rank}: {words}"),
        )
    except OSError as error:
        where = f"{config.metrics.bind}:{config.metrics.port}"
        problem = f"an address to listen on ({error})"
        raise ConfigError("metrics.port", where, problem, "metrics.port=0") from None


def final_table(summary: dict[str, Any], main: str, path: Path) -> None:
    """The accuracies of a completed run, and where its files are."""
    console = Console(highlight=False)
    if summary["accuracy"]:
        console.print(accuracy_table(summary["accuracy"], main))
    console.print(
        f"{summary['rounds']} rounds in {summary['wall_seconds']:.1f} s, "
        f"{summary['samples_per_second']:,.0f} samples/s; results in {path}",
        soft_wrap=True,
    )

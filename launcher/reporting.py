"""Telemetry of a run: which sinks this rank has, and the table at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedcore.algorithms import resolve
from fedcore.config import RunConfig
from fedcore.server.comm import together
from fedcore.telemetry.console import ConsoleSink, final_table
from fedcore.telemetry.jsonl import JsonlSink
from fedcore.telemetry.prometheus import PrometheusSink
from fedcore.telemetry.targets import write_targets
from fedcore.telemetry.telemetry import Telemetry, to_stderr
from launcher.rundir import RunDir, storage
from launcher.world import World


def telemetry_of(config: RunConfig, run: RunDir, own: int, world: World) -> Telemetry:
    """This rank's sinks (own: samples it holds).

    Collective, since rank 0 writes all ranks' addresses for Prometheus.
    """
    first = world.comm.rank == 0
    meter = _endpoint(config, run, world) if config.metrics.enabled else None
    if not first:
        return Telemetry((), meter)
    readout = resolve(config.algorithm).readout
    console = ConsoleSink(
        config.rounds, config.algorithm.name, readout, per_round=own * config.clients.local_epochs
    )
    return Telemetry([console, JsonlSink(run.metrics, to_stderr)], meter, tick=console.trained)


def _endpoint(config: RunConfig, run: RunDir, world: World) -> PrometheusSink:
    info = {
        "algorithm": config.algorithm.name,
        "dataset": config.data.source,
        "model": config.model.name,
        "seed": config.seed,
        "digest": config.digest(),
    }
    with together(world.comm):
        meter = PrometheusSink(
            config.metrics,
            world.place.local_rank,
            world.place.local_size,
            info,
            config.clients.count,
            lambda words: to_stderr(f"rank {world.place.rank}: {words}"),
        )
    mine = (world.place.rank, world.node, meter.address)
    everyone = [(r, n, a) for r, n, a in world.comm.gather_json(mine)]
    with together(world.comm):
        if world.comm.rank == 0:
            with storage(run.path):
                write_targets(run.targets, everyone, run.path.name)
    return meter


def final_words(summary: dict[str, Any], config: RunConfig, path: Path) -> None:
    """The accuracies of a completed run, and where its files are."""
    readout = resolve(config.algorithm).readout
    final_table(summary["accuracy"], readout, f"{config.algorithm.name} on {config.data.source}")
    print(
        f"{summary['rounds']} rounds in {summary['wall_seconds']:.1f} s, "
        f"{summary['samples_per_second']:,.0f} samples/s; results in {path}",
        flush=True,
    )

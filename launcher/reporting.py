"""Telemetry of a run: which sinks this rank has, and the table at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedcore.algorithms import resolve
from fedcore.config import RunConfig
from fedcore.server.comm import together
from fedcore.telemetry.console import ConsoleSink, final_table
from fedcore.telemetry.jsonl import JsonlSink
from fedcore.telemetry.lm_console import LMConsole
from fedcore.telemetry.prometheus import PrometheusSink
from fedcore.telemetry.targets import write_targets
from fedcore.telemetry.telemetry import Telemetry, to_stderr
from launcher.rundir import RunDir, storage
from launcher.world import World


def federated_telemetry(config: RunConfig, run: RunDir, own: int, world: World) -> Telemetry:
    """This rank's sinks (own: samples it holds).

    Collective, since rank 0 writes all ranks' addresses for Prometheus.
    """
    first = world.comm.rank == 0
    meter = _endpoint(config, run, world, federated_info(config), config.clients.count)
    if not first:
        return Telemetry((), meter)
    readout = resolve(config.algorithm).readout
    console = ConsoleSink(
        config.rounds, config.algorithm.name, readout, per_round=own * config.clients.local_epochs
    )
    return Telemetry([console, JsonlSink(run.metrics, to_stderr)], meter, tick=console.trained)


def lm_telemetry(config: RunConfig, run: RunDir, world: World) -> Telemetry:
    """This rank's sinks of a language-model run. Collective."""
    assert config.lm is not None
    meter = _endpoint(config, run, world, lm_info(config), clients_of(config))
    if world.comm.rank:
        return Telemetry((), meter)
    return Telemetry([LMConsole(config.lm.steps), JsonlSink(run.metrics, to_stderr)], meter)


def federated_info(config: RunConfig) -> dict[str, Any]:
    """What `run_info` says of a federated run."""
    names = (config.algorithm.name, config.data.source, config.model.name)
    return dict(zip(("algorithm", "dataset", "model"), names, strict=True))


def lm_info(config: RunConfig) -> dict[str, Any]:
    """What `run_info` says of a language-model run."""
    lm = config.lm
    assert lm is not None
    return {
        "algorithm": lm.optimizer.name,
        "dataset": "python" if lm.data.text is None else lm.data.text.name,
        "model": f"transformer-{lm.model.layers}x{lm.model.width}",
        "schedule": lm.schedule.name,
        "engine": lm.engine,
    }


def clients_of(config: RunConfig) -> int:
    """Clients of a language-model run: none unless it is federated."""
    federated = config.lm.federated if config.lm else None
    return federated.clients if federated else 0


def _endpoint(
    config: RunConfig, run: RunDir, world: World, info: dict[str, Any], clients: int
) -> PrometheusSink | None:
    """This rank's endpoint, if one is wanted; rank 0 writes all addresses. Collective."""
    if not config.metrics.enabled:
        return None
    info = info | {"seed": config.seed, "digest": config.digest()}
    with together(world.comm):
        meter = PrometheusSink(
            config.metrics,
            world.place.local_rank,
            world.place.local_size,
            info,
            clients,
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

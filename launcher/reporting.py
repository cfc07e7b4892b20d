"""Telemetry of a run: which sinks this rank has, and the table at the end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcore.algorithms import resolve
from fedcore.config import MetricsConfig, RunConfig
from fedcore.config_text import flatten
from fedcore.server.comm import together
from fedcore.telemetry.console import ConsoleSink, final_table
from fedcore.telemetry.jsonl import JsonlSink
from fedcore.telemetry.lm_console import LMConsole
from fedcore.telemetry.prometheus import PrometheusSink, RunFacts
from fedcore.telemetry.sinks import Sink
from fedcore.telemetry.targets import Address, Listing, is_loopback, place_of, reachable
from fedcore.telemetry.telemetry import Telemetry, to_stderr
from fedcore.telemetry.trackers import TrackerSink
from launcher.rundir import RunDir, storage
from launcher.world import World


def federated_telemetry(config: RunConfig, run: RunDir, own: int, world: World) -> Telemetry:
    """This rank's sinks (own: samples it holds).

    Collective, since rank 0 writes all ranks' addresses for Prometheus.
    """
    algorithm = resolve(config.algorithm)
    limit = None if algorithm.rule.learner is None else algorithm.rule.limit
    facts = RunFacts(
        federated_info(config), config.clients.count, world.comm.size, limit, world.device
    )
    meter, at_end = _endpoint(config, run, world, facts)
    if world.comm.rank:
        return Telemetry((), meter)
    console = ConsoleSink(
        config.rounds,
        config.algorithm.name,
        algorithm.readout,
        per_round=own * config.clients.local_epochs,
    )
    sinks: list[Sink] = [console, JsonlSink(run.metrics, to_stderr), *_trackers(config, run)]
    return Telemetry(sinks, meter, tick=console.trained, at_end=at_end)


def lm_telemetry(config: RunConfig, run: RunDir, world: World) -> Telemetry:
    """This rank's sinks of a language-model run. Collective."""
    assert config.lm is not None
    facts = RunFacts(
        lm_info(config), clients_of(config), world.comm.size, lambda_limit=None, device=world.device
    )
    meter, at_end = _endpoint(config, run, world, facts)
    if world.comm.rank:
        return Telemetry((), meter)
    console = LMConsole(config.lm.steps)
    sinks: list[Sink] = [console, JsonlSink(run.metrics, to_stderr), *_trackers(config, run)]
    return Telemetry(sinks, meter, at_end=at_end)


def _trackers(config: RunConfig, run: RunDir) -> list[Sink]:
    """The experiment trackers that the configuration asks for."""
    flat, limit = flatten(config.plain()), config.metrics.per_client_limit
    return [
        TrackerSink(name, run.trackers, run.path.resolve().name, flat, limit)
        for name in dict.fromkeys(config.metrics.trackers)
    ]


def federated_info(config: RunConfig) -> dict[str, Any]:
    """What `run_info` says of a federated run."""
    rule = resolve(config.algorithm).rule
    learned = rule.learner is not None
    return {
        "algorithm": config.algorithm.name,
        "dataset": config.data.source,
        "model": config.model.name,
        "weighting": "learned" if learned else "fixed" if any(rule.start.span) else "none",
    }


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
    config: RunConfig, run: RunDir, world: World, facts: RunFacts
) -> tuple[PrometheusSink | None, Callable[[], None] | None]:
    """This rank's endpoint, if one is wanted, and what takes the ranks out of Prometheus.

    Rank 0 writes all addresses. Collective.
    """
    if not config.metrics.enabled:
        return None, None
    info = {"kind": "federated" if config.lm is None else "lm", **facts.info}
    info |= {"seed": config.seed, "digest": config.digest()}
    if job := os.environ.get("SLURM_JOB_ID"):
        info["slurm_job"] = job
    place = world.place
    with together(world.comm):
        meter = PrometheusSink(
            config.metrics,
            place.local_rank,
            place.local_size,
            replace(facts, info=info, place=place_of(run.path)),
            lambda words: to_stderr(f"rank {place.rank}: {words}"),
        )
    mine = (place.rank, world.node, reachable(meter.address, socket.gethostname()))
    everyone: list[Address] = [(r, n, a) for r, n, a in world.comm.gather_json(mine)]
    at_end = None
    with together(world.comm):
        if world.comm.rank == 0:
            for words in unreachable_or_open(config.metrics, {node for _, node, _ in everyone}):
                to_stderr(words)
            with storage(run.path):
                listing = Listing(run.targets, config.metrics.targets, everyone, run.label)
            if listing.problem:
                to_stderr(f"metrics.targets cannot be written, the run goes on: {listing.problem}")
            at_end = listing.withdraw
    return meter, at_end


def unreachable_or_open(metrics: MetricsConfig, nodes: Collection[str]) -> Iterator[str]:
    """What an operator should know about who can read the metrics."""
    if is_loopback(metrics.bind):
        if len(nodes) > 1:
            yield (
                f"metrics of {len(nodes)} nodes can be read on each node alone: metrics.bind is "
                f"{metrics.bind}. metrics.bind=0.0.0.0 opens them to a Prometheus elsewhere"
            )
    elif metrics.credentials is None:
        yield (
            f"metrics.bind={metrics.bind}: whoever reaches this machine can read the metrics. "
            "metrics.credentials asks for a password"
        )
    elif metrics.certificate is None:
        yield "metrics.credentials without metrics.certificate: the password is sent in the clear"


def final_words(summary: dict[str, Any], config: RunConfig, path: Path) -> None:
    """The accuracies of a completed run, and where its files are."""
    readout = resolve(config.algorithm).readout
    final_table(summary["accuracy"], readout, f"{config.algorithm.name} on {config.data.source}")
    print(
        f"{summary['rounds']} rounds in {summary['wall_seconds']:.1f} s, "
        f"{summary['samples_per_second']:,.0f} samples/s; results in {path}",
        flush=True,
    )

"""The federated kind of job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_shards.folder import Folder
from data_shards.manifest import Manifest
from fedcore.checkpoint import Checkpoint
from fedcore.config import RunConfig
from fedcore.federation import Federation, Outcome
from fedcore.server.comm import together
from fedcore.telemetry.telemetry import Telemetry
from launcher import prepare
from launcher.build import (
    build,
    build_objects,
    check_names,
    of_width,
    owned_lanes,
    settle_width,
    warnings,
)
from launcher.entry import Identity
from launcher.reporting import federated_telemetry, final_words
from launcher.rundir import RunDir
from launcher.width import Choice
from launcher.world import World


class Federated:
    """Clients with data of their own, and a server of collectives."""

    name = "federated"

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.store: Folder = Path()
        self.manifest: Manifest | None = None
        self.federation: Federation | None = None

    def prepare(self) -> Folder:
        check_names(self.config)
        return prepare.ensure(self.config)

    def open(self, store: Folder) -> str:
        self.store, self.manifest = store, Manifest.load(store)
        return self.manifest.digest()

    @property
    def _opened(self) -> Manifest:
        assert self.manifest is not None, "open comes first"
        return self.manifest

    def settle(self, world: World, checkpoint: Checkpoint | None) -> str:
        clients = self.config.clients
        if clients.width != "auto":
            return ""
        held = checkpoint.facts.get("width") if checkpoint else None
        choice = (
            settle_width(self.config, self._opened, world) if held is None else Choice(held, {})
        )
        self.config = of_width(self.config, choice.width)
        rates = ", ".join(f"{width}: {rate:.0f}" for width, rate in choice.rates.items())
        return f"clients.width=auto: {choice.width}" + (
            f" (steps/s by width {rates})" if rates else ""
        )

    def title(self, world: World) -> str:
        config = self.config
        return (
            f"{config.algorithm.name} on {config.data.source}: {config.clients.count} clients, "
            f"{config.rounds} rounds, {world.comm.size} rank(s) on {world.device.type}"
        )

    def telemetry(self, run: RunDir, world: World) -> Telemetry:
        samples = [part.samples for part in self._opened.clients]
        lanes = owned_lanes(self.config, samples, world.comm.size)[world.comm.rank]
        own = sum(samples[k] for lane in lanes for k in lane)
        return federated_telemetry(self.config, run, own, world)

    def warnings(self, ranks: int) -> list[str]:
        return warnings(self.config, self._opened, ranks)

    def build(
        self, world: World, telemetry: Telemetry, run: RunDir, identity: Identity
    ) -> Federation:
        with together(world.comm):
            if world.comm.rank == 0:
                counts = [part.label_counts for part in self._opened.clients]
                run.write_clients(self._opened.classes, counts, self._opened.class_names)
        checkpoints = run.checkpoints_of(self.config, world, "round")
        self.federation = build(self.config, self.store, world, telemetry, checkpoints, identity)
        return self.federation

    def facts(self) -> dict[str, Any]:
        outcome = self.federation.outcome if self.federation else Outcome()
        return {
            "algorithm": self.config.algorithm.name,
            "dataset": self.config.data.source,
            "clients": self.config.clients.count,
            "width": self.config.clients.width,
            **outcome.facts(),
            "samples_per_second": outcome.samples / max(outcome.wall_seconds, 1e-9),
        }

    def show(self, summary: dict[str, Any], path: Path) -> None:
        final_words(summary, self.config, path)

    def close(self) -> None:
        """Nothing is held."""

    def dry_run(self) -> str:
        config = self.config
        algorithm, model, anchors = build_objects(config, *prepare.shape_and_classes(config))
        parameters = sum(p.numel() for p in model.parameters())
        return (
            f"{config.algorithm.name} ({algorithm.about}) on {config.data.source}: "
            f"{config.clients.count} clients, {config.rounds} rounds, {config.model.name} with "
            f"{parameters:,} parameters, {tuple(anchors.shape)} anchors"
        )

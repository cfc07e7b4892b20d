"""What a kind of job must bring: the life of a run around it is written once, in job.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from data_shards.folder import Folder
from fedcore.checkpoint import Checkpoint
from fedcore.telemetry.telemetry import Telemetry
from launcher.entry import Identity
from launcher.rundir import RunDir
from launcher.world import World


class Trainer(Protocol):
    """A run that is built, on this rank."""

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from that checkpoint."""

    def run(self) -> Any:
        """All that is left of it."""


class Kind(Protocol):
    """Federated or language model. Made of a configuration; nothing is looked at before it runs."""

    name: str  # `kind` in summary.json

    def prepare(self) -> Folder:
        """Look every name up and make the data, on rank 0: their folder."""

    def open(self, store: Folder) -> str:
        """Read what the data are, on every rank: their SHA-256 by content."""

    def settle(self, world: World, checkpoint: Checkpoint | None) -> str:
        """Decide what the configuration leaves to the machine, unless a checkpoint says what was
        decided; what there is to tell of it, if anything. Collective."""

    def title(self, world: World) -> str:
        """What is about to run, in a line."""

    def telemetry(self, run: RunDir, world: World) -> Telemetry:
        """Telemetry with this rank's sinks. Collective."""

    def warnings(self, ranks: int) -> list[str]:
        """What is unusual, in words; nothing of it stops a run."""

    def build(self, world: World, telemetry: Telemetry, run: RunDir, identity: Identity) -> Trainer:
        """Everything on this rank; the same error on every rank if any fails."""

    def facts(self) -> dict[str, Any]:
        """What summary.json says of this kind of run, so far; at its start nothing but names."""

    def show(self, summary: dict[str, Any], path: Path) -> None:
        """The last words of a completed run."""

    def close(self) -> None:
        """Let go of what a process must not hold at its end."""

    def dry_run(self) -> str:
        """Resolve and build all that needs no data and no other rank; what was built, in a line."""

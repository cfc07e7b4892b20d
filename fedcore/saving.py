"""Saving a run: when a checkpoint is there already, what is logged of it, what waits for it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from fedcore.checkpoint_writer import Checkpoints, Contents
from fedcore.errors import CollectiveError
from fedcore.server.pause import Pauses
from fedcore.telemetry.telemetry import Telemetry

PATIENCE = 60.0  # seconds for the last checkpoint of a run that ends in an error

Place = tuple[int, int]
"""Rounds (or steps) done, and the number of the pause within the one that is under way."""


class Saving:
    """The checkpoints of one run, one at a time. As a context it lets the last one be finished."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        telemetry: Telemetry,
        pauses: Pauses,
        warn: Callable[[str], None],
    ) -> None:
        self.checkpoints, self.telemetry, self.pauses = checkpoints, telemetry, pauses
        self._warn = warn
        self._newest: Place | None = None  # which need not be written yet

    def has(self, number: int, part: int = 0) -> bool:
        """Whether this place needs no checkpoint any more. Waits for the one being written."""
        self.settle()
        return self._newest == (number, part)

    def found(self, number: int, part: int = 0) -> None:
        """The run goes on from a checkpoint of its own."""
        self._newest = (number, part)

    def start(self, contents: Callable[[], Contents], number: int, part: int = 0) -> None:
        """Write a checkpoint while training goes on, unless there is one. Collective."""
        if self.has(number, part):
            return
        self.checkpoints.save(contents(), number, part)
        self._newest = (number, part)
        self.pauses.saved()
        self.settle(0)

    def finish(self, contents: Callable[[], Contents], number: int, part: int = 0) -> None:
        """Write a checkpoint unless there is one, and wait for it.

        Raises `StorageError` on every rank if it cannot be written.
        """
        if self.has(number, part):
            return
        self.checkpoints.save(contents(), number, part)
        ended = self.checkpoints.settle()
        if ended is None:
            return
        if ended.error:
            raise ended.error
        self._newest = (number, part)
        self.telemetry.checkpointed(ended.time)

    def settle(self, patience: float | None = None) -> None:
        """Tell how the last checkpoint ended; wait for it so many seconds (None: until then)."""
        ended = self.checkpoints.settle(patience)
        if ended is None:
            return
        if ended.error is None:
            self.telemetry.checkpointed(ended.time)
            return
        self._newest = None
        if isinstance(ended.error, CollectiveError):
            raise ended.error
        self.telemetry.checkpoint_failed()
        self._warn(f"no checkpoint {ended.name}: {ended.error}. Older ones stay; the run goes on")

    def __enter__(self) -> Saving:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, CollectiveError) or not isinstance(error, Exception | None):
            return  # the other ranks' threads are gone as well; or somebody cannot wait
        self.settle(None if error is None else PATIENCE)
        self.checkpoints.close()

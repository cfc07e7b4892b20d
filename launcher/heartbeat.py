"""Signs of life between the ranks, and what they tell each other with them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

from fedcore.errors import CollectiveError
from fedcore.server.pause import Pauses

BEAT = 1.0  # seconds between signs of life


class Store(Protocol):
    """What is used of torch's rendezvous store."""

    def set(self, key: str, value: str) -> None:
        """Write a value under a key."""

    def get(self, key: str) -> bytes:
        """The value under a key; waits until there is one."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys have values."""


class Heartbeat:
    """A dead or frozen rank ends the others soon; a wish for a pause reaches all.

    Each rank beats for itself and watches the next rank only; what one finds it posts for all.
    A rank waiting in a collective would else learn of a frozen peer after the collective's timeout.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        patience: float,  # seconds
        pauses: Pauses,
        on_lost: Callable[[CollectiveError], None],
    ) -> None:
        self.rank, self.size, self.store, self.patience = rank, size, store, patience
        self.pauses, self.on_lost = pauses, on_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching: the ranks part on purpose."""
        self._over.set()
        self._thread.join(timeout=2 * BEAT)

    def _run(self) -> None:
        beats, seen = 0, ""
        since = woke = time.monotonic()
        neighbour = (self.rank + 1) % self.size
        while not self._over.wait(BEAT):
            slept, woke = time.monotonic() - woke, time.monotonic()
            if slept > 3 * BEAT:  # this process itself was suspended: judge nobody by it
                since = woke
            try:
                beats += 1
                self.store.set(f"beat{self.rank}", str(beats))
                if self.store.check(["lost"]):
                    return self._lost(self.store.get("lost").decode())
                self._pass_on_wishes()
                now = self._beat_of(neighbour)
            except (RuntimeError, OSError):
                if self._over.is_set():
                    return None
                return self._lost("the rendezvous store is gone: its node or rank 0 was lost")
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self.patience:
                words = f"rank {neighbour} gave no sign of life for {self.patience:g} s"
                with contextlib.suppress(RuntimeError, OSError):  # the store may be gone as well
                    self.store.set("lost", words)
                return self._lost(words)
        return None

    def _pass_on_wishes(self) -> None:
        """Tell the others what this rank was asked for, and take what they were asked for."""
        pauses = self.pauses
        alarm = f"alarm{pauses.run}"
        if pauses.stop_requested:
            self.store.set("stop", "asked")
        elif self.store.check(["stop"]):
            pauses.stop_requested = True
        if pauses.alarm:
            self.store.set(alarm, "raised")
        elif self.store.check([alarm]) and alarm == f"alarm{pauses.run}":
            pauses.alarm = True
        if pauses.leads:
            pauses.ask_if_due()
            self.store.set("saves", str(pauses.saves))
        elif self.store.check(["saves"]):
            pauses.saves = int(self.store.get("saves"))

    def _beat_of(self, rank: int) -> str:
        key = f"beat{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _lost(self, words: str) -> None:
        if not self._over.is_set():
            self.on_lost(CollectiveError("heartbeat", self.rank, words))

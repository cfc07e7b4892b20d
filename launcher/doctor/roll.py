"""The roll of ranks: who is there, and who has ended which step. One that hangs or dies is named.

Everything goes through the rendezvous store, not a collective: it answers while a collective hangs.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from launcher.doctor.check import Check, Look, tried

POLL = 0.02  # seconds between looks at the store
LISTEN = 0.5  # seconds between looks whether somebody asks
GRACE = 3.0  # seconds in which a rank that lives answers, whatever it is doing


class Store(Protocol):
    """What we need of torch's stores."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def add(self, key: str, amount: int, /) -> int: ...


OnLost = Callable[[Check], None]
"""Told, in another thread, who is missing; should end the process."""


@dataclass
class Roll:
    """This rank among the others."""

    rank: int
    size: int
    store: Store
    spare: Store  # a connection of its own: the first may be waiting for another rank
    on_lost: OnLost
    patience: float = 30.0  # seconds that a step may take
    step_name: str = ""
    over: threading.Event = field(default_factory=threading.Event)  # the ranks part on purpose
    _lost: threading.Lock = field(default_factory=threading.Lock)

    def say(self, key: str, value: Any = "") -> None:
        """Tell all ranks; once for each key."""
        self.store.set(f"doctor/{key}", json.dumps(value))

    def hear(self, key: str) -> Any:
        """What a rank said, once it has."""
        return json.loads(self.store.get(f"doctor/{key}"))

    def said(self, key: str) -> bool:
        """Whether it has been said."""
        return self.store.check([f"doctor/{key}"])

    def hear_all(self, key: str, but_me: bool = False) -> dict[int, Any]:
        """What each rank said under `key/<rank>`."""
        ranks = [rank for rank in range(self.size) if not (but_me and rank == self.rank)]
        return {rank: self.hear(f"{key}/{rank}") for rank in ranks}

    def step(self, name: str, look: Look, patience: float | None = None) -> None:
        """Look, tell what was found, and wait for the others, so many seconds in all."""
        self.step_name = name
        overdue = threading.Timer(patience or self.patience, self.overdue, [name])
        overdue.daemon = True
        overdue.start()
        with self.while_store_lasts():
            self.say(f"found/{name}/{self.rank}", [check.to_json() for check in tried(name, look)])
            if self.store.add(f"doctor/ended/{name}", 1) == self.size:
                self.say(f"all/{name}")
            while not self.said(f"all/{name}"):
                time.sleep(POLL)
        overdue.cancel()

    @contextmanager
    def while_store_lasts(self) -> Iterator[None]:
        """If the store goes inside, with the process that serves it, that is told."""
        try:
            yield
        except (RuntimeError, OSError):
            self.overdue(self.step_name, told=True)
            time.sleep(2 * GRACE)  # another thread of ours may be saying it
            raise

    def found(self, names: Sequence[str]) -> list[tuple[int, Check]]:
        """Rank and finding, of the ranks that have ended those steps."""
        rows = []
        for name in names:
            for rank in range(self.size):
                key = f"doctor/found/{name}/{rank}"
                if self.spare.check([key]):
                    rows += [(rank, Check(**one)) for one in json.loads(self.spare.get(key))]
        return rows

    def overdue(self, name: str, told: bool = False) -> None:
        """Find out who is missing, and say it. told: another rank asks, or we should end."""
        if not self._lost.acquire(blocking=False):  # somebody is at it
            return
        try:
            self.spare.set("doctor/asked", "")  # all ranks answer now, whatever they are doing
            self.spare.set(f"doctor/alive/{self.rank}", "")
            time.sleep(GRACE)
            finding = self._missing(name, told)
        except (RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0][:200]
            words = f"rank 0, or torchrun on its node, died in step {name!r}: {reason}"
            finding = Check("ranks", False, words, "the end of its log; dmesg on its node")
        self.on_lost(finding)

    def _missing(self, name: str, told: bool) -> Check:
        stuck = [r for r in range(self.size) if not self.has_ended(name, r)]
        silent = [r for r in range(self.size) if not self.is_alive(r)]
        if silent:
            words = f"{ranks_in_words(silent)} died or hangs: no sign of life in step {name!r}"
            return Check("ranks", False, words, "the end of its log; dmesg on its node")
        if told:
            return Check("ranks", False, f"asked to stop in step {name!r}", "starting it again")
        words = f"{ranks_in_words(stuck)} did not end step {name!r} within {self.patience:g} s"
        return Check("ranks", False, words, "looking there; or a larger --patience")

    def has_ended(self, name: str, rank: int) -> bool:
        """Whether that rank has told what it found in that step."""
        return self.spare.check([f"doctor/found/{name}/{rank}"])

    def is_alive(self, rank: int) -> bool:
        """Whether that rank answered when it was asked."""
        return self.spare.check([f"doctor/alive/{rank}"])

    def speaks(self) -> bool:
        """Whether this is the lowest rank that answers: one should speak for all."""
        return not any(self.is_alive(rank) for rank in range(self.rank))

    def listen(self) -> None:
        """Answer others that ask who is there; ask when torchrun sends SIGTERM as a rank died.

        The signal must be blocked before any thread starts: a rank that waits in a collective
        runs no handler of Python's.
        """
        threading.Thread(target=self._listen, name="listen", daemon=True).start()

    def _listen(self) -> None:
        while not self.over.is_set():
            told = signal.sigtimedwait({signal.SIGTERM}, LISTEN) is not None
            try:
                told |= self.spare.check(["doctor/asked"])
            except (RuntimeError, OSError):
                told = True  # the store is gone
            if told and not self.over.is_set():
                self.overdue(self.step_name, told=True)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-3, 6`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'s' * (len(ranks) > 1)} {words}"

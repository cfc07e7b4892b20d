"""Pauses: training stops before a step, on all ranks, to be saved or to end.

Ranks train for minutes or hours without meeting. A wish for a pause reaches them through the
heartbeat (launcher/heartbeat.py); those that have it, and those that are through with their round
meanwhile, meet in one small collective that every round has anyway.
"""

from __future__ import annotations

import time
from enum import IntEnum

import torch

from fedcore.server.comm import Comm


class Wish(IntEnum):
    """What a rank wants before its next step; all ranks do the greatest wish of any."""

    GO_ON = 0
    SAVE = 1
    STOP = 2


class Pauses:
    """What this rank was asked to do before its next step."""

    def __init__(self, *, leads: bool = True, alone: bool = True) -> None:
        self.leads, self.alone = leads, alone  # decides when to save; has nobody to tell
        self.stop_requested = False
        self.alarm = False  # a rank cannot go on: all are to meet, and hear why
        self.saves = 0  # asked for since the beginning, by the rank that leads
        self._done = 0  # of these
        self.run = 0  # of a list that runs in these processes
        self._every: float | None = None  # seconds
        self._last = time.monotonic()

    def begin(self, minutes: float | None) -> None:
        """Begin a run, to be saved after so many minutes without a checkpoint (None = never)."""
        self._every = None if minutes is None else 60 * minutes
        self.run, self.alarm = self.run + 1, False
        self.saved()

    def saved(self) -> None:
        """Note that a checkpoint is being written: the clock starts again."""
        self._last = time.monotonic()

    def ask_if_due(self) -> None:
        """Ask for a checkpoint if the time has come."""
        if self.leads and self._every and time.monotonic() - self._last >= self._every:
            self.saves += 1
            self.saved()

    def wish(self) -> Wish:
        """What this rank wants now. Cheap: it is asked before each step."""
        if self.stop_requested:
            return Wish.STOP
        if self.alone:
            self.ask_if_due()
        return Wish.SAVE if self.alarm or self.saves > self._done else Wish.GO_ON

    def wanted(self) -> bool:
        """Whether this rank wants to pause before its next step."""
        return self.wish() is not Wish.GO_ON

    def agree(self, comm: Comm, mine: Wish, *facts: bool) -> tuple[Wish, list[bool]]:
        """What all ranks do now, and which of the facts are true on any rank. Collective.

        What was asked for until now is then done.
        """
        said = torch.tensor([mine, self.saves, *facts], device=comm.device)
        wish, self._done, *anywhere = comm.max(said).tolist()  # sync: once a round
        return Wish(wish), [bool(fact) for fact in anywhere]

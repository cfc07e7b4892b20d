"""Which fault an attempt of the chaos run meets, and where: drawn."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random

from tests.procs.faults import Faults

ENDINGS = (
    "kill",
    "kill",
    "stop",
    "stop",
    "freeze",
    "lose node",
    "kill in write",
    "kill at pointer",
)


@dataclass(frozen=True)
class Attempt:
    """One start of the command, and what is to happen in it."""

    ranks: int
    words: tuple[str, ...]
    name: str  # of what ends it
    ending: Faults
    full_disk: Faults  # which does not end it

    @property
    def table(self) -> Faults:
        return Faults(self.ending.table + self.full_disk.table)

    def fine(self, full: int) -> tuple[set[int], int]:
        """Exit codes, and finished rounds that may be lost, if so many checkpoints met a full disk.

        One interval at most: what was done since the last checkpoint that was complete.
        """
        if self.name == "stop":  # a stop that cannot be saved is told by its code
            return ({75, 2}, 1 + full) if full else ({75}, 0)
        return {5}, 1 + full


def drawn(draw: Random, round: int) -> Attempt:
    """An attempt that goes on in that round: on how many ranks, how it ends, and whether the disk
    is full once before that."""
    ranks = draw.choice((2, 2, 3))
    words = ["checkpoint.minutes=0.005"] if draw.random() < 0.5 else []  # within a round, too
    words += ["metrics.enabled=true"] if draw.random() < 0.1 else []
    name, rank, later, nth = draw.choice(ENDINGS), *map(draw.randrange, (ranks, 4, 3))
    number = draw.choice((signal.SIGTERM, signal.SIGUSR1))
    place = {"rank": rank, "round": round + later, "step": draw.randrange(14)}
    ending = {
        "kill": lambda: Faults().kill(**place),
        "stop": lambda: Faults().signal(number=number, **place),
        "freeze": lambda: Faults().freeze(**place),
        "lose node": lambda: Faults().lose_node(**place),
        "kill in write": lambda: Faults().kill(rank=rank, where="write", checkpoint=nth + 1),
        "kill at pointer": lambda: Faults().kill(rank=0, where="pointer", checkpoint=nth + 1),
    }[name]()
    disk = Faults().full_disk(rank=draw.randrange(ranks), checkpoint=1 + draw.randrange(2))
    return Attempt(ranks, tuple(words), name, ending, disk if draw.random() < 0.4 else Faults())

"""How far apart are the clocks of the ranks? Alerts and logs are put in order by them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from launcher.doctor.check import Check
from launcher.doctor.roll import Roll

EXCHANGES = 8
APART = 1.0  # seconds; training does not depend on it

Clock = Callable[[], float]


def clocks(roll: Roll, now: Clock = time.time) -> Iterator[Check]:
    """The largest difference between two ranks, by rank 0. Every rank calls it.

    Each rank asks rank 0 for the time: the answer was given in the middle of the round trip, give
    or take half of it. The shortest trip of several counts.
    """
    if roll.rank:
        for turn in range(EXCHANGES):
            roll.say(f"offset/{roll.rank}/{turn}", _ask(roll, turn, now))
        return
    offsets: dict[int, tuple[float, float]] = {0: (0.0, 0.0)}
    for rank in range(1, roll.size):
        for turn in range(EXCHANGES):
            roll.hear(f"ask/{rank}/{turn}")
            roll.say(f"time/{rank}/{turn}", now())
        trips = [roll.hear(f"offset/{rank}/{turn}") for turn in range(EXCHANGES)]
        offset, half = min(trips, key=lambda trip: trip[1])
        offsets[rank] = (offset, half)
    if roll.size > 1:
        yield skew(offsets)


def _ask(roll: Roll, turn: int, now: Clock) -> tuple[float, float]:
    """How far this clock is ahead of rank 0's, and half the round trip, in seconds."""
    asked = now()
    roll.say(f"ask/{roll.rank}/{turn}")
    theirs = roll.hear(f"time/{roll.rank}/{turn}")
    heard = now()
    return (asked + heard) / 2 - theirs, (heard - asked) / 2


def skew(offsets: Mapping[int, tuple[float, float]]) -> Check:
    """The finding: offset from rank 0 and its uncertainty, of each rank, in seconds."""
    last = min(offsets, key=lambda rank: offsets[rank][0])
    first = max(offsets, key=lambda rank: offsets[rank][0])
    apart = offsets[first][0] - offsets[last][0]
    unsure = offsets[first][1] + offsets[last][1]
    found = f"{apart * 1e3:.3g} ms apart at most, +- {unsure * 1e3:.2g} ms"
    if apart > APART:
        found += f": rank {first} is ahead of rank {last}"
    way_out = "chrony or ntpd on that node; training does not depend on it, alerts and logs do"
    figures = {"seconds": apart, "uncertainty_seconds": unsure}
    return Check("clocks", apart <= APART, found, way_out, needed=False, figures=figures)

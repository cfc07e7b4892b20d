"""A visit to all ranks: meeting, the steps, and what is said at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from fedcore.errors import ConfigError, FedError
from launcher.doctor import group, main
from launcher.doctor.check import Check, Look
from launcher.doctor.clocks import clocks
from launcher.doctor.facts import alike, facts
from launcher.doctor.roll import Roll
from launcher.doctor.shared import shared
from launcher.doctor.table import code, show
from launcher.world import Place, pick_device


class Visit:
    """One visit, on this rank. first: what was found before torch could be relied on."""

    def __init__(self, options: main.Options, first: list[Check]) -> None:
        self.options, self.first = options, first
        self.place = Place.of(os.environ)
        self.names: list[str] = []  # of the steps so far
        self.device, self.trouble = self._device()

    def __call__(self) -> int:
        """The exit code; 1 on every rank if anything needed is missing on any."""
        try:
            self.roll = self._meet()
        except FedError as error:
            way_out = "MASTER_ADDR and MASTER_PORT, and no firewall between the nodes"
            self._say(self._mine([*self.first, Check("ranks", False, str(error), way_out)]))
            return 1
        for name, look in self._steps().items():
            self.names.append(name)
            self.roll.step(name, look, self._patience(name))
        with self.roll.while_store_lasts():
            verdict = self._end()
        group.leave()
        return verdict

    def _mine(self, checks: list[Check]) -> list[tuple[int, Check]]:
        return [(self.place.rank, check) for check in checks]

    def _device(self) -> tuple[torch.device, list[Check]]:
        """The device a run would use here; the CPU and a finding if there is no such."""
        try:
            return main_device(self.options, self.place), []
        except ConfigError as error:
            return torch.device("cpu"), [Check("device", False, str(error), error.try_)]

    def _meet(self) -> Roll:
        patience = self.options.patience
        # longer than our own patience, so that we speak before a library ends the process
        self.timeout = 3 * patience
        store = spare = group.meeting_place(self.place, self.timeout)
        if self.place.size > 1:
            spare = group.meeting_place(self.place, self.timeout)
        roll = Roll(self.place.rank, self.place.size, store, spare, self._lost, patience)
        if self.place.size > 1:
            roll.listen()
        else:
            main.unblock_sigterm()
        return roll

    def _patience(self, name: str) -> float:
        return self.options.patience * (main.COMING if name == "coming" else 1.0)

    def _steps(self) -> dict[str, Look]:
        options, place, roll = self.options, self.place, self.roll
        count = options.megabytes * 2**20
        backends = ["nccl", "gloo"] if self.device.type == "cuda" else ["gloo"]
        reduces: dict[str, Look] = {
            f"all_reduce {backend}": partial(
                group.all_reduces, self.device, count, self.timeout, backend
            )
            for backend in backends
        }
        return {
            "coming": self._come,
            "rank": lambda: main.of_rank(place, self.device),
            "alike": self._alike,
            "node": lambda: main.of_node(options, place, self.device),
            "site": lambda: main.of_site(options, place),
            "folder": lambda: shared(options.folder, roll),
            "clocks": lambda: clocks(roll),
            "joining": self._join,
            **reduces,
        }

    def _come(self) -> Iterator[Check]:
        mine = facts(self.place, self.device, self.options.config)
        self.roll.say(f"facts/{self.place.rank}", mine)
        yield from self.first
        yield from self.trouble

    def _alike(self) -> Iterator[Check]:
        if self.place.rank == 0:
            everyone = list(self.roll.hear_all("facts").values())
            yield from alike(everyone, self.options.config.threads)

    def _join(self) -> Iterator[Check]:
        if len({one["device"] for one in self.roll.hear_all("facts").values()}) > 1:
            return  # told in `alike`; they could not meet over one backend
        store = group.meeting_place(self.place, self.timeout)
        yield from group.join(self.place, self.device, store, self.timeout)

    def _end(self) -> int:
        """Rank 0 prints and tells the verdict; it may hold the store, so it is the last to go."""
        roll = self.roll
        if roll.rank == 0:
            found = roll.found(self.names)
            self._say(found)
            roll.say("verdict", code(found))
        verdict = int(roll.hear("verdict"))
        roll.over.set()
        gone = roll.store.add("doctor/gone", 1)
        until = time.monotonic() + self.options.patience
        while roll.rank == 0 and gone < roll.size and time.monotonic() < until:
            time.sleep(0.02)
            gone = roll.store.add("doctor/gone", 0)
        return verdict

    def _lost(self, finding: Check) -> None:
        """In another thread: say who is missing and what was found until then, and end."""
        try:
            if self.roll.speaks():
                found = [*self.roll.found(self.names), (self.place.rank, finding)]
                self._say(found)
        except (RuntimeError, OSError):  # the store is gone: each speaks for itself
            self._say(self._mine([*self.first, finding]))
        sys.stdout.flush()
        os._exit(1)

    def _say(self, found: list[tuple[int, Check]]) -> None:
        show(found, self._nodes(), self.options.as_json)

    def _nodes(self) -> list[str]:
        """The node of each rank, as far as they have come."""
        names: list[str] = []
        for rank in range(self.place.size):
            names.append(self._fact(rank).get("node", "?"))
        return names

    def _fact(self, rank: int) -> dict[str, Any]:
        key = f"doctor/facts/{rank}"
        try:
            spare = self.roll.spare
            return dict(json.loads(spare.get(key))) if spare.check([key]) else {}
        except (AttributeError, RuntimeError, OSError):
            return {}


def main_device(options: main.Options, place: Place) -> torch.device:
    """The device of this rank, by the configuration."""
    torch.set_num_threads(options.config.threads)
    return pick_device(options.config.device, place)

"""What a rank has done of a round so far: what a pause leaves, and a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedcore.batch import sent
from fedcore.clients.layout import Tensors
from fedcore.clients.readings import Totals
from fedcore.clients.state import ClientState

TO_DO, DONE, LEFT_OUT = 0, 1, 2  # how a client stands within a round


@dataclass
class LaneRound:
    """One lane on its way through a round. It may pause before any step."""

    rows: list[int]  # of the group's state, which is still that of the round's start
    part: ClientState  # as it is
    epoch: int = 0  # of the next step
    step: int = 0  # the next one, in its epoch
    totals: Totals = field(default_factory=Totals)  # of the last step's epoch

    @property
    def has_begun(self) -> bool:
        """Whether it has made a step."""
        return (self.epoch, self.step) > (0, 0)

    def tensors(self, first: int) -> Tensors:
        """All of it by name, each [k, ...]; `first`: a client of the lane, which names it."""
        places = torch.tensor([[first, self.epoch, self.step]]).expand(len(self.rows), 3)
        parts = {"part": self.part.tensors(), "totals": self.totals.tensors()}
        named = {f"{p}/{k}": v for p, tensors in parts.items() for k, v in tensors.items()}
        return named | {"place": places}

    @classmethod
    def of(cls, rows: Sequence[int], tensors: Tensors, like: ClientState) -> LaneRound:
        """The lane whose `tensors` these are; like: the state of its group."""

        def under(prefix: str) -> Tensors:
            start = prefix + "/"
            return {
                k.removeprefix(start): v.to(like.log_var.device)
                for k, v in tensors.items()
                if k.startswith(start)
            }

        _, epoch, step = tensors["place"][0].tolist()
        part, totals = ClientState.of(under("part"), like), Totals.of(under("totals"))
        return cls(list(rows), part, epoch, step, totals)


@dataclass
class Within:
    """The work of a rank in a round that is not over; K clients."""

    done: Tensor  # [K] int64 TO_DO, DONE or LEFT_OUT
    table: Tensor  # [K, ...] float64 records of the clients that are done
    uploads: Tensor | None  # [K, C, D] what they upload, if it is not a part of the state
    lanes: list[LaneRound] = field(default_factory=list)  # under way

    def finish(self, lane: LaneRound, record: Tensor, upload: Tensor) -> None:
        """Note that the lane is through: its `record` [k, ...] and what it uploads [k, C, D].

        Nothing waits for the device.
        """
        rows = torch.tensor(lane.rows)
        self.done[rows] = DONE
        here = sent(rows, self.table.device)
        self.table[here] = record
        if self.uploads is not None:
            self.uploads[here] = upload
        self.lanes.remove(lane)

    def tensors(self) -> Tensors:
        """What is known of every client, each [K, ...]."""
        found = {"done": self.done, "table": self.table}
        return found if self.uploads is None else found | {"uploads": self.uploads}

    def fill(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned; empty for a rank without clients."""
        if not tensors:
            return
        self.done, self.table = tensors["done"].cpu(), tensors["table"].to(self.table)
        if self.uploads is not None:
            self.uploads = tensors["uploads"].to(self.uploads)

    def under_way(self, clients: Sequence[int]) -> tuple[list[int], Tensors]:
        """The clients of the lanes under way, and all of these lanes, each [k, ...]."""
        lanes = [lane for lane in self.lanes if lane.has_begun]
        if not lanes:
            return [], {}
        each = [lane.tensors(clients[lane.rows[0]]) for lane in lanes]
        joined = {k: torch.cat([tensors[k] for tensors in each]) for k in each[0]}
        return [clients[row] for lane in lanes for row in lane.rows], joined

    def take(
        self, clients: Sequence[int], found: Sequence[int], joined: Tensors, like: ClientState
    ) -> None:
        """Take over the lanes that `under_way` returned, on whichever ranks they were.

        found: ids [k] of the clients in `joined`, each [k, ...]; like: the state of the group.
        """
        rows = {client: row for row, client in enumerate(clients)}
        for first in dict.fromkeys(joined["place"][:, 0].tolist() if joined else []):
            at = (joined["place"][:, 0] == first).nonzero().flatten()
            own = [rows[found[i]] for i in at.tolist()]
            part = {k: v[at] for k, v in joined.items()}
            self.lanes.append(LaneRound.of(own, part, like))

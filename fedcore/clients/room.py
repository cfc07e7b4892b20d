"""A lane that does not fit into memory: its halves are trained instead, or a client is left out."""

from __future__ import annotations

from typing import Literal

import torch

from fedcore.clients.within import LEFT_OUT, Within
from fedcore.errors import ConfigError

Answer = Literal["shrink", "skip", "fail"]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the machine, had no memory left."""
    said = "DefaultCPUAllocator" in str(error)  # torch raises a plain RuntimeError on the CPU
    return said or isinstance(error, torch.OutOfMemoryError | MemoryError)


class Room:
    """How many clients have been seen to fit at once, and what to tell of those that did not."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.width: int | None = None  # None = every lane has fitted so far
        self.alone = False  # the next lane is not fetched while one trains
        self.notes: list[str] = []  # sentences, for whoever tells them

    def make(
        self, work: Within, rows: list[int], ids: list[int], why: str, *, beside: bool = False
    ) -> None:
        """Take back a lane that did not fit; its clients are trained fewer at once, or left out.

        beside: other clients' states lay beside it; one client is then tried without them first.
        Raises `ConfigError` if the setting allows neither.
        """
        work.lanes = [lane for lane in work.lanes if lane.rows != rows]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(ids) == 1 and beside and not self.alone:
            self.alone = True
            return
        reason = why.splitlines()[0][:200]
        if self.answer == "fail" or (len(ids) == 1 and self.answer == "shrink"):
            raise _does_not_fit(ids, self.answer, reason)
        if len(ids) > 1:
            self.width = (len(ids) + 1) // 2
            self.notes.append(
                f"{len(ids)} clients do not fit into memory at once ({reason}): {self.width} at a "
                "time from now on, which rounds differently"
            )
            return
        work.done[rows[0]] = LEFT_OUT
        self.notes.append(f"client {ids[0]} does not fit into memory and is left out: {reason}")


def _does_not_fit(ids: list[int], answer: Answer, reason: str) -> ConfigError:
    want = f"lanes that fit: clients {ids} do not ({reason})"
    way_out = "a smaller clients.batch_size or clients.width, or clients.out_of_memory=skip"
    return ConfigError("clients.out_of_memory", answer, want, way_out)

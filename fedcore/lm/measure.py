"""Measuring a model under training: losses kept on the device, and the weights before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.errors import LossDiverged
from fedcore.lm.engine import Engine
from fedcore.server.comm import Comm


class Window:
    """Loss and gradient norm of the steps since the last line, on the device until `close`."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._rates: list[float] = []

    def add(self, loss: Tensor, norm: Tensor, lr: float) -> None:
        """One step: this rank's loss [], the global norm [], the learning rate."""
        self._rows.append(torch.stack([loss.float(), norm.float()]))
        self._rates.append(lr)

    def __len__(self) -> int:
        return len(self._rows)

    def close(self, comm: Comm, last_step: int) -> tuple[float, float]:
        """Mean loss over steps and ranks, mean norm; empties the window. Collective.

        Raises `LossDiverged` on every rank, naming the first step that was not finite.
        """
        mine = torch.stack(self._rows)[None]
        table = comm.gather(mine).cpu().double().mean(0)  # sync: once a line
        first = last_step - len(table) + 1
        for step, (row, lr) in enumerate(zip(table, self._rates, strict=True), first):
            loss, norm = row.tolist()
            if not math.isfinite(loss) or not 0 <= norm < math.inf:  # DeepSpeed's bad norm is -1
                raise LossDiverged(step, loss, norm, lr)
        self._rows, self._rates = [], []
        loss, norm = table.mean(0).tolist()
        return loss, norm


class Sizes(NamedTuple):
    """Root mean squares of every parameter, in the model's order."""

    rms: list[float]
    change: list[float]  # of the last step


def copies(engine: Engine) -> list[Tensor]:
    """This rank's parts of the weights, to be compared with what a step makes of them."""
    return [part.clone() for part in engine.parts()]


def sizes(
    engine: Engine, comm: Comm, numel: Sequence[int], before: Sequence[Tensor] | None = None
) -> Sizes:
    """RMS of the weights and of their change since `before` (none: 0). Collective."""
    parts = engine.parts()
    changes = [p - b for p, b in zip(parts, before or parts, strict=True)]
    squares = torch.stack([_squares(parts), _squares(changes)])
    if not engine.replicated:
        squares = comm.gather(squares[None]).sum(0)
    means = squares.double().cpu() / torch.tensor(numel)  # sync: once a measurement
    return Sizes(*means.sqrt().tolist())


def _squares(parts: Sequence[Tensor]) -> Tensor:
    """Sum of squares of each part: [P]. An empty part has norm 0."""
    norms = torch._foreach_norm([p.float() for p in parts])
    return torch.stack([n.to(norms[0].device) for n in norms]).square()


def held_out_loss(engine: Engine, comm: Comm, windows: Tensor, size: int) -> float:
    """Mean loss, in nats per token, over windows [M, T + 1], shared out over the ranks.

    Collective; every rank makes the same number of forward passes (the last may be repeated, with
    weight 0), since under ZeRO 3 each pass is collective itself.
    """
    own = windows[comm.rank :: comm.size]
    passes = -(-len(windows[:: comm.size]) // size)
    total = torch.zeros(2, dtype=torch.float64, device=comm.device)
    for number in range(passes):
        rows = own[number * size : (number + 1) * size]
        counted = len(rows)
        rows = rows if counted else windows[:1]
        loss = engine.loss(rows.to(comm.device, non_blocking=True)).double()
        total += torch.stack([loss * counted, torch.full_like(loss, counted)])
    summed = comm.gather(total[None]).sum(0).tolist()  # sync: once an evaluation
    return float(summed[0] / summed[1])

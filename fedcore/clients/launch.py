"""Launch: how a step is given to the device: eagerly, compiled, or as a captured CUDA graph.

A step of a small model is hundreds of small kernels, and a host that launches each of them is
slower than the device that runs them. A graph is launched as one. It works on tensors that stay
where they are, so a lane that is to run captured moves into them (`adopt`) and out (`release`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fedcore.batch import Batch
from fedcore.clients.room import is_out_of_memory
from fedcore.clients.state import ClientState
from fedcore.clients.step import Lane, Setup, StepReadings, Targets, local_step, losses
from fedcore.clients.swapped import plainly
from fedcore.objective.learners import Hypergradient
from fedcore.schedule import Progress

How = Literal["eager", "graph", "compile"]
Teller = Callable[[str], None]
WARM = 3
"""Eager steps before a capture: libraries choose and load their kernels in them."""


class Launch(Protocol):
    def adopt(self, part: ClientState) -> ClientState:
        """A lane at its start, or when it goes on: the tensors it is to be trained in."""

    def release(self, part: ClientState) -> ClientState:
        """The same lane at its end, in tensors of its own."""

    def __call__(
        self,
        part: ClientState,
        batch: Batch,
        lane: Lane,
        targets: Targets,
        at: Progress,
        held_out: Batch | None,
        /,
    ) -> StepReadings:
        """One step of `part`, or of its first clients, in place."""


class Eager:
    """`Launch` of one operation after another."""

    def __init__(self, setup: Setup, tell: Teller = print) -> None:
        self.setup = setup

    def step(self, *inputs: Any) -> StepReadings:
        """One step, operation by operation."""
        return local_step(self.setup, *inputs)

    def adopt(self, part: ClientState) -> ClientState:
        return part

    def release(self, part: ClientState) -> ClientState:
        return part

    def __call__(self, *inputs: Any) -> StepReadings:
        return self.step(*inputs)


class Compiled(Eager):
    """Forward pass and losses by torch.compile, the rest eagerly."""

    def __init__(self, setup: Setup, tell: Teller = print) -> None:
        super().__init__(setup._replace(call=plainly))
        self._tell, self._losses = tell, torch.compile(losses, dynamic=False)
        self._width: int | None = None  # of the lane that is compiled for; 0 = none

    def __call__(self, part: ClientState, *inputs: Any) -> StepReadings:
        if self._width is None:
            self._width = len(part)
        if len(part) != self._width:  # the end of a lane: not worth a compilation
            return self.step(part, *inputs)
        try:
            return local_step(self.setup, part, *inputs, evaluate=self._losses)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._width = 0
            self._tell(f"steps run eagerly, since torch.compile cannot: {_first_line(error)}")
            return self.step(part, *inputs)


class Inputs(NamedTuple):
    """What a captured step reads."""

    batch: Batch
    lane: Lane
    targets: Targets
    at: Progress


Record = Callable[[Callable[[], StepReadings]], Callable[[], StepReadings]]
"""What captures the work of a call, and gives back what does that work again."""


def record_cuda(work: Callable[[], StepReadings]) -> Callable[[], StepReadings]:
    """The work as a CUDA graph; nothing of it is done yet.

    Other threads go on meanwhile: those of the store, of checkpoints and of NCCL.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        readings = work()

    def replay() -> StepReadings:
        graph.replay()
        return readings

    return replay


class Graphed(Eager):
    """Steps of full lanes as one graph. Everything else, such as the end of a lane, runs eagerly.

    Hypergradients look at held-out samples between steps, so they are not captured.
    """

    def __init__(self, setup: Setup, tell: Teller = print, record: Record = record_cuda) -> None:
        super().__init__(setup)
        self._record, self._tell = record, tell
        self._off = isinstance(setup.algorithm.rule.learner, Hypergradient)
        self._part: ClientState | None = None
        self._inputs: Inputs | None = None
        self._given: list[Tensor] = []  # what the inputs that change rarely are copies of
        self._replay: Callable[[], StepReadings] | None = None
        self._warm = 0

    def adopt(self, part: ClientState) -> ClientState:
        if self._off or part is self._part:
            return part
        if not part.memory:
            part.forget_momentum()  # which otherwise the first step makes
        if self._part is None:
            self._part = part.each(torch.clone)
            return self._part
        mine, theirs = self._part.leaves(), part.leaves()
        if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in theirs.items()}:
            return part
        for name, values in theirs.items():
            mine[name].copy_(values)
        return self._part

    def release(self, part: ClientState) -> ClientState:
        return part.each(torch.clone) if part is self._part else part

    def __call__(self, part: ClientState, *inputs: Any) -> StepReadings:
        if self._off or part is not self._part or not self._fits(Inputs(*inputs[:4])):
            return self.step(part, *inputs)
        if self._replay is None:
            self._warm += 1
            if self._warm <= WARM:
                return self.step(part, *inputs)
            self._capture(part)
        return self.step(part, *inputs) if self._replay is None else self._replay()

    def _fits(self, inputs: Inputs) -> bool:
        """Copy the inputs of a step to where the graph reads them; False if it reads others."""
        leaves, tree = tree_flatten(inputs)
        if self._inputs is None:
            self._inputs = tree_unflatten([x.clone() for x in leaves], tree)
        mine = tree_leaves(self._inputs)
        if [x.shape for x in mine] != [x.shape for x in leaves]:
            return False
        rarely = len(tree_leaves(inputs.batch))
        stay = len(self._given) == len(leaves) - rarely and all(
            a is b for a, b in zip(self._given, leaves[rarely:], strict=True)
        )
        for own, given in zip(mine[:rarely] if stay else mine, leaves, strict=False):
            own.copy_(given)
        self._given = leaves[rarely:]
        return True

    def _capture(self, part: ClientState) -> None:
        try:
            self._replay = self._record(lambda: self.step(part, *self._inputs, None))  # type: ignore[misc]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._off = True
            self._tell(f"steps run eagerly, since they cannot be captured: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"


LAUNCHES: dict[How, Callable[[Setup, Teller], Launch]] = {
    "eager": Eager,
    "graph": Graphed,
    "compile": Compiled,
}

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


SIZES = 4
"""Lanes of at most so many different sizes are captured: each takes memory."""


class Launch(Protocol):
    """How steps are launched on the device."""

    def adopt(self, part: ClientState) -> ClientState:
        """A lane, new or resumed, in the tensors that it is to be trained in."""

    def release(self, part: ClientState) -> ClientState:
        """The same lane at its end, in tensors of its own."""

    def forget(self) -> None:
        """Free all tensors: memory ran out."""

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
    """`Launch` that runs a step operation by operation."""

    def __init__(self, setup: Setup, tell: Teller = print) -> None:
        self.setup = setup

    def step(self, *inputs: Any) -> StepReadings:
        """One step, operation by operation."""
        return local_step(self.setup, *inputs)

    def adopt(self, part: ClientState) -> ClientState:
        return part

    def release(self, part: ClientState) -> ClientState:
        return part

    def forget(self) -> None:
        return None

    def __call__(self, *inputs: Any) -> StepReadings:
        return self.step(*inputs)


class Compiled(Eager):
    """Forward pass and losses by torch.compile, the rest eagerly; of full lanes only.

    Compiled code rounds differently, so which steps run it may not depend on the lanes that this
    rank has met: numbers would depend on the ranks.
    """

    def __init__(self, setup: Setup, tell: Teller = print) -> None:
        super().__init__(setup._replace(call=plainly))
        self._tell, self._losses = tell, torch.compile(losses, dynamic=False)
        self._off = isinstance(setup.algorithm.rule.learner, Hypergradient)
        self._sound = False  # a step was compiled, and run

    def __call__(self, part: ClientState, *inputs: Any) -> StepReadings:
        if self._off or len(part) != self.setup.width:
            return self.step(part, *inputs)
        statistics = None if self._sound else {k: v.clone() for k, v in part.buffers.items()}
        try:
            readings = local_step(self.setup, part, *inputs, evaluate=self._losses)
            self._sound = True
            return readings
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._off = True
            for name, values in (statistics or {}).items():  # the step may have moved them
                part.buffers[name].copy_(values)
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
    """The work as a captured CUDA graph, as a function that replays it; none of it is done yet.

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
    """Steps of whole lanes as one graph. Everything else, such as the end of a lane, runs eagerly.

    Hypergradients look at held-out samples between steps, so they are not captured.
    """

    def __init__(self, setup: Setup, tell: Teller = print, record: Record = record_cuda) -> None:
        super().__init__(setup)
        self._record, self._tell = record, tell
        self._off = isinstance(setup.algorithm.rule.learner, Hypergradient)
        self._captured: dict[int, Captured] = {}  # by size of the lane

    def adopt(self, part: ClientState) -> ClientState:
        size = len(part)
        if self._off or (size not in self._captured and len(self._captured) == SIZES):
            return part
        if not part.memory:
            part.forget_momentum()  # which otherwise the first step makes
        if size not in self._captured:
            self._captured[size] = Captured(part.each(torch.clone), self.step)
        return self._captured[size].filled(part)

    def release(self, part: ClientState) -> ClientState:
        return part.each(torch.clone) if self._of(part) else part

    def forget(self) -> None:
        self._captured.clear()

    def _of(self, part: ClientState) -> Captured | None:
        """What runs this lane, if it was adopted."""
        captured = self._captured.get(len(part))
        return captured if captured is not None and captured.part is part else None

    def __call__(self, part: ClientState, *inputs: Any) -> StepReadings:
        captured = self._of(part)
        if self._off or captured is None or not captured.takes(Inputs(*inputs[:4])):
            return self.step(part, *inputs)
        if captured.replay is None:
            captured.warm += 1
            if captured.warm <= WARM:
                return self.step(part, *inputs)
            self._capture(captured)
        return self.step(part, *inputs) if captured.replay is None else captured.replay()

    def _capture(self, captured: Captured) -> None:
        try:
            captured.replay = self._record(captured.work)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._off = True
            self._tell(f"steps run eagerly, since they cannot be captured: {_first_line(error)}")


class Captured:
    """The tensors that one graph works on, and what launches it once there is one."""

    def __init__(self, part: ClientState, step: Callable[..., StepReadings]) -> None:
        self.part, self._step = part, step
        self.warm = 0
        self.replay: Callable[[], StepReadings] | None = None
        self._inputs: Inputs | None = None
        self._given: list[Tensor] = []  # what the inputs that change rarely are copies of

    def filled(self, part: ClientState) -> ClientState:
        """This lane in the graph's tensors; unchanged if the graph has others."""
        mine, theirs = self.part.leaves(), part.leaves()
        if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in theirs.items()}:
            return part
        for name, values in theirs.items():
            mine[name].copy_(values)
        return self.part

    def takes(self, inputs: Inputs) -> bool:
        """Copy a step's inputs to where the graph reads them; False if their shapes are others."""
        leaves, tree = tree_flatten(inputs)
        if self._inputs is None:
            self._inputs = tree_unflatten([x.clone() for x in leaves], tree)
        mine = tree_leaves(self._inputs)
        if [x.shape for x in mine] != [x.shape for x in leaves]:
            return False
        often = len(tree_leaves(inputs.batch))
        same = len(self._given) == len(leaves) - often and all(
            a is b for a, b in zip(self._given, leaves[often:], strict=True)
        )
        for own, given in zip(mine[:often] if same else mine, leaves, strict=False):
            own.copy_(given)
        self._given = leaves[often:]
        return True

    def work(self) -> StepReadings:
        """The step that is captured."""
        assert self._inputs is not None, "takes comes first"
        return self._step(self.part, *self._inputs, None)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"


LAUNCHES: dict[How, Callable[[Setup, Teller], Launch]] = {
    "eager": Eager,
    "graph": Graphed,
    "compile": Compiled,
}

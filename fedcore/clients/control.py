"""SCAFFOLD's control variates (Karimireddy et al. 2020, algorithm 1), on stacked clients.

A client moves along g - c_k + c, with c_k what its own gradients were on average in its last
round and c the mean of all c_k. The paper's option II, c_k + (x - y_k)/(steps lr) - c, is this
average for plain SGD; taken directly, it also holds with momentum and a changing learning rate.
"""

from __future__ import annotations

from torch import Tensor

from fedcore.clients.state import ClientState

OWN, SUM = "control", "round/gradient_sum"  # where the state keeps c_k and the round's sum of g


def begin_round(state: ClientState) -> None:
    """Start the sum of this round's gradients at zero."""
    state.keep(SUM)


def correct(grads: Tensor, state: ClientState, server: Tensor) -> None:
    """Gradients g [K, P] become g - c_k + c, in place; g is added to the sum first.

    server: c [P].
    """
    state.flat[SUM].add_(grads)
    grads.sub_(state.flat[OWN]).add_(server)


def end_round(state: ClientState, steps: Tensor) -> None:
    """c_k becomes the mean gradient of the round. steps [K]: how many the round had."""
    total = state.flat[SUM]
    state.flat[OWN] = total / steps.to(total)[:, None]

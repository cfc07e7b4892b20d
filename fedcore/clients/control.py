"""SCAFFOLD's control variates (Karimireddy et al. 2020, algorithm 1), on stacked clients.

A client moves along g - c_k + c, with c_k what its own gradients were on average in its last
round and c the mean of all c_k. The paper's option II, c_k + (x - y_k)/(steps lr) - c, is this
average for plain SGD; taken directly, it also holds with momentum and a changing learning rate.
"""

from __future__ import annotations

from torch import Tensor

from fedcore.clients.optim import over
from fedcore.clients.state import ClientState, Tensors

OWN, SUM = "control", "round/gradient_sum"  # where the state keeps c_k and the round's sum of g


def begin_round(state: ClientState) -> None:
    """Start the sum of this round's gradients at zero."""
    state.keep(SUM, state.params)


def correct(grads: Tensors, state: ClientState, server: Tensors) -> tuple[Tensors, Tensors]:
    """Gradients g to g - c_k + c (server: c by name), and what is kept anew of the state."""
    own, kept = state.kept_under(OWN), {}
    corrected = dict(grads)
    for name, control in server.items():
        if name in grads:
            kept[f"{SUM}/{name}"] = state.kept[f"{SUM}/{name}"] + grads[name]
            corrected[name] = grads[name] - own[name] + control
    return corrected, kept


def end_round(state: ClientState, before: Tensor) -> None:
    """c_k becomes the mean gradient of the round; before: steps [K] done at its start."""
    steps = (state.steps - before).clamp(min=1)
    for name, total in state.kept_under(SUM).items():
        state.kept[f"{OWN}/{name}"] = total / over(steps, total).to(total.dtype)

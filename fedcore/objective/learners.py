"""Who moves a learned lambda: declarations. The two that need gradients of the weights are carried
out in clients/learn.py, the sigma loss in objective/weighting.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Uncertainty:
    """Descent on the sigma loss of two log-variances (Kendall et al. 2018)."""


@dataclass(frozen=True)
class GradNorm:
    """Balances the gradient norms of B and lambda A at the prototypes (Chen et al. 2018, eq. 2).

    asymmetry: the paper's alpha. 0 = equal norms; more = a loss that falls slower pulls harder.
    """

    asymmetry: float = 0.0


@dataclass(frozen=True)
class Hypergradient:
    """Descends the client's held-out base loss in log lambda, after every `horizon` steps.

    The loss is differentiated forward through these steps (Franceschi et al. 2017, algorithm 2).
    rate: step of log lambda per unit of gradient. held_out: share of a client's samples kept back.
    """

    horizon: int = 1
    rate: float = 10.0
    held_out: float = 0.2


Learner = Uncertainty | GradNorm | Hypergradient

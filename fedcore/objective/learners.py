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
    """Gradient norms of B and lambda A at the prototypes are balanced (Chen et al. 2018, eq. 2).

    asymmetry: the paper's alpha. 0 = equal norms; more = a loss that falls slower pulls harder.
    """

    asymmetry: float = 0.0


@dataclass(frozen=True)
class Hypergradient:
    """log lambda descends the client's held-out base loss after `horizon` steps, differentiated
    forward through them (Franceschi et al. 2017, algorithm 2; lambda moves every `horizon` steps).

    rate: step of log lambda per unit of gradient. held_out: share of a client's samples kept back.
    """

    horizon: int = 1
    rate: float = 10.0
    held_out: float = 0.2


Learner = Uncertainty | GradNorm | Hypergradient

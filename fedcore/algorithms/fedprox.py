"""FedProx (Li et al. 2020): FedAvg whose clients stay near the model they were sent."""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS
from fedcore.algorithms.fedavg import FEDAVG
from fedcore.objective.terms import cross_entropy, proximal

FEDPROX = ALGORITHMS.add(
    "fedprox",
    replace(
        FEDAVG,
        about="fedavg with mu/2 |w - w_t|^2 in the client's loss",
        base=(cross_entropy, proximal),
    ),
)

"""FedAvg (McMahan et al. 2017): cross-entropy clients, parameters averaged by sample count."""

from __future__ import annotations

from fedcore.algorithms.algorithm import ALGORITHMS, Algorithm
from fedcore.objective.terms import cross_entropy

FEDAVG = ALGORITHMS.add(
    "fedavg",
    Algorithm(
        about="cross-entropy clients, parameters averaged after each round",
        base=(cross_entropy,),
        mode="averaged",
        combine="by_samples",
        readout="averaged",
    ),
)

"""FedETF (Li et al. 2023): FedAvg with a classifier fixed at a simplex equiangular tight frame."""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS
from fedcore.algorithms.fedavg import FEDAVG
from fedcore.objective.terms import balanced_softmax

FEDETF = ALGORITHMS.add(
    "fedetf",
    replace(
        FEDAVG,
        about="fixed ETF classifier, balanced softmax; base: [dot_regression] for the other loss",
        base=(balanced_softmax,),
        anchor="etf",
        classifier="anchors",
    ),
)

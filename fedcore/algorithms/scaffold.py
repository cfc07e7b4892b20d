"""SCAFFOLD (Karimireddy et al. 2020): FedAvg whose local gradients are corrected for drift."""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS
from fedcore.algorithms.fedavg import FEDAVG

SCAFFOLD = ALGORITHMS.add(
    "scaffold",
    replace(
        FEDAVG,
        about="fedavg with control variates: g - c_k + c in place of each local gradient g",
        control_variates=True,
    ),
)

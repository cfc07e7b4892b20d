"""The family with FedAvg's server: parameters are averaged after each round and sent back."""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS
from fedcore.algorithms.versions import V4, V7, V14

for _name, _version, _about in (
    ("fafi_fedavg", V4, "v4's losses, parameters averaged after each round (FAFI+FedAvg)"),
    ("v7_fedavg", V7, "v7's losses, parameters averaged after each round"),
    ("aurora_fedavg", V14, "v14's losses, parameters averaged after each round (AURORA+FedAvg)"),
):
    ALGORITHMS.add(_name, replace(_version, about=_about, mode="averaged", readout="averaged"))

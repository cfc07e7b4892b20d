"""Server optimisers: FedAvg whose server takes a step of its own from the clients' mean.

FedAvgM is of Hsu et al. 2019, the others of Reddi et al. 2021.
"""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS
from fedcore.algorithms.fedavg import FEDAVG
from fedcore.algorithms.server_rules import Adagrad, Adam, Momentum, ServerRule, Yogi

_RULES: tuple[tuple[str, ServerRule, str], ...] = (
    ("fedavgm", Momentum(), "fedavg with momentum on the server"),
    ("fedadagrad", Adagrad(), "fedavg with Adagrad on the server"),
    ("fedyogi", Yogi(), "fedavg with Yogi on the server"),
    ("fedadam", Adam(), "fedavg with Adam on the server"),
)
for _name, _rule, _about in _RULES:
    ALGORITHMS.add(_name, replace(FEDAVG, about=_about, server=_rule))

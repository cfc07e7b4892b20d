"""Server optimisers: FedAvg whose server takes a step of its own from the clients' mean.

FedAvgM is of Hsu et al. 2019, the others of Reddi et al. 2021.
"""

from __future__ import annotations

from dataclasses import replace

from fedcore.algorithms.algorithm import ALGORITHMS
from fedcore.algorithms.fedavg import FEDAVG
from fedcore.algorithms.server_rules import Adagrad, Adam, Momentum, Yogi

FEDAVGM = ALGORITHMS.add(
    "fedavgm",
    replace(FEDAVG, about="fedavg with momentum on the server", server=Momentum()),
)
FEDADAGRAD = ALGORITHMS.add(
    "fedadagrad",
    replace(FEDAVG, about="fedavg with Adagrad on the server", server=Adagrad()),
)
FEDYOGI = ALGORITHMS.add(
    "fedyogi",
    replace(FEDAVG, about="fedavg with Yogi on the server", server=Yogi()),
)
FEDADAM = ALGORITHMS.add(
    "fedadam",
    replace(FEDAVG, about="fedavg with Adam on the server", server=Adam()),
)

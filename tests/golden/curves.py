"""Golden curves: 30 steps of every algorithm in float64 on a toy federation.

python -m tests.golden.curves      writes tests/golden/*.json, and says what changed
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.table import Table

from fedcore.algorithms import ALGORITHMS
from fedcore.algorithms.server_rules import stepped
from fedcore.clients import launch
from fedcore.clients.control import OWN
from fedcore.clients.step import local_step
from fedcore.server.average import average_models
from fedcore.server.comm import LocalComm
from tests.toy import ToyData, toy_group, toy_order

FOLDER = Path(__file__).parent
ROUNDS, CLIENTS, SIZES = 3, [0, 1, 2], [20, 9, 13]  # client 0: 5 steps an epoch, 2 epochs a round
FIELDS = ("base", "align", "raw", "effective", "norm")
Curves = dict[str, list[float]]


def curves(name: str) -> Curves:
    """What client 0 reported at each of its 30 steps."""
    found: Curves = {field: [] for field in FIELDS}
    group = toy_group(name, CLIENTS, ToyData(SIZES), rounds=ROUNDS)
    own = -1  # the client that trains

    def recording(setup, state, *rest):
        step = local_step(setup, state, *rest)
        if own == 0:
            for field in FIELDS:
                found[field].append(float(f"{getattr(step, field).item():.12g}"))
        return step

    weights, control, moments = None, None, {}
    share = [n / sum(SIZES) for n in SIZES]
    with mock.patch.object(launch, "local_step", recording):
        for round in range(ROUNDS):
            order = toy_order(name, round, CLIENTS, weights)
            if control is not None:
                order = order._replace(targets=order.targets._replace(control=control))
            lanes = group.lanes
            for own in CLIENTS:  # lanes are trained shortest first: name the one that records
                group.lanes = [lane for lane in lanes if lane == [own]]
                group.train(order._replace(participants=frozenset([own])))
            group.lanes = lanes
            state = group.state
            if group.algorithm.mode == "averaged":
                mean, before = _mean(state.model_tensors(), share), order.targets.weights
                before = {k: before[k] for k in group.layout.shapes}
                weights, moments = stepped(group.algorithm.server, before, mean, moments)
            if group.algorithm.control_variates:
                control = _mean({"c": state.flat[OWN]}, share)["c"]
    return found


def _mean(stacked, share):
    parts = [({k: v[i] for k, v in stacked.items()}, share[i]) for i in CLIENTS]
    return average_models(LocalComm(), parts, parts[0][0])


def stored(name: str) -> Curves | None:
    """The golden curves of that algorithm, if there are any."""
    file = FOLDER / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def largest_change(old: Curves, new: Curves) -> dict[str, float]:
    """Largest relative difference by field."""
    return {
        field: max(
            abs(a - b) / max(abs(a), abs(b), 1e-300)
            for a, b in zip(old[field], new[field], strict=True)
        )
        for field in FIELDS
    }


def main() -> None:
    """Write all curves anew and print a table of what changed."""
    table = Table("algorithm", *FIELDS, title="largest relative change")
    for name in ALGORITHMS.names():
        old, new = stored(name), curves(name)
        if old is None:
            table.add_row(name, "new", *[""] * (len(FIELDS) - 1))
        elif old != new:
            change = largest_change(old, new)
            table.add_row(name, *[f"{change[field]:.1e}" for field in FIELDS])
        lines = ",\n".join(f' "{field}": {json.dumps(new[field])}' for field in FIELDS)
        (FOLDER / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    for file in FOLDER.glob("*.json"):
        if file.stem not in ALGORITHMS.names():
            file.unlink()
            table.add_row(file.stem, "gone", *[""] * (len(FIELDS) - 1))
    Console().print(table if table.row_count else "no curve changed")


if __name__ == "__main__":
    main()

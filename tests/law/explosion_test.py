"""Is an exploding lambda seen and said, and only non-finite weights are a divergence?"""

from __future__ import annotations

import pytest
import torch

from fedcore.config import RunConfig
from fedcore.errors import Diverged
from fedcore.federation import Federation
from fedcore.objective import weighting
from fedcore.telemetry.events import ClientEvent, RoundEvent, WarningEvent
from fedcore.telemetry.telemetry import Telemetry
from launcher import prepare, world
from launcher.build import build
from launcher.rundir import RunDir
from tests.kept import Kept


def federation(tmp_path, told: Kept, **clients: float) -> Federation:
    """v12 on digits, with a sigma rate at which its lambda runs away within two rounds."""
    config = RunConfig.of(
        {
            "rounds": 2,
            "precision": "fp64",
            "data": {"source": "digits", "store": str(tmp_path), "alpha": 0.5},
            "clients": {"count": 3, "local_epochs": 2, "lr_log_var": 0.5, **clients},
            "algorithm": {"name": "v12"},
            "evaluate": {"every": 2},
        }
    )
    here = world.World(world.Place(), torch.device("cpu"), world.LocalComm())
    folder = prepare.make(config)
    checkpoints = RunDir(tmp_path).checkpoints_of(config, here, "round")
    return build(config, folder, here, Telemetry([told]), checkpoints, {})


def test_v12s_explosion_is_told_and_ends_nothing(tmp_path, monkeypatch) -> None:
    """In so short a run lambda reaches some 15: the limit is lowered to see it pass."""
    monkeypatch.setattr(weighting, "LAMBDA_MAX", 10.0)
    told = Kept()
    federation(tmp_path, told).run()
    rounds = [e for e in told.events if isinstance(e, RoundEvent)]
    above = [
        sum(e.lambda_raw > 10 for e in told.events if isinstance(e, ClientEvent) and e.round == r)
        for r in range(2)
    ]
    assert [e.lambda_exploded for e in rounds] == above
    assert above[-1] > 0
    words = [e.message for e in told.events if isinstance(e, WarningEvent)]
    assert len([w for w in words if "is above 10" in w]) == 1  # once, not every round
    assert "guard" in words[0]


def test_weights_that_are_not_finite_are_a_divergence(tmp_path) -> None:
    with pytest.raises(Diverged) as caught:
        federation(tmp_path, Kept(), lr=1e200).run()
    assert caught.value.exit_code == 4

"""Is a sweep made of the runs that were meant, and refused when it cannot be?"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.errors import ConfigError, FedError
from launcher.grid import check_directories, grid

OUT = Path("out")


def test_a_grid_is_the_product_in_the_order_of_the_table() -> None:
    cells = grid(["smoke"], OUT, algorithms=["v4", "v14"], alphas=[0.5, 0.1], seeds=2)
    assert [c.title() for c in cells][:5] == [
        "smoke v4 alpha 0.5 seed 0",
        "smoke v4 alpha 0.5 seed 1",
        "smoke v4 alpha 0.1 seed 0",
        "smoke v4 alpha 0.1 seed 1",
        "smoke v14 alpha 0.5 seed 0",
    ]
    assert len({c.run_dir for c in cells}) == 8


def test_what_is_given_twice_runs_once() -> None:
    assert len(grid(["smoke", "smoke"], OUT, algorithms=["v4", "v4"], alphas=[0.5, 0.50])) == 1


def test_another_setting_is_another_directory() -> None:
    plain, changed = grid(["smoke"], OUT), grid(["smoke"], OUT, overrides=["rounds=3"])
    assert plain[0].run_dir != changed[0].run_dir


def test_an_axis_left_out_keeps_the_configurations_own_value() -> None:
    (cell,) = grid(["smoke"], OUT, overrides=["algorithm.name=v4"])
    assert (cell.config.algorithm.name, cell.config.data.alpha) == ("v4", 0.5)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"names": ["smoek"]}, "Try smoke"),
        ({"algorithms": ["v4", "v41"]}, "algorithm.name"),
        ({"alphas": [-1.0]}, "data.alpha"),
        ({"overrides": ["clients.cuont=3"]}, "clients.count"),
        ({"overrides": ["seed=3"]}, "--seeds"),
        ({"algorithms": ["v4"], "overrides": ["algorithm.name=v7"]}, "--algorithm"),
        ({"alphas": [0.1], "overrides": ["data.partition=iid"]}, "dirichlet"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(words: dict, told: str) -> None:
    with pytest.raises(FedError, match=told):
        grid(**{"names": ["smoke"], "out": OUT, **words})


def test_a_directory_of_another_run_is_not_taken(tmp_path: Path) -> None:
    (cell,) = grid(["smoke"], tmp_path)
    check_directories([cell])
    cell.run_dir.mkdir()
    other = cell.config.model_copy(update={"rounds": 9})
    (cell.run_dir / "config.yaml").write_text(other.dump())
    with pytest.raises(ConfigError, match=r"rounds: 9 -> 2.*another --out"):
        check_directories([cell])


def test_ranks_decide_how_a_run_is_started() -> None:
    one, two = grid(["smoke"], OUT), grid(["smoke"], OUT, ranks=2)
    assert one[0].command()[:2] == ["-m", "launcher.main"]
    assert "--nproc_per_node=2 -m launcher.main --config smoke" in two[0].shown()

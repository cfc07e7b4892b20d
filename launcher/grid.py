"""The cells of a sweep: configurations x algorithms x alphas x seeds, each a run of its own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from data_shards.manifest import Manifest
from fedcore.config import RunConfig
from fedcore.errors import ConfigError
from fedcore.files import plain_name
from launcher import cli, entry, prepare
from launcher.build import check_names
from launcher.rundir import RunDir


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str  # configuration, as given
    overrides: tuple[str, ...]
    config: RunConfig  # both of them resolved
    run_dir: Path
    ranks: int = 1

    def command(self) -> list[str]:
        """The words after `python` that start this run, and go on with it."""
        agent = ["torch.distributed.run", "--standalone", f"--nproc_per_node={self.ranks}", "-m"]
        module = ["-m", *(agent if self.ranks > 1 else []), "launcher.main"]
        words = ["--config", self.name, "--run-dir", str(self.run_dir)]
        return [*module, *words, "--set", *self.overrides]

    def shown(self) -> str:
        """The command to repeat this run by hand."""
        return shlex.join(["python", *self.command()])

    def title(self) -> str:
        """What tells this cell from the others, in words."""
        alpha = f" alpha {self.config.data.alpha:g}" if _is_dirichlet(self.config) else ""
        return f"{cli.stem(self.name)} {self.config.algorithm.name}{alpha} seed {self.config.seed}"


def grid(
    names: Sequence[str],
    out: Path,
    *,
    algorithms: Sequence[str] = (),
    alphas: Sequence[float] = (),
    seeds: int = 1,
    overrides: Sequence[str] = (),
    ranks: int = 1,
) -> list[Cell]:
    """The cells in the order of the table; an empty axis keeps each configuration's own value.

    Raises `ConfigError` for the first cell that could not be run.
    """
    axes = {"algorithm.name": algorithms, "data.alpha": alphas, "seed": range(seeds)}
    _no_axis_twice([key for key, values in axes.items() if values], overrides)
    cells = {}
    points = [*product(*(values or [None] for values in axes.values()))]
    for name, point in product(names, points):
        own = [f"{k}={v}" for k, v in zip(axes, point, strict=True) if v is not None]
        cell = _cell(name, (*overrides, *own, "metrics.enabled=false"), out, ranks)
        _alpha_matters(cell, alphas)
        cells[cell.run_dir] = cell  # what is given twice is one cell
    return list(cells.values())


def _cell(name: str, overrides: tuple[str, ...], out: Path, ranks: int) -> Cell:
    config = cli.load_config(name, overrides)
    check_names(config)
    alpha = f"-a{config.data.alpha:g}" if _is_dirichlet(config) else ""
    parts = [plain_name(cli.stem(name)), config.algorithm.name + alpha]
    label = "-".join([*parts, plain_name(f"s{config.seed}"), config.digest()])
    return Cell(name, overrides, config, out / label, ranks)


def _is_dirichlet(config: RunConfig) -> bool:
    return config.data.partition == "dirichlet"


def _no_axis_twice(axes: Sequence[str], overrides: Sequence[str]) -> None:
    """`ConfigError` for a key that --set and an option of its own both want to decide."""
    options = {"algorithm.name": "--algorithm", "data.alpha": "--alpha", "seed": "--seeds"}
    for override in overrides:
        key = override.partition("=")[0]
        if key in axes:
            want = f"a key that this command leaves free: it sets {key} itself ({options[key]})"
            raise ConfigError("--set", override, want, "leaving it out")


def _alpha_matters(cell: Cell, alphas: Sequence[float]) -> None:
    if alphas and not _is_dirichlet(cell.config):
        want = f"a dirichlet partition, and {cell.name} has {cell.config.data.partition}"
        raise ConfigError("--alpha", list(alphas), want, "--set data.partition=dirichlet")


def check_directories(cells: Sequence[Cell]) -> None:
    """`ConfigError` if a cell's directory holds a run of another configuration or other data."""
    for cell in cells:
        summary = RunDir(cell.run_dir).read_summary() or {}
        sha = ""
        if summary.get("status") == "completed":  # only then are the data compared here
            sha = Manifest.load(prepare.ensure(cell.config)).digest()
        try:
            entry.check_stored(RunDir(cell.run_dir), entry.identity(cell.config, sha))
        except ConfigError as error:
            raise replace(error, key=cell.title(), try_="another --out") from None

"""Running a list of experiments in one world: each a job, and one that ends badly stops no other.

A lost rank or a request to stop ends the list; the same command goes on with it.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock

from fedcore.config import RunConfig
from fedcore.errors import CollectiveError, ConfigError, FedError, Stopped
from fedcore.files import plain_name
from fedcore.server.comm import on_any, together
from launcher import cli, entry, experiments, suite_table, world
from launcher.experiments import Run
from launcher.job import Job, kind_of
from launcher.rundir import RunDir, alone_in, make_private, storage
from launcher.suite_state import (
    OVER,
    check_directories,
    exit_code,
    is_nothing,
    is_settled,
    record,
    state,
)
from launcher.telling import tell

STOPPED = Stopped.exit_code


def main(given: argparse.Namespace, first: bool) -> int:
    """The exit code of this rank for the command line of a list. first: it may print."""
    out = given.run_dir or Path("runs") / plain_name(cli.config_path(given.config).stem)
    runs = experiments.read(given.config, given.overrides, out)
    mine = runs if given.experiment is None else experiments.chosen(runs, given.experiment)
    if given.resume not in ("auto", "never"):
        raise ConfigError("--resume", given.resume, "auto or never for a list", "--resume auto")
    if given.print_config or given.list:
        print(_configs(mine) if given.print_config else _listing(mine), end="") if first else None
        return 0
    built = [_checked(run) for run in mine]
    if given.dry_run:
        print(*built, f"{len(built)} runs. Nothing was run.", sep="\n") if first else None
        return 0
    return Suite(runs, mine, out, given.resume)()


def _configs(runs: Sequence[Run]) -> str:
    """The resolved configuration of each run, as the documents of one YAML stream."""
    return "".join(f"--- # {run.number} {run.name}\n{run.config.dump()}" for run in runs)


def _listing(runs: Sequence[Run]) -> str:
    """A line each: number, name, status, directory."""
    width = max(len(run.name) for run in runs)
    lines = [
        f"{run.number:>3}  {run.name:<{width}}  {state(run.run_dir, run.config).words():<24}  "
        f"{run.run_dir}\n"
        for run in runs
    ]
    return "".join(lines)


def _checked(run: Run) -> str:
    """What the run would be, in a line; its mistakes are found before any run starts."""
    try:
        return f"{run.number:>3}  {run.name}: {kind_of(run.config).dry_run()}"
    except FedError as error:
        raise experiments.placed(run.name, error) from None


class Suite:
    """The runs of a list on this rank."""

    def __init__(self, runs: list[Run], mine: list[Run], out: Path, resume: str) -> None:
        self.runs, self.mine, self.out, self.resume = runs, mine, out, resume
        self.world: world.World | None = None
        self.job: Job | None = None
        self.codes: dict[str, int] = {}  # of the runs that are over, by name
        self._lock: FileLock | None = None

    def __call__(self) -> int:
        """The exit code; the same on every rank."""
        try:
            self.world = here = world.join(_joins_with(self.mine), self._lost)
            self._enter(here)
            code = self._all(here)
            self._tell(here, code)
        except FedError as error:
            first = world.Place.of(os.environ).rank == 0
            tell(str(error), here=first or isinstance(error, CollectiveError))
            return error.exit_code
        if self.job is None or not self.job.is_alone:
            here.leave(together=True)
        return code

    def _lost(self, error: CollectiveError) -> None:
        """A peer is gone: the job at work tells it and ends the process."""
        if self.job is not None:
            self.job.lost(error)
        tell(str(error), here=True)
        os._exit(error.exit_code)

    def _enter(self, here: world.World) -> None:
        """Keep other lists out, unless this is one task of an array. Collective."""
        with together(here.comm):
            if here.comm.rank:
                return
            if self.resume == "auto" or here.place.attempt:
                check_directories(self.mine)
            with storage(self.out):
                make_private(self.out)
            if self.mine is self.runs:
                self._lock = alone_in(self.out)
            record(self.runs, self.out, {})

    def _all(self, here: world.World) -> int:
        """Run them; the exit code of the list."""
        for run in self.mine:
            code = (
                STOPPED if on_any(here.comm, here.pauses.stop_requested) else self._one(here, run)
            )
            if self.job is not None and self.job.is_alone:
                return code
            self._clear(here)
            if code == STOPPED:
                return code
            self.codes[run.name] = code
            with together(here.comm):
                if here.comm.rank == 0:
                    record(self.runs, self.out, self.codes)
        return exit_code([*self.codes.values()])

    def _one(self, here: world.World, run: Run) -> int:
        """The exit code of one run, or of an earlier one that need not be done again."""
        settled = self._settled(here, run)
        if settled is not None:
            return settled
        request = cli.Request(run.config, run.name, run.run_dir, self.resume)
        self.job = Job(request, here)
        return self.job()

    def _settled(self, here: world.World, run: Run) -> int | None:
        """The code of a run to pass over; else its directory is ready. Collective."""
        anew = self.resume == "never" and not here.place.attempt
        found = None
        with together(here.comm):
            if here.comm.rank == 0:
                seen = state(run.run_dir, run.config)
                found = seen.code if is_settled(seen) and not anew else None
                words = f"{seen.words()} before; to run it anew: --resume never" if found else ""
                title = f"[{run.number + 1}/{len(self.runs)}] {run.name} {words}".rstrip()
                print(f"\n{title}", flush=True)
                if seen.changed and is_nothing(run, seen):
                    print(f"{run.name}: it {seen.status} with another configuration; anew")
                    entry.set_aside(RunDir(run.run_dir))
        answer: int | None = here.comm.gather_json(found)[0]
        return answer

    def _clear(self, here: world.World) -> None:
        """Let go of what the last run held, so that the next one has all the memory."""
        self.job = None
        here.comm.watcher = lambda operation, size, seconds: None
        gc.collect()
        if here.device.type == "cuda":
            torch.cuda.empty_cache()

    def _tell(self, here: world.World, code: int) -> None:
        """The table once all runs are over, else how to get it. Collective."""
        if code in (STOPPED, CollectiveError.exit_code) or (self.job and self.job.is_alone):
            words = "the list is not over; the same command goes on with it"
            print(words, file=sys.stderr, flush=True) if here.comm.rank == 0 else None
            return
        with together(here.comm):
            if here.comm.rank == 0:
                if all(state(run.run_dir).status in OVER for run in self.runs):
                    suite_table.write_and_show(self.out)
                else:
                    print(f"for a table once the others are over: fedcore lm compare {self.out}")


def _joins_with(runs: Sequence[Run]) -> RunConfig:
    """A configuration with what any run wants of the world: some engines want a group of one."""
    wants = [run.config for run in runs if run.config.lm and run.config.lm.engine != "plain"]
    return (wants or [runs[0].config])[0]

"""One job on this rank, from a request to an exit code and a summary.json."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any

from data_shards.folder import folder_of
from fedcore.config import RunConfig
from fedcore.errors import CollectiveError, FedError, Stopped, StorageError, Unexpected
from fedcore.server.comm import together
from launcher import entry, rundir, world
from launcher.cli import Request
from launcher.kind import Kind
from launcher.telling import tell


def kind_of(config: RunConfig) -> Kind:
    """The kind of job that a configuration describes; the other kind is not even imported."""
    if config.lm is None:
        from launcher.federated import Federated

        return Federated(config)
    from launcher.lm_job import LanguageModel

    return LanguageModel(config)


def _words(error: Exception) -> str:
    """The exception in one line, with what was noted on its way: which loss term it came from."""
    notes = getattr(error, "__notes__", [])
    return " ".join([f"{type(error).__name__}: {error}", *notes])


MEETING = 10.0  # seconds for the other ranks to meet the same unexpected error


class Job:
    """Runs once. Whatever happens, every rank ends with the same code and one summary is left.

    Given a world that is joined already, it works in it and stays in it: a list of jobs goes on
    unless `is_alone` says afterwards that some ranks are elsewhere.
    """

    def __init__(self, request: Request, joined: world.World | None = None) -> None:
        self.request, self.config = request, request.config
        self.run = rundir.RunDir(request.run_dir)
        self.world, self._stays = joined, joined is not None
        self.is_alone = False  # not all ranks met the error that ended it
        self.kind = kind_of(request.config)
        self._prepared = False
        self._identity: entry.Identity = {}

    def __call__(self) -> int:
        """The exit code."""
        try:
            self.world = self.world or world.join(self.config, self.lost)
            code = self._work(self.world)
        except FedError as error:
            code = self._end_badly(error, isinstance(error, CollectiveError))
        except KeyboardInterrupt:
            words = "interrupted once more: what came after the last checkpoint is lost"
            code = self._end_badly(Unexpected(self._rank, words), alone=True)
        except Exception as error:
            traceback.print_exc()
            told = Unexpected(self._rank, _words(error))
            code = self._end_badly(told, alone=not self._met_by_all())
        return code

    def _met_by_all(self) -> bool:
        """Whether a list can go on after an error that no rank told the others of."""
        here = self.world
        return self._stays and here is not None and here.meet(str(self.run.path), MEETING)

    def lost(self, error: CollectiveError) -> None:
        """A peer is gone: end this process from the watch's thread; the main one may be waiting."""
        try:
            self._end_badly(error, alone=True)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # a broken terminal or a full disk must not keep this process alive
            os._exit(error.exit_code)

    @property
    def _rank(self) -> int:
        return self.world.place.rank if self.world else world.Place.of(os.environ).rank

    def _work(self, here: world.World) -> int:
        comm, kind = here.comm, self.kind
        with together(comm):
            store = str(kind.prepare()) if comm.rank == 0 else ""
        place = comm.gather_json(store)[0]
        with together(comm):  # each node has a cache of its own
            data_sha256 = kind.open(folder_of(place, self.config.data.cache))
        found = entry.enter(self.request, self.run, here, data_sha256)
        if found.finished:
            self._say(f"{self.run.path} holds this run, completed; to run it anew: --resume never")
            self._show(found.finished)
            self._leave(together=True)
            return 0
        with together(comm):
            if comm.rank == 0:
                self.run.prepare(self.config, here)
        self._prepared = True
        self._identity = entry.identity(self.config, data_sha256)
        if told := kind.settle(here, found.checkpoint):
            self._say(told)
        self._say(f"{kind.title(here)}; run directory {self.run.path}")
        with kind.telemetry(self.run, here) as telemetry:
            for words in kind.warnings(comm.size):
                telemetry.warn(words)
            trainer = kind.build(here, telemetry, self.run, self._identity)
            if found.checkpoint:
                with together(comm):
                    trainer.resume(found.checkpoint)
            trainer.run()
        self._finish(here)
        return 0

    def _finish(self, here: world.World) -> None:
        summary = self._summary("completed", 0, "")
        with together(here.comm):
            if here.comm.rank == 0:
                self.run.write_summary(summary)
        self._show(summary)
        self.kind.close()
        self._leave(together=True)

    def _leave(self, together: bool) -> None:
        """Out of the run directory, and out of the world unless it is a list's."""
        self.run.release()
        if self.world and not self._stays:
            self.world.leave(together)

    def _end_badly(self, error: FedError, alone: bool) -> int:
        """Tell, and leave a summary. alone: not all ranks met it; rank 0 may be the lost one."""
        speaks = self._rank == 0 or alone
        tell(str(error), here=speaks)
        if speaks:
            self._leave_summary(error)
        self.is_alone = alone
        if not alone:
            self.kind.close()
            self._leave(together=isinstance(error, Stopped))
        return error.exit_code

    def _leave_summary(self, error: FedError) -> None:
        if not (self._prepared or self.run.is_fresh):
            return  # a run that never began leaves another one's files as they were
        if isinstance(error, CollectiveError) and self.run.read_summary():
            return  # the rank that failed first has left its own: that is the cause
        try:
            self.run.write_summary(self._summary(error.status, error.exit_code, str(error)))
        except StorageError as storage:
            if str(storage) != str(error):
                print(f"fedcore: {storage}", file=sys.stderr, flush=True)

    def _summary(self, status: str, code: int, message: str) -> dict[str, Any]:
        return {
            "status": status,
            "exit_code": code,
            "kind": self.kind.name,
            "message": message,
            "seed": self.config.seed,
            "world_size": self.world.place.size if self.world else None,
            **self.kind.facts(),
            "identity": self._identity,
            "finished": time.time(),
        }

    def _show(self, summary: dict[str, Any]) -> None:
        if self._rank == 0:
            self.kind.show(summary, self.run.path)

    def _say(self, words: str) -> None:
        if self._rank == 0:
            print(words, flush=True)


def dry_run(request: Request) -> None:
    """Resolve every name and build what needs no data and no other ranks."""
    print(f"{kind_of(request.config).dry_run()}. Nothing was run.")

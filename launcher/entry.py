"""How to enter a run directory: go on in it, start anew, or find the run over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore import extensions
from fedcore.checkpoint import Checkpoint, candidates
from fedcore.config import RunConfig
from fedcore.config_text import put
from fedcore.errors import ConfigError, FedError
from fedcore.server.comm import Comm, together
from launcher.checkpoint_stored import whole
from launcher.cli import Request
from launcher.rundir import RunDir, alone_in, storage
from launcher.world import World

Identity = dict[str, Any]
"""What two runs must share to be the same run: decisive keys; extensions and data by content."""


@dataclass(frozen=True)
class Entry:
    """The decision; the same on every rank."""

    finished: dict[str, Any] | None = None  # summary of a completed run: nothing to do
    checkpoint: Checkpoint | None = None  # go on from here


def identity(config: RunConfig, data_sha256: str) -> Identity:
    """What a checkpoint and a summary store, to be compared when a run goes on."""
    content = {"data (sha256 of the shards)": data_sha256}
    return config.decisive() | extensions.hashes(config.extensions) | content


def enter(request: Request, run: RunDir, world: World, data_sha256: str) -> Entry:
    """Decide on rank 0 and tell all.

    Raises `ConfigError` on every rank if the directory or checkpoint belongs to another
    configuration or other data, listing what changed, or if ranks imported other texts.
    """
    check_same_text(request.config, world.comm)
    mine = identity(request.config, data_sha256)
    found: dict[str, Any] = {}
    with together(world.comm):
        if world.comm.rank == 0:
            found = _look(request, run, world.place.attempt, mine)
    found = world.comm.gather_json(found)[0]
    folder = found.get("checkpoint")
    with together(world.comm):
        checkpoint = Checkpoint(Path(folder)) if folder else None
    return Entry(found.get("finished"), checkpoint)


def check_same_text(config: RunConfig, comm: Comm) -> None:
    """`ConfigError` on every rank if some imported another text of an extension. Collective."""
    ranks = comm.gather_json({f.name: extensions.sha256(f)[:12] for f in config.extensions})
    for name in sorted(set().union(*ranks)):
        texts: dict[str, list[int]] = {}
        for rank, found in enumerate(ranks):
            texts.setdefault(found.get(name, "no such file"), []).append(rank)
        if len(texts) > 1:
            got = "; ".join(f"{text} on rank {_numbers(at)}" for text, at in texts.items())
            want = "the same text on every rank (its SHA-256 is shown)"
            way_out = "again, once every node has the same file"
            raise ConfigError(f"{extensions.KEY}: {name}", got, want, way_out)


def _numbers(ranks: list[int]) -> str:
    """The first few."""
    return ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")


def _look(request: Request, run: RunDir, attempt: int, mine: Identity) -> dict[str, Any]:
    """What rank 0 finds: a finished run, a checkpoint folder, or neither."""
    # a restart of this very run must neither set its work aside nor go back to DIR
    resume = "auto" if attempt else request.resume
    if resume == "never":
        set_aside(run)
        return {}
    given = None if resume == "auto" else Path(resume).resolve()
    check_stored(run, mine)
    if given and given != run.path.resolve() and given.is_relative_to(run.path.resolve()):
        return {"checkpoint": str(_good(given, mine))}  # back to an older one of this run
    summary = run.read_summary()
    if summary and summary["status"] == "completed":
        return {"finished": summary}
    own = _newest_good(run.checkpoints, mine)
    if own is None and not given and summary and summary["status"] == "stopped":
        want = "the checkpoint that the run stopped with, and its checkpoints are gone"
        raise ConfigError("--resume", str(run.checkpoints), want, "--resume never")
    if own is None and given:
        own = _good(given, mine)
    return {"checkpoint": str(own)} if own else {}


def check_stored(run: RunDir, mine: Identity) -> None:
    """Refuse a directory whose configuration or data are other than this run's."""
    file = run.path / "config.yaml"
    if file.is_file():
        try:
            stored: Identity = RunConfig.load(file).decisive()
        except FedError as error:
            want = f"a run directory; its config.yaml cannot be read ({error})"
            raise ConfigError("--run-dir", str(run.path), want, "another --run-dir") from None
        _same(stored, {k: v for k, v in mine.items() if not is_content(k)}, run.path)
    summary = run.read_summary()
    if summary and summary["status"] == "completed" and "identity" in summary:
        _same(summary["identity"], mine, run.path)


def _good(folder: Path, mine: Identity) -> Path:
    """The checkpoint that DIR is or, as a run directory, holds; of this run, and undamaged."""
    if (folder / "index.json").is_file():
        checkpoint = Checkpoint(folder)
        checkpoint.verify()
        _same(checkpoint.facts["config"], mine, folder)
        return folder
    found = _newest_good(folder / "checkpoints", mine)
    if found is None:
        want = "a checkpoint or run directory"
        raise ConfigError("--resume", str(folder), want, "--resume never")
    return found


def _newest_good(folder: Path, mine: Identity) -> Path | None:
    """The newest checkpoint that is undamaged; damaged ones are told and passed over.

    Raises the newest one's damage if none is good: to start again in silence would hide the loss.
    """
    for checkpoint in whole(folder):
        _same(checkpoint.facts["config"], mine, checkpoint.folder)
        return checkpoint.folder
    for newest in candidates(folder)[:1]:
        Checkpoint(newest).verify()
    return None


def set_aside(run: RunDir) -> None:
    """Rename an existing run directory to the first free `<name>.1`, `.2`, ...: nothing is lost."""
    path = run.path.resolve()
    if not path.is_dir() or not any(path.iterdir()):
        return
    if not run.is_ours:
        want = "a run directory, an empty one or a new name: other files lie in it"
        raise ConfigError("--run-dir", str(path), want, "another --run-dir")
    with storage(path):
        alone_in(path).release()  # not the directory of a job that runs
        number = 1
        while (aside := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        path.rename(aside)


def _same(stored: Identity, mine: Identity, where: Path) -> None:
    """`ConfigError` listing the keys in which a stored run differs from this one."""
    stored = _up_to_date(stored)
    keys = sorted(k for k in stored.keys() | mine.keys() if stored.get(k) != mine.get(k))
    if keys:
        changed = ", ".join(f"{k}: {stored.get(k)!r} -> {mine.get(k)!r}" for k in keys)
        want = f"the configuration of the run in {where}"
        raise ConfigError("--resume", changed, want, "another --run-dir, or --resume never")


def _up_to_date(stored: Identity) -> Identity:
    """With the defaults of keys that are newer than the run: they do what it did without them."""
    values: dict[str, Any] = {}
    for key, value in stored.items():
        if not is_content(key):
            put(values, key, value)
    try:
        known = RunConfig.of(values).decisive()
    except FedError:  # a key that is no more: it is listed as it was stored
        return stored
    return known | {key: value for key, value in stored.items() if is_content(key)}


def is_content(key: str) -> bool:
    """Whether it stands for what is in a file, and not for a key of the configuration."""
    return "(sha256" in key

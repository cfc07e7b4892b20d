"""Checkpoints as they lie in run directories: which one is meant, and whether it is as written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedcore.checkpoint import Checkpoint, candidates, pointed_at
from fedcore.errors import ConfigError, FedError, ShardError
from fedcore.files import inside, sha256_of
from fedcore.telemetry.telemetry import to_stderr

WANT = "a checkpoint, or a run directory with a whole one"
EXAMPLE = "runs/.../checkpoints/round_00010"


def _meant(place: Path) -> Path:
    """The checkpoint that a pointer file names, where one is given; `ConfigError` for nothing."""
    if not place.exists():
        raise ConfigError("CHECKPOINT", str(place), "a path that exists", EXAMPLE)
    return place.parent / pointed_at(place.parent, place.name) if place.is_file() else place


def all_in(place: Path) -> list[Path]:
    """The checkpoint that `place` is, or all of a run, the oldest first; else `ConfigError`."""
    place = _meant(place)
    if (place / "index.json").is_file():
        return [place]
    found = sorted(candidates(place / "checkpoints"))
    if not found:
        raise ConfigError("CHECKPOINT", str(place), "a run directory with checkpoints", EXAMPLE)
    return found


def chosen(place: Path, best: bool = False) -> Path:
    """The checkpoint that `place` is; of a run the newest that is whole, or the one called best.

    Raises `ConfigError` if there is none.
    """
    place = _meant(place)
    if (place / "index.json").is_file():
        return place
    folder = place / "checkpoints"
    if best:
        named = pointed_at(folder, "best")
        if not (folder / named / "index.json").is_file() or not named:
            want = "a run with a best checkpoint (checkpoint.keep_best)"
            raise ConfigError("--best", str(place), want, "leaving --best out")
        return folder / named
    return newest_good(place, between=True)


def whole(folder: Path) -> Iterator[Checkpoint]:
    """The undamaged checkpoints in there, best first; damaged ones are passed over with a warning.

    Raises `ConfigError` for one of another format: going on from the one before would replace it.
    """
    for candidate in candidates(folder):
        try:
            held = Checkpoint(candidate)
            held.verify()
        except ShardError as error:
            to_stderr(f"{error}; passing over {candidate.name}")
            continue
        yield held


def newest_good(run: Path, *, between: bool = False) -> Path:
    """The newest checkpoint of a run that is whole; `ConfigError` if none is.

    between: of those that lie between two rounds.
    """
    unfinished = ""
    for held in whole(run / "checkpoints"):
        if not (between and is_within(held)):
            return held.folder
        unfinished = held.folder.name
    if unfinished:
        want = f"a checkpoint between two rounds: the run stopped within its first ({unfinished})"
        raise ConfigError("CHECKPOINT", str(run), want, "going on with the run")
    raise ConfigError("CHECKPOINT", str(run), WANT, EXAMPLE)


def is_within(held: Checkpoint) -> bool:
    """Whether it was written in the middle of a round."""
    return bool(held.facts.get("within"))


def problem(folder: Path, entry: dict[str, Any]) -> str:
    """What is wrong with one file of a checkpoint; empty if it is as it was written."""
    try:
        path = inside(folder, entry["file"])
        if not path.is_file():
            return "missing"
        return "" if sha256_of(path) == entry["sha256"] else "does not match its sha256"
    except (OSError, FedError) as error:
        return str(error)


def run_of(folder: Path) -> Path:
    """The run directory that a checkpoint lies in."""
    return folder.resolve().parent.parent

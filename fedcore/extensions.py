"""A user's own files, named by `extensions`: imported for what they register."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from fedcore.errors import ConfigError

KEY = "extensions"


def load(files: Iterable[Path]) -> None:
    """Import each file once in this process, so that what it adds to a registry has its name there.

    The same file is never run twice, however often a configuration is read. Raises `ConfigError`
    with the line of the file that failed.
    """
    for file in files:
        _load(file)


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file: what a run depends on beside its keys."""
    return {f"extension {file.name} (sha256)": _sha256(file) for file in files}


def _load(file: Path) -> None:
    name = f"fedcore_extension_{file.stem}_{_sha256(file)[:12]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(KEY, str(file), "a Python file", "a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being run
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _failed(file, error) from error


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        want = f"a Python file that can be read: {reason}"
        raise ConfigError(KEY, str(file), want, "its path from where the run is started") from None


def _failed(file: Path, error: Exception) -> ConfigError:
    """What went wrong, at which line of the user's file."""
    path, frames = str(file.resolve()), traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    where, words = f" in line {lines[-1]}" if lines else "", str(error)
    if isinstance(error, SyntaxError):
        where, words = f" in line {error.lineno}", error.msg
    said = words.splitlines()[0] if words else ""
    want = f"a file that can be imported; this raises{where} {type(error).__name__}: {said}"
    return ConfigError(KEY, str(file), want, "mending that line")

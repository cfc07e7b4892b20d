"""A user's own files, named by `extensions`: imported for what they register.

What counts is the text that was imported, not what stands in the file by now: a process that has
imported a file keeps its bytes for hashes and copies, and does not read it again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.abc import SourceLoader
from pathlib import Path

from fedcore.errors import ConfigError, FedError

KEY = "extensions"

_IMPORTED: dict[Path, bytes] = {}  # by place


def load(files: Iterable[Path]) -> None:
    """Import each file once in this process, so that what it adds to a registry has its name there.

    The same file is never run twice, however often a configuration is read, and if it was edited
    meanwhile. Raises `ConfigError` with the line of the file that failed.
    """
    for file in files:
        if _place(file) not in _IMPORTED:
            read = text(file)
            _run(file, read)
            _IMPORTED[_place(file)] = read


def text(file: Path) -> bytes:
    """What was imported of the file in this process; what it holds if it was not."""
    read = _IMPORTED.get(_place(file))
    try:
        return file.read_bytes() if read is None else read
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        want = f"a Python file that can be read: {reason}"
        raise ConfigError(KEY, str(file), want, "its path from where the run is started") from None


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file's text: what a run depends on beside its keys."""
    return {f"extension {file.name} (sha256)": sha256(file) for file in files}


def sha256(file: Path) -> str:
    """Of its text, in hex digits."""
    return hashlib.sha256(text(file)).hexdigest()


def behind(module: str, files: Iterable[Path]) -> list[Path]:
    """Those of the files whose text is the module of that name; others are not even read."""
    alike = [file for file in files if module.startswith(_module_name(file, ""))]
    return [file for file in alike if module == _module_name(file, sha256(file))]


def imported() -> list[str]:
    """Names of the files that were imported in this process, each once."""
    return list(dict.fromkeys(path.name for path in _IMPORTED))


def _place(file: Path) -> Path:
    """Where it really lies."""
    return Path(os.path.realpath(file))


def _module_name(file: Path, sha: str) -> str:
    """The name by which Python knows it; a copy of the same name shares it."""
    return f"fedcore_extension_{file.stem}_{sha[:12]}"


@dataclass(frozen=True)
class _Text(SourceLoader):
    """Gives Python a text that was read already: bytecode of an older one is never taken."""

    path: str
    text: bytes

    def get_data(self, path: str | bytes) -> bytes:
        return self.text

    def get_filename(self, fullname: str) -> str:
        return self.path


def _run(file: Path, read: bytes) -> None:
    """Run a file that was read, unless one of the same name and text was."""
    name = _module_name(file, hashlib.sha256(read).hexdigest())
    if name in sys.modules:
        return
    if file.suffix != ".py":
        raise ConfigError(KEY, str(file), "a Python file", "a name that ends in .py")
    loader = _Text(str(_place(file)), read)
    spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being run
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:  # sys.exit here would end a job as if it were done
        del sys.modules[name]
        raise _failed(file, error) from error


def _failed(file: Path, error: BaseException) -> ConfigError:
    """What went wrong, at which line of the user's file."""
    path, frames = str(_place(file)), traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    where, words, way_out = f" in line {lines[-1]}" if lines else "", str(error), ""
    if isinstance(error, SyntaxError):
        where, words = f" in line {error.lineno}", error.msg
    if isinstance(error, FedError):  # it brings a way out of its own
        words, _, way_out = words.partition(". Try ")
    said = words.splitlines()[0] if words else ""
    want = f"a file that can be imported; this raises{where} {type(error).__name__}: {said}"
    return ConfigError(KEY, str(file), want, way_out or "mending that line")

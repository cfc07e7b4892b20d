"""Names to things: a file that calls `add` is found by name, by `--help` and by the law tests."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Generic, TypeVar

from fedcore import extensions
from fedcore.errors import ConfigError

T = TypeVar("T")


def nearest(word: str, known: list[str]) -> str:
    """The known word most like `word`, or a list of all of them when none is."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if not known:
        return "nothing here: there is no such thing to choose from"
    return close[0] if close else "one of: " + ", ".join(sorted(known))


class Registry(Generic[T]):
    """One kind of thing, by name. `key` is the config key that chooses among them."""

    def __init__(self, key: str, package: str = "") -> None:
        self.key = key
        self._package = package  # its modules are imported before the first look-up
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Register `thing`; `ConfigError` for a name that something else has."""
        if name in self._things:
            want = "a name that is registered once: something else has it already"
            raise ConfigError(self.key, name, want, "another name in the file that was added")
        self._things[name] = thing
        return thing

    def get(self, name: str, key: str = "") -> T:
        """The thing of that name, or a `ConfigError` with the nearest known name.

        key: the config key it was asked by, where several share a registry.
        """
        self._discover()
        if name not in self._things:
            raise self._unknown(name, key or self.key)
        return self._things[name]

    def _unknown(self, name: str, key: str) -> ConfigError:
        """Whoever imported a file of their own may have forgotten to add what is in it."""
        known, files = list(self._things), extensions.imported()
        near = nearest(name, known)
        if not files:
            return ConfigError(key, name, "a known name", near)
        adds = (
            "was imported and does not add it"
            if len(files) == 1
            else "were imported and none adds it"
        )
        way_out = near if near in known else f"adding it there (docs/extending.md), or {near}"
        return ConfigError(key, name, f"a known name; {', '.join(files)} {adds}", way_out)

    def names(self) -> list[str]:
        """All names, in the order of registration."""
        self._discover()
        return list(self._things)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        self._discover()
        return iter(self._things.items())

    def _discover(self) -> None:
        package, self._package = self._package, ""
        if package:
            root = importlib.import_module(package)
            for module in pkgutil.iter_modules(root.__path__, package + "."):
                self._import(module.name)

    def _import(self, name: str) -> None:
        """One file of the package; a slip in it must not look like a defect of everything else."""
        try:
            importlib.import_module(name)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            want = f"a file that can be imported; this raises {words}"
            raise ConfigError(self.key, name, want, "mending it, or moving it away") from error

"""Pickled arrays without pickle's power to run code: a file from the net is data, or refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import ShardError


def _latin1(text: str, encoding: str) -> bytes:
    """Bytes as Python 3 writes them into the old protocols; no other codec is looked up."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


# every global that an array needs; what makes one empty moved between the versions of numpy
_EMPTY_ARRAY = np.empty(0).__reduce__()[0]
KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _EMPTY_ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _EMPTY_ARRAY,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle.Unpickler):
    """Looks nothing up by name but the few things above, and imports nothing."""

    path = Path()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            problem = f"asks for {module}.{name}, as no published file does: it could run code"
            raise ShardError(str(self.path), problem, "the published file")
        return KNOWN[module, name]


def unpickle(path: Path) -> Any:
    """Numbers, texts, containers and arrays of a pickle; text of Python 2 comes as bytes.

    Raises `ShardError` for a global that arrays do not need, and what pickle does for damage.
    """
    with path.open("rb") as file:
        reader = _ArraysOnly(file, encoding="bytes")
        reader.path = path
        return reader.load()

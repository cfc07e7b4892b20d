"""Damage and malice for readers of files: seeded, so that what failed once fails again.

FUZZ=20 in the environment makes twenty times as many cases, the usual ones first.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

from fedcore.errors import FedError

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "x", "../x", "/etc/passwd", "a\0b"),
    *("x" * 300, "\ud800", "é", "1", "nan", "[", [], {}, [[]], [None], [1, "x"], {"": None}),
    *({"file": "../x"}, {"a": {"b": [1, 2, {"c": None}]}}, [1e999], "round_00001", "latest"),
]
BYTES = [b"[" * 3000, b"\xff\xfe", b"\0", b"{", b"}", b"]", b",", b'"', b"NaN", b"1" * 5000, b"\n"]


def cases(seed: str, count: int) -> Iterator[random.Random]:
    """As many generators, each of its own address."""
    for number in range(count * int(os.environ.get("FUZZ", "1"))):
        yield random.Random(f"{seed} {number}")


def bytes_changed(data: bytes, draws: random.Random) -> bytes:
    """Flipped, cut, doubled or other bytes somewhere; never the same ones."""
    found = bytearray(data)
    while bytes(found) == data:
        at, length = draws.randrange(len(data) + 1), draws.randrange(1, 40)
        kind = draws.randrange(6)
        if kind == 0 and at < len(data):
            found[at] ^= 1 << draws.randrange(8)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            del found[at : at + length]
        elif kind == 3:
            found[at:at] = found[at : at + length]
        elif kind == 4:
            found[at:at] = draws.choice(BYTES)
        elif at < len(data):
            found[at : at + length] = draws.randbytes(length)
    return bytes(found)


def value_changed(value: Any, draws: random.Random) -> Any:
    """A copy in which something is another value, gone, doubled or under another key."""
    changed = copy.deepcopy(value)
    places = [*_places(changed)]
    if not places:
        return draws.choice(VALUES)
    holder, key = draws.choice(places)
    kind = draws.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[draws.choice(["", "x", "../y", key.upper()])] = holder.pop(key)
    elif kind == 2 and isinstance(holder, list):
        holder.append(holder[key])
    elif kind == 3:
        holder[key] = copy.deepcopy(draws.choice(places)[0])
    else:
        holder[key] = copy.deepcopy(draws.choice(VALUES))
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def json_changed(text: bytes, draws: random.Random) -> bytes:
    """Another text: now and then by bytes, else one or two values of it."""
    if draws.random() < 0.4:
        return bytes_changed(text, draws)
    value = json.loads(text)
    for _ in range(draws.choice([1, 1, 2])):
        value = value_changed(value, draws)
    return json.dumps(value).encode()


REFUSED = object()


def read(reader: Callable[[], Any]) -> Any:
    """What it reads, or `REFUSED` by an error of ours; any other error fails the test."""
    try:
        return reader()
    except FedError as error:
        words = str(error)
    assert words
    return REFUSED

"""A file behind a URL, whole and no longer than it may be, over connections that may break.

What is broken off goes on where it stopped, if the server gives parts of files.
"""

from __future__ import annotations

import hashlib
import io
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from data_shards import transport
from fedcore.errors import FedError, ShardError, StorageError

log = logging.getLogger(__name__)
PIECE = 2**20  # bytes that are held in memory at a time
ANOTHER = "copying the whole folder there anew: this file is not the one that was written"


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for."""

    tries: int = 5
    wait: float = 0.5  # seconds before the second try, at most; then twice as long each time
    connect: float = 10.0  # seconds for a connection
    read: float = 30.0  # seconds for any next bytes

    def pause(self, failed: int) -> None:
        """Seconds to wait after so many failed tries; random, so that ranks come back apart."""
        time.sleep(self.wait * 2 ** (failed - 1) * random.SystemRandom().uniform(0.5, 1.0))


PATIENT = Patience()


def read_all(url: str, most: int, patience: Patience) -> bytes:
    """The bytes of a file of at most `most`; `FileNotFoundError` if the server has none."""
    out = io.BytesIO()
    try:
        Download(url, out, None, most).run(patience)
    except ShardError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise FileNotFoundError(2, error.problem, url) from None
        raise
    return out.getvalue()


def download(url: str, out: Path, size: int, patience: Patience) -> str:
    """Write a file of exactly `size` bytes to `out`; its SHA-256, in hexadecimal.

    Raises `ShardError` with the URL, after all tries or at once where no other try would help, and
    `StorageError` if there is no room.
    """
    with storing(out), out.open("wb") as file:
        return Download(url, file, size, size).run(patience)


@contextmanager
def storing(place: Path | str) -> Iterator[None]:
    """A context around what writes into the cache: an `OSError` becomes a `StorageError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(str(place), reason, "another data.cache, or freeing space") from None


class Download:
    """One file on its way: what has come of it so far is in `out`, and hashed."""

    def __init__(self, url: str, out: BinaryIO, size: int | None, most: int) -> None:
        self.url, self.out, self.size, self.most = url, out, size, most
        self.received, self.sha256 = 0, hashlib.sha256()

    def run(self, patience: Patience) -> str:
        """SHA-256 of the file, once it is whole."""
        for failed in range(1, patience.tries + 1):
            try:
                self._go_on(patience)
                return self.sha256.hexdigest()
            except FedError:
                raise
            except Exception as error:  # four libraries, each with its own
                self._give_up(error, failed, last=failed == patience.tries)
            patience.pause(failed)
        raise AssertionError("tries >= 1")

    def _go_on(self, patience: Patience) -> None:
        """One try, from where the last one ended."""
        with transport.opened(self.url, self.received, patience.connect, patience.read) as source:
            if source.start != self.received:
                self._restart()
            self._check_size(source.size)
            while piece := source.read(PIECE):
                self._add(piece)
        if self.received < (source.size or self.size or 0):
            raise transport.Incomplete("the connection ended before the file")

    def _check_size(self, size: int | None) -> None:
        """What the server says beforehand."""
        if size is not None and self.size not in (None, size):
            problem = f"the server has {size:,} bytes, want {self.size:,}"
            raise ShardError(self.url, problem, ANOTHER)

    def _add(self, piece: bytes) -> None:
        if self.received + len(piece) > self.most:
            raise ShardError(self.url, f"the server sends more than {self.most:,} bytes", ANOTHER)
        with storing(getattr(self.out, "name", "memory")):
            self.out.write(piece)
        self.sha256.update(piece)
        self.received += len(piece)

    def _restart(self) -> None:
        self.out.seek(0)
        self.out.truncate()
        self.received, self.sha256 = 0, hashlib.sha256()

    def _give_up(self, error: Exception, failed: int, *, last: bool) -> None:
        """Raises `ShardError`, unless another try may go well."""
        problem, status = transport.words(error), transport.status_of(error)
        if not transport.may_pass(error):
            cause = FileNotFoundError() if status == 404 else None
            raise ShardError(self.url, problem, transport.way_out(error)) from cause
        if last:
            of = "" if self.size is None else f" of {self.size:,}"
            tries = f"{failed} {'try' if failed == 1 else 'tries'}"
            came = f"{self.received:,}{of} bytes came in {tries}"
            way_out = "again when the server answers"
            raise ShardError(self.url, f"{problem}; {came}", way_out) from None
        log.warning("%s: %s; trying again", self.url, problem)
        if status == 416:  # no such part: another file than the one that was begun
            self._restart()

"""The training process's end of its exporter: starts it, and answers it with plain numbers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedcore import errors
from fedcore.config import MetricsConfig
from fedcore.errors import ConfigError
from fedcore.telemetry import endpoint
from fedcore.telemetry.sinks import Warn

ROOT = Path(__file__).parent.parent.parent  # of the package, for a process that starts elsewhere
MODULE = "fedcore.telemetry.exporter_main"

Numbers = Callable[[int], dict[str, Any]]
"""From the version of the clients' rows that the exporter has to what it asks for: `rows`, and
`clients` with their `version`, or None if it has them. Called in a thread."""


class Exporter:
    """A process that listens on `port`, from now to `close` or the end of this one.

    Raises `ConfigError` if it cannot listen, or does not start.
    """

    def __init__(
        self, config: MetricsConfig, ports: Sequence[int], numbers: Numbers, warn: Warn
    ) -> None:
        self._numbers, self._warn, self._is_closing = numbers, warn, False
        self._asked, self._read, self._read_at = 0, 0, -float("inf")
        self._heard = threading.Condition()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _start(theirs)
        self._connection = ours
        self._in, self._out = ours.makefile("r"), ours.makefile("w")
        self.port = self._open(
            config.model_dump(mode="json") | {"ports": ports, "fresh": endpoint.FRESH}
        )
        self._thread = threading.Thread(target=self._answer, name="metrics", daemon=True)
        self._thread.start()

    def is_read(self, within: float) -> bool:
        """Whether somebody read the numbers in the last so many seconds."""
        return time.monotonic() - self._read_at < within

    def wait_for_reader(self, seconds: float) -> bool:
        """Whether somebody reads the numbers as they are now in at most so many seconds."""
        with self._heard:
            wanted = self._asked + 1
            return self._heard.wait_for(lambda: self._read >= wanted, seconds)

    def close(self) -> None:
        """Stop serving and free the port."""
        self._is_closing = True
        self._end()
        self._thread.join(timeout=5)

    def _end(self) -> None:
        """Let the other process go."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()

    def _open(self, words: dict[str, Any]) -> int:
        """The port; or the error that the other process met."""
        said = {}
        with contextlib.suppress(OSError, ValueError):  # it is gone already
            self._say(words)
            said = json.loads(self._in.readline())
        if "port" in said:
            return int(said["port"])
        self._end()
        if "error" in said:
            raise errors.from_json(said["error"])
        want = f"a process of {MODULE} that starts (it ended with {self._process.returncode})"
        raise ConfigError("metrics.enabled", True, want, "metrics.enabled=false")

    def _answer(self) -> None:
        """The thread: answers until the other process is gone."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._in:
                self._hear(json.loads(line))
        if not self._is_closing:
            self._warn("its metrics are no longer served: the process that did has ended")

    def _hear(self, words: dict[str, Any]) -> None:
        if "read" in words:
            with self._heard:
                self._read, self._read_at = max(self._read, words["read"]), time.monotonic()
                self._heard.notify_all()
            return
        with self._heard:
            self._asked += 1
            number = self._asked
        try:
            answer = self._numbers(words["known"])
        except Exception as error:  # a page of nothing, rather than none and a thread less
            self._warn(f"its metrics cannot be read: {error!r}")
            answer = {"rows": [], "version": words["known"], "clients": None}
        self._say({**answer, "number": number})

    def _say(self, words: dict[str, Any]) -> None:
        self._out.write(json.dumps(words) + "\n")
        self._out.flush()


def _start(end: socket.socket) -> subprocess.Popen[bytes]:
    """The process, with its end of the socket."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, str(end.fileno())],
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=[end.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )

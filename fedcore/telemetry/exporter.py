"""The training process's end of its exporter: starts it, and answers it with plain numbers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedcore import errors
from fedcore.config import MetricsConfig
from fedcore.errors import ConfigError
from fedcore.telemetry import endpoint
from fedcore.telemetry.sinks import Warn

ROOT = Path(__file__).parent.parent.parent  # of the package, for a process that starts elsewhere
MODULE = "fedcore.telemetry.exporter_main"

PATIENCE = 60.0  # seconds for the process to start

Numbers = Callable[[int], dict[str, Any]]
"""From the version of the clients' rows that the exporter has to what it asks for: `rows`, and
`clients` with their `version`, or None if it has them. Called in a thread."""


class Exporter:
    """Lets a process listen on `port`, from now to `close` or the end of this one.

    If that process ends too early it is started once more. Raises `ConfigError` if it cannot
    listen, or does not start.
    """

    def __init__(
        self,
        config: MetricsConfig,
        ports: Sequence[int],
        numbers: Numbers,
        warn: Warn,
        place: str = "",  # of the run: `targets.place_of`
    ) -> None:
        self._hello = config.model_dump(mode="json") | {"place": place, "fresh": endpoint.FRESH}
        self._numbers, self._warn = numbers, warn
        self._asked, self._read, self._read_at = 0, 0, -float("inf")
        self._heard = threading.Condition()
        self._changing = threading.Lock()  # held to start the process, and to end it for good
        self._is_closing, self._is_gone = False, False
        self._process = _Process(self._hello, ports)
        self.port = self._process.port
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def is_read(self, within: float) -> bool:
        """Whether somebody read the numbers in the last so many seconds."""
        return time.monotonic() - self._read_at < within

    def wait_for_reader(self, seconds: float) -> bool:
        """Whether somebody reads the numbers as they are now in at most so many seconds."""
        with self._heard:
            wanted = self._asked + 1
            self._heard.wait_for(lambda: self._read >= wanted or self._is_gone, seconds)
            return self._read >= wanted

    def close(self) -> None:
        """Stop serving and free the port."""
        with self._changing:
            self._is_closing = True
            self._process.end()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        """The thread: answers one process, and once more another one."""
        self._answer()
        if self._again():
            self._answer()
            self._tell_end("its metrics are no longer served: the process that does has ended")
        with self._heard:
            self._is_gone = True
            self._heard.notify_all()

    def _answer(self) -> None:
        """Answer until the other process is gone."""
        with contextlib.suppress(OSError, ValueError):
            for words in self._process.heard():
                self._hear(words)

    def _again(self) -> bool:
        """Start the process again, where it was; whether that worked."""
        with self._changing:
            if self._is_closing:
                return False
            self._process.end()
            try:
                self._process = _Process(self._hello, [self.port])
            except ConfigError as error:
                self._warn(f"its metrics are no longer served: {error}")
                return False
        self._tell_end("the process that serves its metrics has ended, and was started again")
        return True

    def _tell_end(self, words: str) -> None:
        if not self._is_closing:
            self._warn(words)

    def _hear(self, words: dict[str, Any]) -> None:
        if "read" in words:
            with self._heard:
                self._read, self._read_at = max(self._read, words["read"]), time.monotonic()
                self._heard.notify_all()
            return
        with self._heard:
            self._asked += 1
            place = {"question": words["question"], "number": self._asked}
        try:
            line = json.dumps({**self._numbers(words["known"]), **place})
        except Exception as error:  # a page of nothing, rather than none and a thread less
            self._warn(f"its metrics cannot be read: {error!r}")
            empty = {"rows": [], "version": words["known"], "clients": None}
            line = json.dumps({**empty, **place})
        self._process.say(line)


class _Process:
    """The other process, and our end of the socket to it. Raises `ConfigError` as `Exporter`."""

    def __init__(self, words: dict[str, Any], ports: Sequence[int]) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self.process = _start(theirs)
        self._in, self._out = self._connection.makefile("r"), self._connection.makefile("w")
        self._connection.settimeout(PATIENCE)
        said: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):  # it is gone, or it hangs
            self.say(json.dumps(words | {"ports": ports}))
            said = json.loads(self._in.readline())
        self._connection.settimeout(None)
        if "port" not in said:
            self.end()
            raise self._refusal(said)
        self.port = int(said["port"])

    def _refusal(self, said: dict[str, Any]) -> errors.FedError:
        if "error" in said:
            return errors.from_json(said["error"])
        want = f"a process of {MODULE} that starts (it ended with {self.process.returncode})"
        return ConfigError("metrics.enabled", True, want, "metrics.enabled=false")

    def heard(self) -> Iterator[dict[str, Any]]:
        """What the exporter says, until it is gone."""
        return map(json.loads, self._in)

    def say(self, line: str) -> None:
        """Send the exporter a line."""
        self._out.write(line + "\n")
        self._out.flush()

    def end(self) -> None:
        """Ask the exporter to end, and wait for it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for end in (self._in, self._out, self._connection):
            with contextlib.suppress(OSError, ValueError):  # what is unsaid, stays so
                end.close()


def _start(end: socket.socket) -> subprocess.Popen[bytes]:
    """The process, with its end of the socket."""
    env = dict(os.environ)
    if ROOT.name != "site-packages":  # a source tree, perhaps not installed
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    # what ends a job is sent to all its processes, and must not meet this one unprepared
    before = signal.pthread_sigmask(signal.SIG_BLOCK, endpoint.ENDING)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(end.fileno())],  # -P: not from this folder
            env=env,
            pass_fds=[end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""A real web server over a folder, on this machine, that can be told to misbehave."""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from data_shards.folder import Remote
from data_shards.manifest import Shard
from data_shards.tars import check

Trick = Callable[["Handler", bytes], None]
"""Answers one request in its own way; given what the file holds."""


class Web:
    """Its address, what was asked of it, and the tricks for the next requests of a path."""

    def __init__(self, root: Path, gives_parts: bool = True) -> None:
        self.root, self.gives_parts = root, gives_parts
        self.asked: list[tuple[str, str]] = []  # path, Range
        self.headers: list[dict[str, str]] = []
        self.tricks: dict[str, list[Trick]] = defaultdict(list)
        self.always: Trick | None = None
        self.is_stopped = False
        self.server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self) -> None:
        """Nobody answers any more, on connections that are open either."""
        assert self.server is not None
        self.is_stopped = True
        self.server.shutdown()
        self.server.server_close()

    def files(self) -> list[str]:
        """Names that were asked for, in order, without the first slash."""
        return [path.lstrip("/") for path, _ in self.asked]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, *_: Any) -> None:
        """Kept in `asked`."""

    def do_GET(self) -> None:
        if self.web.is_stopped:
            return self.hang_up()
        self.web.asked.append((self.path, self.headers.get("Range", "")))
        self.web.headers.append(dict(self.headers))
        file = self.web.root / self.path.lstrip("/")
        content = file.read_bytes() if file.is_file() else b""
        tricks = self.web.tricks[self.path.lstrip("/")]
        trick = tricks.pop(0) if tricks else self.web.always
        if trick is not None:
            trick(self, content)
        elif not file.is_file():
            self.answer(404, b"no such file")
        else:
            self.send(content)
        return None

    do_HEAD = do_GET  # noqa: N815

    def send(self, content: bytes) -> None:
        """The file, or the part that was asked for."""
        asked = self.headers.get("Range", "")
        if not (asked and self.web.gives_parts):
            return self.answer(200, content)
        first = int(asked.removeprefix("bytes=").split("-")[0])
        if first >= len(content):
            return self.answer(416, b"")
        span = f"bytes {first}-{len(content) - 1}/{len(content)}"
        return self.answer(206, content[first:], {"Content-Range": span})

    def answer(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        """length: what is claimed, -1 for nothing."""
        self.send_response(status)
        if length != -1:
            self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def hang_up(self) -> None:
        """In the middle of whatever it was."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def fetch_at_once(place: Remote, shard: Shard, all_here: Barrier) -> None:
    """For a process of its own: fetches when all others are ready."""
    all_here.wait(60)
    check(place, shard)


@contextmanager
def serving(root: Path, gives_parts: bool = True) -> Iterator[Web]:
    """A server of the folder, until the block ends."""
    web = Web(root, gives_parts)
    handler = type("Bound", (Handler,), {"web": web})
    web.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    web.server.daemon_threads = True
    thread = threading.Thread(target=web.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.stop()
        thread.join()


def drops_after(count: int) -> Trick:
    """Sends so many bytes of what was asked for, and hangs up."""

    def trick(handler: Handler, content: bytes) -> None:
        asked = handler.headers.get("Range", "")
        first = 0
        if asked and handler.web.gives_parts:
            first = int(asked.removeprefix("bytes=").split("-")[0])
        span = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
        rest = content[first:]
        status, more = (206, span) if first else (200, {})
        handler.answer(status, rest[:count], more, length=len(rest))
        handler.hang_up()

    return trick


def says(status: int, **headers: str) -> Trick:
    """An answer without a file."""
    return lambda handler, content: handler.answer(status, b"", headers)


def sends(change: Callable[[bytes], bytes], length: int | None = None) -> Trick:
    """Something else than the file; length: what is claimed, -1 for nothing (and hangs up)."""

    def trick(handler: Handler, content: bytes) -> None:
        handler.answer(200, change(content), length=length)
        if length == -1:
            handler.hang_up()

    return trick


def stalls(seconds: float) -> Trick:
    """Sends half of the file and then nothing for a while."""

    def trick(handler: Handler, content: bytes) -> None:
        handler.answer(200, content[: len(content) // 2], length=len(content))
        threading.Event().wait(seconds)
        handler.hang_up()

    return trick

"""An HTTP server for one page, which neither a slow nor a hostile reader can hold up.

A reader that says nothing, or all too much, costs a waiting thread and is thrown out. The page is
made when somebody asks, and at most four times a second.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import gzip
import hmac
import io
import math
import resource
import signal
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import parse_qs

from fedcore.errors import ConfigError

# what ends a job, and is sent to all its processes: an exporter goes when its rank does
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FRESH = 0.25  # seconds for which a page is given out again
SILENCE = 5.0  # seconds a reader may say nothing
PATIENCE = 20.0  # seconds a connection may last in all
CONNECTIONS = 512  # at once; from half of them on the oldest makes way for a new one
REQUEST = 16_384  # bytes of a request line and headers together
POLL = 0.5  # seconds between two looks for connections that last too long, and whether to stop
PIECE = 65_536  # bytes that are sent at once
CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class Part:
    """A piece of the page, packed once if it is asked for packed."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain

    @cached_property
    def packed(self) -> bytes:
        """The part packed by gzip; packed parts one after the other are the packed whole."""
        return gzip.compress(self.plain, compresslevel=1)


class Page(NamedTuple):
    """What is served, and the number by which `given` knows it."""

    parts: Sequence[Part]
    number: int = 0


@dataclass(frozen=True)
class Listening:
    """Where to listen and whom to let in: the keys of `metrics`, and what else a server needs."""

    ports: Sequence[int]  # to try in turn
    bind: str = "127.0.0.1"
    credentials: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    fresh: float = FRESH  # seconds for which a page is given out again
    place: str = ""  # of this run; who asks for the page of another one (`?run=`) gets none

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Listening:
        """The settings in a JSON object; other keys are passed over."""
        own = {f.name: words[f.name] for f in fields(cls)}
        return cls(**own | {k: own[k] and Path(own[k]) for k in PATHS})


PATHS = ("credentials", "certificate", "key")


class Endpoint:
    """Serves `render()` at /metrics, on the first of the ports that is free, until `close`.

    given: called with the number of a page that a reader has all of. Raises `ConfigError` if none
    of the ports can be opened, or for credentials or a certificate that cannot be used.
    """

    def __init__(
        self,
        listening: Listening,
        render: Callable[[], Page],
        given: Callable[[int], object] = lambda number: None,
    ) -> None:
        shelf = _Shelf(render, given, listening.fresh, listening.place)
        self._server = _open(listening, _Door.of(listening), shelf)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port, whoever is still connected."""
        self._server.shutdown()
        self._server.server_close()
        self._server.drop_all()
        self._thread.join(timeout=5)


class _Shelf:
    """The newest page, given out again for a moment."""

    def __init__(
        self, render: Callable[[], Page], given: Callable[[int], object], fresh: float, place: str
    ) -> None:
        self._render, self.given, self._fresh, self._place = render, given, fresh, place
        self._lock = threading.Lock()
        self._made, self._page = -math.inf, Page(())

    def has(self, path: str) -> bool:
        """Whether that is what is asked for: the page, and of this run."""
        name, _, query = path.partition("?")
        wanted = parse_qs(query).get("run", [self._place])
        return name in ("/", "/metrics") and self._place in wanted

    def page(self) -> Page:
        """A page that is at most that old. Raises `TimeoutError` if none can be had."""
        if not self._lock.acquire(timeout=SILENCE):
            raise TimeoutError("there is no page")
        try:
            if time.monotonic() - self._made >= self._fresh:
                self._page, self._made = self._render(), time.monotonic()
            return self._page
        finally:
            self._lock.release()


class _Door:
    """Who may come in, and how: basic authentication, TLS, both or neither."""

    def __init__(self, secret: bytes | None, context: ssl.SSLContext | None) -> None:
        self._secret, self.context = secret, context

    @classmethod
    def of(cls, settings: Listening) -> _Door:
        secret = None if settings.credentials is None else _secret(settings.credentials)
        return cls(secret, None if settings.certificate is None else _context(settings))

    def admits(self, authorization: str | None) -> bool:
        """Whether the header names the user and password."""
        if self._secret is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        try:
            said = base64.b64decode(given, validate=True)
        except ValueError:
            return False
        return scheme.lower() == "basic" and hmac.compare_digest(said, self._secret)


def _secret(path: Path) -> bytes:
    try:
        line = path.read_bytes().strip()
    except OSError as error:
        want = f"a file that can be read ({error.strerror})"
        raise ConfigError("metrics.credentials", str(path), want, "null, or its path") from None
    user, _, password = line.partition(b":")
    if not user or not password or b"\n" in line:  # what it holds is not for the screen
        want = "a file with one line, user:password"
        raise ConfigError("metrics.credentials", str(path), want, "printf user:password > FILE")
    return line


def _context(settings: Listening) -> ssl.SSLContext:
    assert settings.certificate is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # a key with a pass phrase must not ask for it on the terminal
        context.load_cert_chain(settings.certificate, settings.key, password="")
    except OSError as error:  # of ssl as well
        want = f"a PEM certificate and its key without a pass phrase ({error.strerror or error})"
        files = " and ".join(str(f) for f in (settings.certificate, settings.key) if f)
        raise ConfigError("metrics.certificate", files, want, "null for plain HTTP") from None
    return context


class _Server(ThreadingHTTPServer):
    """A thread for each connection, up to a number and for a time."""

    request_queue_size = CONNECTIONS
    daemon_threads = True
    block_on_close = False  # a reader does not keep the run from ending

    def __init__(self, family: int, address: tuple[str, int], door: _Door, shelf: _Shelf) -> None:
        self.address_family = family
        self.door, self.shelf = door, shelf
        # since when each connection has been open, oldest first; inf once it is being dropped
        self._since: dict[Any, float] = {}
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(2, min(CONNECTIONS, (descriptors - 32) // 2))  # TLS takes two each
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without HTTPServer's question to the name service, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", int(self.server_address[1])

    def get_request(self) -> Any:
        """The next connection; without a descriptor for it the oldest one makes way."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._drop_oldest()
                time.sleep(0.1)  # else the loop would be back at once, and again
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._since) >= self._most // 2:  # most of whom are silent: one of them goes
            self._drop_oldest()
        until = time.monotonic() + 0.1  # for the threads of those that are to go
        while len(self._since) >= self._most and time.monotonic() < until:
            time.sleep(0.005)
        if len(self._since) >= self._most:  # they wait for something else: enough
            return self.shutdown_request(request)
        self._since[request] = time.monotonic()
        return super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own: a handshake that hangs holds up nobody else."""
        request.settimeout(SILENCE)
        if self.door.context is None:
            return super().finish_request(request, client_address)
        # a duplicate: wrapping detaches its socket, and `request` is what can be dropped
        with self.door.context.wrap_socket(request.dup(), server_side=True) as wrapped:
            super().finish_request(cast(socket.socket, wrapped), client_address)
        return None

    def shutdown_request(self, request: Any) -> None:
        self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        long_ago = time.monotonic() - PATIENCE
        for request in [r for r, since in list(self._since.items()) if since < long_ago]:
            self._drop(request)

    def drop_all(self) -> None:
        """End all connections."""
        for request in list(self._since):
            self._drop(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader's mistakes are not for the terminal of a training run."""

    def _drop_oldest(self) -> None:
        for request in [r for r, since in list(self._since.items()) if since < math.inf][:1]:
            self._drop(request)

    def _drop(self, request: Any) -> None:
        """Its thread wakes up and closes it, unless it waits for something else."""
        if request in self._since:
            self._since[request] = math.inf
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "fedcore", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = cast(io.BufferedIOBase, _AtMost(cast(BinaryIO, self.rfile), REQUEST))

    def do_GET(self) -> None:  # the library's name
        """The page, for whom the door admits."""
        if not self.server.door.admits(self.headers.get("Authorization")):
            who = 'Basic realm="fedcore"'
            self._answer(HTTPStatus.UNAUTHORIZED, b"metrics.credentials\n", WWW_Authenticate=who)
        elif not self.server.shelf.has(self.path):
            self._answer(HTTPStatus.NOT_FOUND, b"/metrics, of this run\n")
        else:
            self._page()

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def _page(self) -> None:
        try:
            page = self.server.shelf.page()
        except TimeoutError:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the rank does not answer\n")
            return
        packed = _takes_gzip(self.headers.get("Accept-Encoding", ""))
        encoding = {"Content_Encoding": "gzip"} if packed else {}
        parts = [part.packed if packed else part.plain for part in page.parts]
        self._answer(HTTPStatus.OK, *parts, **encoding)
        self.server.shelf.given(page.number)

    def _answer(self, status: HTTPStatus, *parts: bytes, **headers: str) -> None:
        self.send_response(status)
        sizes = {"Content-Type": CONTENT, "Content-Length": str(sum(map(len, parts)))}
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {**sizes, **own}.items():
            self.send_header(name, value)
        self.end_headers()
        for part in parts if self.command == "GET" else ():
            for start in range(0, len(part), PIECE):  # each has the time of `SILENCE`
                self.wfile.write(memoryview(part)[start : start + PIECE])

    def log_message(self, format: str, *args: Any) -> None:
        """Not for the terminal of a training run."""


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, and not with q=0."""
    for entry in accepted.split(","):
        name, _, weight = entry.replace(" ", "").partition(";")
        if name == "gzip":
            return weight.rstrip("0.") != "q="
    return False


class _AtMost:
    """A file to read lines from that breaks off after so many bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def readline(self, size: int = -1) -> bytes:
        line = self._file.readline(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise ConnectionAbortedError("a request of too many bytes")
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _open(settings: Listening, door: _Door, shelf: _Shelf) -> _Server:
    """A server on the first free port."""
    family = _family(settings)
    for port in settings.ports:
        try:
            return _Server(family, (settings.bind, port), door, shelf)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise _refused(settings, port, error) from None
    ports = [*settings.ports]
    raise ConfigError("metrics.port", ports, "a free port", "metrics.enabled=false")


def _family(settings: Listening) -> int:
    try:
        found = socket.getaddrinfo(settings.bind, None, type=socket.SOCK_STREAM)
    except OSError as error:  # a name that does not resolve
        raise _refused(settings, settings.ports[0], error) from None
    return int(found[0][0])


def _refused(settings: Listening, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EACCES:
        return ConfigError("metrics.port", port, "a port this user may open", "9400, or 0 for any")
    want = f"an address of this machine ({error.strerror})"
    return ConfigError("metrics.bind", settings.bind, want, "127.0.0.1, or 0.0.0.0 for all")

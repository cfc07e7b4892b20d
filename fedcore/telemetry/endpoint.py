"""An HTTP server for one page, which neither a slow nor a hostile reader can hold up.

A reader that says nothing, or all too much, costs a waiting thread and is thrown out; training
never waits for one. The page is made when somebody asks, and at most four times a second.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import gzip
import hmac
import io
import math
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, cast

from fedcore.config import MetricsConfig
from fedcore.errors import ConfigError

FRESH = 0.25  # seconds for which a page is given out again
SILENCE = 5.0  # seconds a reader may say nothing
PATIENCE = 20.0  # seconds a connection may last in all
CONNECTIONS = 256  # at once; the oldest makes way for a new one
REQUEST = 16_384  # bytes of a request line and headers together
POLL = 0.5  # seconds between two looks for connections that last too long, and whether to stop
CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class Endpoint:
    """Serves `render()` at /metrics, on the first of `ports` that is free, until `close`.

    Raises `ConfigError` if none of them can be opened, or for credentials or a certificate that
    cannot be used.
    """

    def __init__(
        self, config: MetricsConfig, ports: Sequence[int], render: Callable[[], bytes]
    ) -> None:
        self._page = _Page(render)
        self._server = _open(config, ports, _Door.of(config), self._page)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL,), name="metrics", daemon=True
        )
        self._thread.start()

    def is_read(self, within: float) -> bool:
        """Whether somebody read the page in the last so many seconds."""
        return time.monotonic() - self._page.read_at < within

    def wait_for_reader(self, seconds: float) -> bool:
        """Whether somebody reads the page as it is now, or newer, in at most so many seconds."""
        return self._page.wait(seconds)

    def close(self) -> None:
        """Stop serving and free the port, whoever is still connected."""
        self._server.shutdown()
        self._server.server_close()
        self._server.drop_all()
        self._thread.join(timeout=5)


class _Page:
    """The rendered page, kept for a moment; knows when it was last read."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render, self._lock = render, threading.Lock()
        self._made, self._plain, self._packed = -math.inf, b"", b""
        self.read_at = -math.inf
        self._wanted = math.inf  # a page made since then is waited for
        self._is_read = threading.Event()

    def content(self, packed: bool) -> tuple[bytes, float]:
        """The page, and when it was made. packed: by gzip."""
        with self._lock:
            now = time.monotonic()
            if now - self._made >= FRESH or self._made < self._wanted <= now:
                self._plain, self._packed, self._made = self._render(), b"", now
            if packed and not self._packed:
                self._packed = gzip.compress(self._plain, compresslevel=1)
            return self._packed if packed else self._plain, self._made

    def given(self, made: float) -> None:
        """A reader has all of what was made then."""
        self.read_at = time.monotonic()
        if made >= self._wanted:
            self._is_read.set()

    def wait(self, seconds: float) -> bool:
        """Whether what is known now is read within so many seconds."""
        self._wanted = time.monotonic()
        return self._is_read.wait(seconds)


class _Door:
    """Who may come in, and how: basic authentication, TLS, both or neither."""

    def __init__(self, secret: bytes | None, context: ssl.SSLContext | None) -> None:
        self._secret, self.context = secret, context

    @classmethod
    def of(cls, config: MetricsConfig) -> _Door:
        secret = None if config.credentials is None else _secret(config.credentials)
        return cls(secret, None if config.certificate is None else _context(config))

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
    if b":" not in line or b"\n" in line:  # what it holds is not for the screen
        want = "a file with one line, user:password"
        raise ConfigError("metrics.credentials", str(path), want, "printf user:password > FILE")
    return line


def _context(config: MetricsConfig) -> ssl.SSLContext:
    assert config.certificate is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.certificate, config.key)
    except OSError as error:  # of ssl as well
        want = f"a PEM certificate and its key ({error.strerror or error})"
        files = (str(config.certificate), str(config.key))
        raise ConfigError("metrics.certificate", files, want, "null for plain HTTP") from None
    return context


class _Server(ThreadingHTTPServer):
    """A thread for each connection, up to a number and for a time."""

    request_queue_size = CONNECTIONS
    daemon_threads = True
    block_on_close = False  # a reader does not keep the run from ending

    def __init__(self, family: int, address: tuple[str, int], door: _Door, page: _Page) -> None:
        self.address_family = family
        self.door, self.page = door, page
        self._since: dict[Any, float] = {}  # of each open connection, oldest first
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without HTTPServer's question to the name service, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        for oldest in list(self._since)[: max(0, len(self._since) - CONNECTIONS + 1)]:
            self._drop(oldest)
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

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

    def _drop(self, request: Any) -> None:
        self._since.pop(request, None)
        with contextlib.suppress(OSError):  # its thread wakes up and closes it
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
            self._answer(
                HTTPStatus.UNAUTHORIZED,
                b"metrics.credentials\n",
                {"WWW-Authenticate": 'Basic realm="fedcore"'},
            )
        elif self.path.partition("?")[0] not in ("/", "/metrics"):
            self._answer(HTTPStatus.NOT_FOUND, b"/metrics\n", {})
        else:
            packed = "gzip" in self.headers.get("Accept-Encoding", "")
            headers = {"Content-Encoding": "gzip"} if packed else {}
            content, made = self.server.page.content(packed)
            self._answer(HTTPStatus.OK, content, headers)
            self.server.page.given(made)

    def _answer(self, status: HTTPStatus, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        sizes = {"Content-Type": CONTENT, "Content-Length": str(len(content))}
        for name, value in {**sizes, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Not for the terminal of a training run."""


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


def _open(config: MetricsConfig, ports: Sequence[int], door: _Door, page: _Page) -> _Server:
    """A server on the first free port."""
    family = _family(config)
    for port in ports:
        try:
            return _Server(family, (config.bind, port), door, page)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise _refused(config, port, error) from None
    raise ConfigError("metrics.port", config.port, "a free port", "metrics.enabled=false")


def _family(config: MetricsConfig) -> int:
    try:
        found = socket.getaddrinfo(config.bind, None, type=socket.SOCK_STREAM)
    except OSError as error:  # a name that does not resolve
        raise _refused(config, config.port, error) from None
    return int(found[0][0])


def _refused(config: MetricsConfig, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EACCES:
        return ConfigError("metrics.port", port, "a port this user may open", "9400, or 0 for any")
    want = f"an address of this machine ({error.strerror})"
    return ConfigError("metrics.bind", config.bind, want, "127.0.0.1, or 0.0.0.0 for all")

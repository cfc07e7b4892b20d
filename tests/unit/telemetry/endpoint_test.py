"""Does the endpoint answer those it should, and only them, whatever others do?"""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import io
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedcore.errors import ConfigError
from fedcore.telemetry import endpoint
from fedcore.telemetry.endpoint import Endpoint, Listening, Page, Part
from tests.procs.runs import wait_for

pytestmark = pytest.mark.broad

PAGE = b"fedcore_round 3\n"


def page(*parts: bytes, number: int = 0) -> Page:
    return Page([Part(part) for part in parts], number)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "POLL", 0.01)


@contextlib.contextmanager
def serving(content: bytes = PAGE, **keys: Any) -> Iterator[Endpoint]:
    found = Endpoint(Listening([0], **keys), lambda: page(content))
    try:
        yield found
    finally:
        found.close()


def ask(
    served: Endpoint, path: str = "/metrics", context: ssl.SSLContext | None = None, **headers: str
) -> bytes:
    scheme = "https" if context else "http"
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{served.port}{path}", headers=named)
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        return answer.read()


def raw(served: Endpoint, content: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=10)
    connection.sendall(content)
    return connection


def is_over(connection: socket.socket, within: float = 3.0) -> bool:
    """Whether the other side ends the connection."""
    connection.settimeout(within)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_the_page_is_at_metrics_and_packed_for_those_who_can_unpack() -> None:
    with serving() as served:
        assert ask(served) == PAGE
        assert ask(served, "/metrics?collect=all") == PAGE
        assert gzip.decompress(ask(served, Accept_Encoding="gzip")) == PAGE
        assert ask(served, Accept_Encoding="gzip;q=0, br") == PAGE
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(served, "/etc/passwd")
        head = raw(served, b"HEAD /metrics HTTP/1.0\r\n\r\n").makefile("rb").read()
        assert head.startswith(b"HTTP/1.0 200")
        assert b"Content-Length: 16\r\n" in head
        assert head.endswith(b"\r\n\r\n"), "a head has no body"


def test_who_looks_for_another_run_finds_none() -> None:
    found = Endpoint(Listening([0], place="abcd1234"), lambda: page(PAGE))
    try:
        assert ask(found) == ask(found, "/metrics?run=abcd1234") == PAGE
        for other in ("/metrics?run=dead", "/metrics?run=abcd1234x"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                ask(found, other)
    finally:
        found.close()


def test_two_hundred_readers_at_once_are_all_served_from_one_page() -> None:
    made = []
    big = b"x" * 1_000_000
    found = Endpoint(Listening([0]), lambda: made.append(1) or page(big))
    try:
        with ThreadPoolExecutor(200) as pool:
            sizes = list(pool.map(lambda _: len(ask(found)), range(200)))
    finally:
        found.close()
    assert sizes == [len(big)] * 200
    assert len(made) < 40, "a page is given out again for a moment"


def threads() -> int:
    """Of servers."""
    return sum("process_request" in thread.name for thread in threading.enumerate())


def test_silent_connections_make_way_and_are_thrown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "CONNECTIONS", 20)
    with serving() as served:
        silent = [raw(served) for _ in range(60)]
        assert ask(served) == PAGE, "sixty who say nothing do not keep out one who asks"
        wait_for(lambda: threads() <= 10, "threads", 10)
        monkeypatch.setattr(endpoint, "PATIENCE", 0.1)
        assert all(map(is_over, silent))
    wait_for(lambda: threads() == 0, "threads", 10)


def test_readers_of_a_page_that_does_not_come_are_refused_and_are_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "CONNECTIONS", 20)
    monkeypatch.setattr(endpoint, "SILENCE", 0.5)
    comes = threading.Event()

    def render() -> Page:
        if not comes.wait(0.5):
            raise TimeoutError
        return page(PAGE)

    found = Endpoint(Listening([0]), render)
    try:
        waiting = [raw(found, b"GET /metrics HTTP/1.0\r\n\r\n") for _ in range(60)]
        assert threads() <= 20
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(found)  # 503, or one too many
        comes.set()
        assert all(map(is_over, waiting))
        wait_for(lambda: threads() == 0, "threads", 10)
        assert ask(found) == PAGE
    finally:
        found.close()


def test_a_rank_that_does_not_answer_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def render() -> Page:
        raise TimeoutError

    found = Endpoint(Listening([0]), render)
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            ask(found)
    finally:
        found.close()


def test_a_reader_that_sends_a_byte_now_and_then_is_thrown_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "PATIENCE", 0.4)
    with serving() as served:
        slow = raw(served, b"GET /metrics HTTP/1.1\r\nX: ")
        for _ in range(40):
            time.sleep(0.05)
            try:
                slow.sendall(b"a")
            except OSError:
                break
        assert is_over(slow)
        assert ask(served) == PAGE


def test_a_reader_that_does_not_read_is_thrown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PATIENCE", 2.0)
    with serving(b"x" * 50_000_000) as served:
        deaf = raw(served, b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_for(lambda: threads() == 1, "threads", 10)  # it waits to be rid of the page
        wait_for(lambda: threads() == 0, "threads", 10)
        deaf.close()


def test_a_reader_may_be_slow_as_long_as_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SILENCE", 0.5)
    content = b"x" * 20_000_000
    with serving(content) as served:
        slow, got = raw(served, b"GET /metrics HTTP/1.0\r\n\r\n"), 0
        began = time.monotonic()
        while part := slow.recv(1_000_000):
            got += len(part)
            time.sleep(0.03)
        assert got > len(content)
        assert time.monotonic() - began > 0.5, "longer than it may be silent"


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 1_000_000,
        b"GET /metrics HTTP/1.1\r\n" + b"X: a\r\n" * 100_000,
        b"G" * 1_000_000,
        b"\x16\x03\x01" + bytes(range(256)) * 40,
        b"GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n",
        b"\r\n\r\n\r\n",
    ],
    ids=["one header", "many headers", "one line", "binary", "length", "post", "nothing"],
)
def test_nonsense_is_cut_short(request_: bytes) -> None:
    with serving() as served:
        connection = socket.create_connection(("127.0.0.1", served.port), timeout=10)
        with contextlib.suppress(OSError):  # it may hang up before all is sent
            connection.sendall(request_)
            connection.shutdown(socket.SHUT_WR)
        assert is_over(connection)
        assert ask(served) == PAGE


def test_a_request_is_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    read = endpoint._AtMost(io.BytesIO(b"a" * 9 + b"\n" + b"b" * 100), 20)
    assert read.readline() == b"a" * 9 + b"\n"
    with pytest.raises(ConnectionAbortedError):
        read.readline(65537)
    seen = list[int]()
    monkeypatch.setattr(
        endpoint._AtMost, "__init__", lambda self, file, size: seen.append(size) or None
    )
    with serving() as served, pytest.raises((OSError, http.client.HTTPException)):
        ask(served)
    assert seen == [endpoint.REQUEST], "every request is read so"


def test_close_does_not_wait_for_anybody() -> None:
    with serving() as served:
        held = [raw(served) for _ in range(10)]
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert all(map(is_over, held))


def test_a_page_that_cannot_be_made_is_an_answer_missed_and_no_more() -> None:
    states = iter([ZeroDivisionError, None])

    def render() -> Page:
        if error := next(states):
            raise error
        return page(PAGE)

    found = Endpoint(Listening([0]), render)
    try:
        with pytest.raises((OSError, urllib.error.URLError)):
            ask(found)
        assert ask(found) == PAGE
    finally:
        found.close()


def test_a_page_of_parts_is_one_and_is_known_by_its_number_when_it_is_read() -> None:
    numbers, given = iter(range(5, 100)), list[int]()
    parts = (b"fedcore_round 3\n", b"fedcore_clients 4\n")
    found = Endpoint(
        Listening([0], fresh=0), lambda: page(*parts, number=next(numbers)), given.append
    )
    try:
        assert ask(found) == b"".join(parts)
        assert gzip.decompress(ask(found, Accept_Encoding="gzip")) == b"".join(parts)
        # the reader has it before the server knows
        wait_for(lambda: len(given) == 2, "two pages", 10)
    finally:
        found.close()
    assert sorted(given) == [5, 6]


# -- who may come in


def authorization(words: str) -> str:
    return "Basic " + base64.b64encode(words.encode()).decode()


def test_credentials_keep_others_out(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("prometheus:päss:word\n")
    with serving(credentials=file) as served:
        assert ask(served, Authorization=authorization("prometheus:päss:word")) == PAGE
        wrong = [authorization("prometheus:word"), "Basic ?", "Bearer x", "", "Basic"]
        for said in wrong:
            with pytest.raises(urllib.error.HTTPError, match="401"):
                ask(served, Authorization=said)


@pytest.mark.parametrize("content", [None, "no colon", "a:b\nc:d", ":hidden", "operator:"])
def test_credentials_that_cannot_be_used_are_told_and_not_shown(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    with (
        pytest.raises(ConfigError, match=r"metrics\.credentials") as caught,
        serving(credentials=file),
    ):
        pass
    assert content is None or content not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "cert.pem"
    words = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run(
        ["openssl", "req", "-x509", *words, *name, *files], check=True, capture_output=True
    )
    return made, key


def test_tls_answers_in_tls_only(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, key = certificate
    trusting = ssl.create_default_context(cafile=str(made))
    with serving(certificate=made, key=key) as served:
        stuck = [raw(served) for _ in range(5)]  # who never begins the handshake
        assert ask(served, context=trusting) == PAGE
        assert is_over(raw(served, b"GET /metrics HTTP/1.1\r\n\r\n"))
        wait_for(lambda: threads() == 5, "threads", 10)
        monkeypatch.setattr(endpoint, "PATIENCE", 0.1)
        assert all(map(is_over, stuck)), "long before they have been silent for long"


def test_a_key_with_a_pass_phrase_is_refused_and_nobody_is_asked_for_it(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    made, key = certificate
    locked = tmp_path / "locked.pem"
    words = ["-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(["openssl", "rsa", *words], check=True, capture_output=True)
    with (
        pytest.raises(ConfigError, match="without a pass phrase"),
        serving(certificate=made, key=locked),
    ):
        pass


def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pem", Path(__file__)):
        with pytest.raises(ConfigError, match=r"metrics\.certificate"), serving(certificate=path):
            pass

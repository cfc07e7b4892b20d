"""A file behind a URL as bytes, by fsspec: one try, and what its errors mean.

http and https stream one response; s3 and gs are read by ranges. No other protocol is opened,
whoever asks for it: fsspec itself knows shells and files of this machine.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fedcore.config_section import URL_WANTED, is_remote
from fedcore.errors import ConfigError

BLOCK = 8 * 2**20  # bytes of a range of s3 and gs
EXTRAS = {"s3": "s3fs", "gs": "gcsfs"}  # scheme, and fedcore's extra -> package


class Opened(NamedTuple):
    """A file that is being read."""

    read: Callable[[int], bytes]  # at most so many bytes; none at its end
    start: int  # the byte of the file that comes first
    size: int | None  # bytes of the whole file, where the server says it


class Incomplete(ConnectionError):
    """The connection ended before the file did."""


class Refused(Exception):
    """The server's answer is not the file."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server said {status}")
        self.status = status


@contextmanager
def opened(url: str, start: int, connect: float, read: float) -> Iterator[Opened]:
    """The file from byte `start` on, or from its beginning where the server gives no parts.

    connect, read: seconds to wait for a connection, and for any next bytes.
    """
    if not is_remote(url):
        raise ConfigError("URL", url, URL_WANTED)
    way = _of_web if url.startswith("http") else _of_bucket
    with way(url, start, connect, read) as found:
        yield found


@contextmanager
def _of_web(url: str, start: int, connect: float, read: float) -> Iterator[Opened]:
    import aiohttp

    waits = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read)
    # trust_env: proxies, and credentials in ~/.netrc
    session = {"timeout": waits, "trust_env": True, "auto_decompress": False}
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    fs, path = _file_system(url, client_kwargs=session)
    # block_size 0: one response, as it comes; size: else fsspec would ask for it first
    with fs.open(path, "rb", block_size=0, size=1, headers=headers) as file:
        if file.r.status not in (200, 206):
            raise Refused(file.r.status)
        part, size = _range_of(file.r.headers.get("Content-Range", "")), file.r.content_length
        if file.r.status == 206 and part is not None:
            first, size = part
        else:
            first = 0
        if first not in (0, start):
            raise Incomplete(f"byte {first} on, asked for {start} on")
        yield Opened(file.read, first, size)


def _range_of(header: str) -> tuple[int, int | None] | None:
    """(first byte, size of the file) of `Content-Range: bytes 5-9/10`."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", header.strip())
    if found is None:
        return None
    return int(found[1]), None if found[2] == "*" else int(found[2])


@contextmanager
def _of_bucket(url: str, start: int, connect: float, read: float) -> Iterator[Opened]:
    fs, path = (_s3 if url.startswith("s3:") else _gs)(url, connect, read)
    with fs.open(path, "rb", block_size=BLOCK, cache_type="readahead") as file:
        file.seek(start)
        yield Opened(file.read, start, file.size)


def _s3(url: str, connect: float, read: float) -> tuple[Any, str]:
    waits: dict[str, Any] = {"connect_timeout": connect, "read_timeout": read}
    # tries are counted in one place: fetch.py
    with _installed(url):
        fs, path = _file_system(url, config_kwargs={**waits, "retries": {"max_attempts": 0}})
    fs.retries = 1
    return fs, path


def _gs(url: str, connect: float, read: float) -> tuple[Any, str]:
    """Not by fsspec's name for it: that one asks a second service what kind of bucket it is, and
    waits a minute for each file where that does not answer."""
    import aiohttp

    with _installed(url):
        from gcsfs.core import GCSFileSystem
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # what fails is told once: by us
    waits = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read)
    fs = GCSFileSystem(requests_timeout=waits, use_listings_cache=False)
    return fs, str(fs._strip_protocol(url))


def _file_system(url: str, **settings: Any) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **settings)
    return fs, str(path)


@contextmanager
def _installed(url: str) -> Iterator[None]:
    """`ConfigError` for a scheme whose package is missing."""
    scheme = url.partition(":")[0]
    try:
        yield
    except ImportError:
        way_out = f"pip install 'fedcore[{scheme}]'"
        raise ConfigError("URL", url, f"{EXTRAS[scheme]} for {scheme}://", way_out) from None


def status_of(error: BaseException) -> int | None:
    """The HTTP status with which the server refused, if it answered at all."""
    response = getattr(error.__cause__ or error, "response", None)  # of botocore
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None
    for name in ("status", "code"):  # of aiohttp, of gcsfs
        if isinstance(found := getattr(error, name, None), int) and found >= 300:
            return found
    return 404 if isinstance(error, FileNotFoundError) else None


def may_pass(error: BaseException) -> bool:
    """Whether trying again may help: no answer, a broken connection, a busy server."""
    import aiohttp

    status = status_of(error)
    if status is not None:
        return (status >= 500 and status != 501) or status in (408, 416, 429)
    lasting = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, aiohttp.ClientSSLError)
    if isinstance(error, (*lasting, PermissionError, FileNotFoundError)):
        return False
    passing = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
    # by name: botocore is not there unless s3 is
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, passing) or bool(names & {"HTTPClientError", "ConnectionError"})


def words(error: BaseException) -> str:
    """What an error says happened, in a line."""
    status = status_of(error)
    if status is not None:
        return f"the server said {status}{_MEANINGS.get(status, '')}"
    if isinstance(error, asyncio.TimeoutError) or "timeout" in type(error).__name__.lower():
        return "the server sent nothing for too long"
    if "NonHttp" in type(error).__name__:
        return "redirected to what is no web server"
    if type(error).__name__ in ("ClientPayloadError", "ServerDisconnectedError", "Incomplete"):
        return "the connection ended before the file"
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}: {reason}"[:300] if reason else type(error).__name__


_MEANINGS = {
    401: " (not without credentials)",
    403: " (not allowed; some buckets say so of what is not there)",
    404: " (no such file)",
    429: " (too many requests)",
}


def way_out(error: BaseException) -> str:
    """What to do about an error that trying again does not mend."""
    no_credentials = "Credentials" in type(error).__name__
    if status_of(error) in (401, 403) or no_credentials or isinstance(error, PermissionError):
        return "credentials, in ~/.netrc, AWS_... or GOOGLE_APPLICATION_CREDENTIALS"
    if status_of(error) == 404:
        return "copying the whole folder there, or another data.store or data.shards"
    return "the URL by hand, or the folder on this machine"

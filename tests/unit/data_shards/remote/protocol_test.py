"""Is nothing but a web server or a bucket ever opened?"""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from pathlib import Path

import pytest

from data_shards import transport
from data_shards.folder import Remote, folder_of
from data_shards.manifest import Manifest
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, FedError
from launcher.commands import app
from tests.unit.data_shards.remote.toys import (
    HASTY,
    call,
)

pytestmark = pytest.mark.broad

HOSTILE = [
    *("pipe:touch /tmp/x", "http://x/a::pipe:touch", "file:///etc", "s3::http://x/y", "s3:///x"),
    *("simplecache::http://x/y", "http://x/a::file:///etc", "ftp://x/y", "github://a:b@c/d"),
    *("local:///etc", "memory://x", "http://x y", "http://x/\ny", "https://", "reference::s3://x"),
    *("http://me:secret@x/y", "https://secret@x/y", "s3://me:secret@x/y", "http://me:sec/ret@x/y"),
]


@pytest.mark.parametrize("url", HOSTILE)
@pytest.mark.parametrize("key", ["data.store", "data.shards"])
def test_no_other_protocol_is_opened(url: str, key: str, monkeypatch) -> None:
    monkeypatch.setattr(transport, "_file_system", None)  # nothing may come so far
    with pytest.raises(FedError) as told:
        RunConfig.of({"data": {key.removeprefix("data."): url}})
    made = [lambda: Remote(url, Path("cache")), lambda: transport.opened(url, 0, 1, 1).__enter__()]
    said = [str(told.value)]
    for make in made:
        with pytest.raises(ConfigError) as caught:
            make()
        said.append(str(caught.value))
    result = call(app, ["shards", "verify", url])
    assert result.exit_code == 2
    assert not any("secret" in words or "ret@" in words for words in [*said, result.output])


def test_a_url_that_only_looks_local_is_none() -> None:
    assert folder_of("http://x/y/", Path("c")) == Remote("http://x/y", Path("c").absolute())
    assert folder_of("x/y", Path("c")) == Path("x/y")
    assert folder_of(Path("x"), Path("c")) == Path("x")
    home = folder_of("s3://b/y", Path("~/c"))
    assert isinstance(home, Remote)
    assert home.cache == Path.home() / "c"


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs")])
def test_a_missing_package_is_named(scheme: str, package: str, tmp_path, monkeypatch) -> None:
    found = builtins.__import__

    def missing(name: str, *rest: object, **more: object) -> object:
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return found(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    # as in a process that has not opened one of that kind yet
    known = importlib.import_module("fsspec.registry")._registry
    for protocol in [p for p, kind in known.items() if kind.__module__.startswith(package)]:
        monkeypatch.delitem(known, protocol)
    for module in [m for m in sys.modules if m.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError, match=re.escape(f"pip install 'fedcore[{scheme}]'")):
        Manifest.load(Remote(f"{scheme}://bucket/x", tmp_path, HASTY))

"""Are buckets of S3 and Google read as folders?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import fsspec
import pytest
import torch

from data_shards.folder import Remote
from data_shards.manifest import Manifest
from data_shards.resident import read_part
from data_shards.tars import check
from fedcore.errors import ShardError
from tests.unit.data_shards.prepare_test import toy
from tests.unit.data_shards.remote.toys import (
    FILE,
    HASTY,
    assert_same_tokens,
    first,
)
from tests.web import Handler, Web, says, serving

pytestmark = pytest.mark.broad


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch) -> Iterator[str]:
    """A local server that speaks S3, with an empty bucket."""
    boto3 = pytest.importorskip("boto3")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    boto3.client("s3").create_bucket(Bucket="shards")
    yield "shards"
    server.stop()


def upload(bucket: str, folder: Path) -> None:
    import boto3

    for file in folder.rglob("*"):
        if file.is_file():
            key = str(file.relative_to(folder.parent))
            boto3.client("s3").upload_file(str(file), bucket, key)


def test_a_bucket_is_read_as_a_folder(bucket: str, tokens: Path, tmp_path: Path) -> None:
    import boto3

    local = toy(tmp_path / "toy")
    upload(bucket, local)
    upload(bucket, tokens)
    place = Remote(f"s3://{bucket}/toy", tmp_path / "cache", HASTY)
    manifest = Manifest.load(place)
    part = manifest.clients[0]
    here, there = (read_part(f, manifest, part) for f in (local, place))
    assert torch.equal(here.images, there.images)
    assert_same_tokens(tokens, Remote(f"s3://{bucket}/{tokens.name}", tmp_path / "cache", HASTY))
    with pytest.raises(ShardError, match=r"404 .no such file"):
        Manifest.load(Remote(f"s3://{bucket}/nothing", tmp_path / "cache", HASTY))
    with pytest.raises(ShardError, match=r"404 .no such file"):
        Manifest.load(Remote("s3://no-such-bucket/toy", tmp_path / "cache", HASTY))
    test = manifest.test.shards[0]
    boto3.client("s3").put_object(Bucket=bucket, Key=f"toy/{test.file}", Body=b"short")
    if test.sha256 != part.shards[0].sha256:
        with pytest.raises(ShardError, match="the server has 5 bytes, want"):
            check(place, test)


def test_a_bucket_of_a_server_that_fails(tmp_path: Path, monkeypatch) -> None:
    """Our tries alone count: those of its library would multiply them."""
    pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with serving(tmp_path) as web:
        monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
        web.always = says(503)
        with pytest.raises(ShardError, match=r"503; 0 bytes came in 3 tries"):
            Manifest.load(Remote("s3://shards/toy", tmp_path / "cache", HASTY))


def gives_objects(handler: Handler, content: bytes) -> None:
    """What Google's storage answers, of the little that is asked of it."""
    asked = urlsplit(handler.path)
    file = handler.web.root / unquote(asked.path.rpartition("/o/")[2])
    if not file.is_file():
        return handler.answer(404, b'{"error": {"code": 404, "message": "none"}}')
    if "alt=media" in asked.query:
        a, b = handler.headers["Range"].removeprefix("bytes=").split("-")
        return handler.answer(206, file.read_bytes()[int(a) : int(b) + 1])
    about = {"name": file.name, "bucket": "shards", "size": str(file.stat().st_size)}
    return handler.answer(200, json.dumps(about).encode(), {"Content-Type": "application/json"})


def test_a_bucket_of_google_is_read_as_a_folder(web: Web, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("gcsfs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", web.url)
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    web.always = gives_objects
    place = Remote("gs://shards/toy", tmp_path / "cache", HASTY)
    manifest = Manifest.load(place)
    assert manifest == Manifest.load(web.root / "toy")
    assert check(place, first(place)).read_bytes() == (web.root / FILE).read_bytes()
    with pytest.raises(ShardError, match=r"404 .no such file"):
        Manifest.load(Remote("gs://shards/none", tmp_path / "cache", HASTY))

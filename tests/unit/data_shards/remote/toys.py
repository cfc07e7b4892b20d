"""What the tests of remote folders share."""

from __future__ import annotations

from pathlib import Path

import torch
from typer.testing import CliRunner

from data_shards import folder as folders
from data_shards.fetch import Patience
from data_shards.folder import Remote
from data_shards.manifest import Manifest, Shard
from data_shards.text.manifest import TokenManifest
from data_shards.text.read import TokenStream
from fedcore.config import RunConfig
from launcher import cli
from tests.web import Web

call = CliRunner().invoke


HASTY = Patience(tries=3, wait=0.01, connect=2.0, read=0.3)


FILE = "toy/client_00000/00000.tar"


def remote(web: Web, tmp_path: Path, name: str = "toy") -> Remote:
    return Remote(f"{web.url}/{name}", tmp_path / "cache", HASTY)


def first(place: Remote) -> Shard:
    return Manifest.load(place).clients[0].shards[0]


def kept(tmp_path: Path) -> list[str]:
    """Files in the cache, without locks."""
    files = [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name != ".lock"]
    return sorted(p.name for p in files)


def chosen(tmp_path: Path, **data: object) -> RunConfig:
    data = {"source": "digits", "cache": str(tmp_path / "cache"), **data}
    return RunConfig.of({"clients": {"count": 3}, "data": data})


def words_of(text: Path, *more: str) -> RunConfig:
    return cli.load_config("lm_small", [f"lm.data.text={text}", *more])


def assert_same_tokens(here: Path, there: folders.Folder) -> None:
    streams = [
        TokenStream(f, TokenManifest.load(f), context=32, order="shuffled", seed=3)
        for f in (here, there)
    ]
    mine, theirs = (stream.batch(5, 4, range(4)) for stream in streams)
    assert torch.equal(mine, theirs)
    assert torch.equal(streams[0].held_out(), streams[1].held_out())

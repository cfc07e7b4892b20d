"""Are shards behind a URL read as those of a folder?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from data_shards import folder as folders
from data_shards.manifest import Manifest
from data_shards.resident import read_part
from data_shards.tars import problems
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError
from launcher import cli, prepare, prepare_text
from launcher.commands import app
from launcher.doctor import shards as doctor
from tests.damage import flip
from tests.unit.data_shards.remote.toys import (
    FILE,
    assert_same_tokens,
    call,
    chosen,
    remote,
    words_of,
)
from tests.unit.data_shards.toy_store import sharded
from tests.web import Web, serving

pytestmark = pytest.mark.broad


def test_samples_are_those_of_the_folder(web: Web, tmp_path: Path) -> None:
    place, local = remote(web, tmp_path), tmp_path / "www" / "toy"
    manifest = Manifest.load(place)
    assert manifest == Manifest.load(local)
    for part in (*manifest.clients, manifest.test):
        here, there = (read_part(f, manifest, part) for f in (local, place))
        assert torch.equal(here.images, there.images)
        assert torch.equal(here.labels, there.labels)


def test_only_what_is_read_is_asked_for_and_once(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    for _ in range(3):
        read_part(place, Manifest.load(place), Manifest.load(place).clients[0])
    assert web.files() == ["toy/manifest.json", FILE]


def test_a_rank_asks_for_its_own_clients_alone(tmp_path: Path) -> None:
    made = prepare.make(chosen(tmp_path, store=str(tmp_path / "www")))
    with serving(tmp_path / "www") as web:
        place = remote(web, tmp_path, made.name)
        sharded(place, [1])
        names = [f"{made.name}/{file}" for file in ("manifest.json", "client_00001/00000.tar")]
        assert web.files() == names


def test_problems_are_in_the_manifests_order(web: Web, tmp_path: Path) -> None:
    place, told = remote(web, tmp_path), []
    manifest = Manifest.load(place)
    assert not problems(place, manifest, told.append)
    assert sorted(told) == sorted(shard.file for shard in manifest.shards)
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            file.unlink()
    for shard in manifest.shards:
        (web.root / "toy" / shard.file).unlink()
    found = [problem.shard for problem in problems(place, manifest)]
    assert found == [f"{web.url}/toy/{shard.file}" for shard in manifest.shards]


def test_verify_and_show_take_a_url(web: Web, tmp_path: Path) -> None:
    words = [f"{web.url}/toy/", "--set", f"data.cache={tmp_path / 'cache'}"]
    shown = call(app, ["shards", "show", *words])
    assert shown.exit_code == 0, shown.output
    assert "test" in shown.output
    verified = call(app, ["shards", "verify", *words])
    assert verified.exit_code == 0, verified.output
    assert "all as written" in verified.output
    flip(web.root / FILE)
    flip(web.root / "toy/test/00000.tar")  # the same bytes: one copy would do for both
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            file.unlink()
    bad = call(app, ["shards", "verify", *words])
    assert bad.exit_code == 3
    assert f"{web.url}/{FILE}: damaged" in bad.output


def test_a_remote_store_is_read_and_never_written(tmp_path: Path) -> None:
    made = prepare.make(chosen(tmp_path, store=str(tmp_path / "www")))
    with serving(tmp_path / "www") as web:
        config = chosen(tmp_path, store=web.url)
        folder = prepare.ensure(config)
        assert str(folder) == f"{web.url}/{made.name}"
        assert Manifest.load(folder) == Manifest.load(made)
        (check,) = doctor.of_run(config)
        assert check.ok, check.detail
        other = chosen(tmp_path, store=web.url, alpha=0.7)
        with pytest.raises(ShardError, match=r"`fedcore shards make .*`, then copying digits-dir"):
            prepare.make(other, repair=True)
        (check,) = doctor.of_run(other)
        assert check.bad
        assert "the server answers" in check.detail
    folders._words.cache_clear()
    (check,) = doctor.of_run(config)
    assert check.bad
    assert "2 tries" in check.detail


@pytest.mark.parametrize("is_remote", [False, True])
def test_given_shards_are_used_if_they_are_of_these_settings(
    tmp_path: Path, is_remote: bool
) -> None:
    raw = tmp_path / "arrays.npz"
    images, labels = np.zeros((30, 5, 6), dtype=np.uint8), np.arange(30) % 3
    np.savez(raw, x_train=images, y_train=labels, x_test=images, y_test=labels)
    own: dict[str, object] = {"source": "npz", "alpha": 0.7}
    made = prepare.make(chosen(tmp_path, store=str(tmp_path / "www"), root=str(raw), **own))
    raw.unlink()
    renamed = made.rename(tmp_path / "www" / "mine")
    with serving(tmp_path / "www") as web:
        place = f"{web.url}/mine" if is_remote else str(renamed)
        config = chosen(tmp_path, shards=place, **own)
        assert str(prepare.ensure(config)) == place
        assert str(prepare.make(config, repair=True)) == place
        assert prepare.shape_and_classes(config) == ((1, 5, 6), 3)
        for change, key in [
            ({"alpha": 0.5}, "data.alpha: got 0.5, want 0.7.*Try data.alpha=0.7"),
            ({"partition": "iid"}, "data.partition: got 'iid', want 'dirichlet'"),
            ({"seed": 9}, "data.seed"),
            ({"source": "digits"}, "data.source: got 'digits', want 'npz'"),
        ]:
            with pytest.raises(ConfigError, match=key):
                prepare.ensure(chosen(tmp_path, shards=place, **own | change))
        fewer = RunConfig.of({"clients": {"count": 2}, "data": {**own, "shards": place}})
        with pytest.raises(ConfigError, match=r"clients\.count: got 2, want 3"):
            prepare.ensure(fewer)
        if not is_remote:
            flip(renamed / "test/00000.tar")
            with pytest.raises(ShardError, match=r"test/00000\.tar: damaged"):
                prepare.make(config, repair=True)


def test_tokens_are_those_of_the_folder(tokens: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "www") as web:
        store = (f"data.store={web.url}", f"data.cache={tmp_path / 'cache'}")
        place = prepare_text.ensure(words_of(tmp_path / "text", *store))
        assert_same_tokens(tokens, place)
        assert sorted(web.files()) == sorted(set(web.files()))
        given = f"data.shards={web.url}/{tokens.name}"
        no_text = cli.load_config("lm_small", [given, store[1]])
        assert str(prepare_text.ensure(no_text)) == str(place)
        other = cli.load_config("lm_small", [given, "lm.data.held_out=0.5"])
        with pytest.raises(ConfigError, match=r"lm\.data\.held_out: got 0\.5, want "):
            prepare_text.ensure(other)

"""Are shards behind a URL read as those of a folder, whatever the network does?"""

from __future__ import annotations

import builtins
import json
import multiprocessing
import re
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

import fsspec
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from data_shards import folder as folders
from data_shards import transport
from data_shards.fetch import Patience
from data_shards.folder import Remote, folder_of
from data_shards.manifest import Manifest, Shard
from data_shards.read import ShardedData
from data_shards.resident import read_part
from data_shards.sources import Arrays
from data_shards.tars import check, problems
from data_shards.text.manifest import TokenManifest
from data_shards.text.read import TokenStream
from data_shards.write import Dealt, write
from fedcore.config import RunConfig
from fedcore.errors import ConfigError, FedError, ShardError, StorageError
from launcher import cli, prepare, prepare_text
from launcher.commands import app
from launcher.doctor import shards as doctor
from tests.unit.data_shards.prepare_test import SOURCE, flip, toy
from tests.web import Handler, Trick, Web, drops_after, fetch_at_once, says, sends, serving, stalls

call = CliRunner().invoke
HASTY = Patience(tries=3, wait=0.01, connect=2.0, read=0.3)
FILE = "toy/client_00000/00000.tar"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Manifests and connections are kept for a process; each test is one of its own."""
    yield
    folders._words.cache_clear()
    for kind in fsspec.available_protocols():
        if kind in fsspec.registry:
            fsspec.registry[kind].clear_instance_cache()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """A server of `toy/`."""
    toy(tmp_path / "www" / "toy")
    with serving(tmp_path / "www") as found:
        yield found


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Web]:
    """A server of `toy/` with 1.6 MB in a shard, so that what breaks off has come in part."""
    pixels = np.random.default_rng(1).integers(0, 256, (8, 1, 448, 448), dtype=np.uint8)
    images = Arrays(pixels, np.arange(8) % 3)
    write(tmp_path / "www" / "toy", "toy", SOURCE, images, images, [Dealt(np.arange(8))], {})
    with serving(tmp_path / "www") as found:
        yield found


def remote(web: Web, tmp_path: Path, name: str = "toy") -> Remote:
    return Remote(f"{web.url}/{name}", tmp_path / "cache", HASTY)


def first(place: Remote) -> Shard:
    return Manifest.load(place).clients[0].shards[0]


def kept(tmp_path: Path) -> list[str]:
    """Files in the cache, without locks."""
    files = [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name != ".lock"]
    return sorted(p.name for p in files)


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
        ShardedData(
            place,
            Manifest.load(place),
            [1],
            batch_size=5,
            views=2,
            seed=0,
            device=torch.device("cpu"),
            dtype=torch.float32,
            augment=False,
        )
        names = [f"{made.name}/{file}" for file in ("manifest.json", "client_00001/00000.tar")]
        assert web.files() == names


def test_what_was_read_needs_no_server(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    shard = first(place)
    path = check(place, shard)
    assert path.name == shard.sha256
    web.stop()
    assert check(place, shard) == path


def test_a_damaged_copy_is_fetched_again(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    shard = first(place)
    path = check(place, shard)
    for damage in (flip, lambda file: file.write_bytes(b"")):
        damage(path)
        assert check(place, shard) == path
        assert path.read_bytes() == (web.root / FILE).read_bytes()
    assert web.files().count(FILE) == 3


def test_a_changed_file_never_meets_its_old_copy(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    old = check(place, first(place))
    arrays = np.arange(12 * 16, dtype=np.uint8).reshape(12, 1, 4, 4)
    other = Arrays(arrays, np.arange(12) % 3)
    write(web.root / "toy", "toy", SOURCE, other, other, [Dealt(np.arange(12))], {})
    folders._words.cache_clear()  # another process
    assert check(place, first(place)) != old
    manifest = Manifest.load(place)
    images = read_part(place, manifest, manifest.clients[0]).images
    assert np.array_equal(images.numpy(), arrays)


@pytest.mark.parametrize(
    "tricks",
    [
        [drops_after(1_200_000)],
        [drops_after(1_000_000), drops_after(500_000)],
        [stalls(2.0)],
        [sends(lambda content: content[:1_000_000], -1)],  # no length is claimed
    ],
)
def test_what_broke_off_goes_on(large: Web, tmp_path: Path, tricks: list[Trick]) -> None:
    place = remote(large, tmp_path)
    large.tricks[FILE] = [*tricks]
    assert check(place, first(place)).read_bytes() == (large.root / FILE).read_bytes()
    whole, *parts = [part for path, part in large.asked if path == f"/{FILE}"]
    begun = [int(re.fullmatch(r"bytes=(\d+)-", part)[1]) for part in parts]  # type: ignore[index]
    assert whole == ""
    assert len(parts) == len(tricks)
    assert begun == sorted(begun)
    assert begun[0] > 0


def test_a_server_without_parts_sends_it_all_again(large: Web, tmp_path: Path) -> None:
    large.gives_parts = False
    large.tricks[FILE] = [drops_after(1_200_000)] * 2
    place = remote(large, tmp_path)
    assert check(place, first(place)).read_bytes() == (large.root / FILE).read_bytes()
    assert len(large.files()) == 1 + 3


def test_another_part_than_asked_for_is_not_put_in(large: Web, tmp_path: Path) -> None:
    def shifted(handler: Handler, content: bytes) -> None:
        span = {"Content-Range": f"bytes 7-{len(content) - 1}/{len(content)}"}
        handler.answer(206, content[7:], span)

    large.tricks[FILE] = [drops_after(1_200_000), shifted]
    place = remote(large, tmp_path)
    assert check(place, first(place)).read_bytes() == (large.root / FILE).read_bytes()


def test_a_part_that_is_not_there_begins_anew(large: Web, tmp_path: Path) -> None:
    large.tricks[FILE] = [drops_after(1_200_000), says(416)]
    place = remote(large, tmp_path)
    assert check(place, first(place)).read_bytes() == (large.root / FILE).read_bytes()
    assert large.asked[-1] == (f"/{FILE}", "")


@pytest.mark.parametrize(
    ("tricks", "times"),
    [
        ([says(503), says(503)], 3),
        ([says(429)], 2),
        ([says(500), drops_after(5)], 3),
        ([lambda handler, content: handler.hang_up()], 2),
    ],
)
def test_what_passes_is_tried_again(
    web: Web, tmp_path: Path, tricks: list[Trick], times: int
) -> None:
    place = remote(web, tmp_path)
    web.tricks[FILE] = [*tricks]
    assert check(place, first(place)).read_bytes() == (web.root / FILE).read_bytes()
    assert web.files().count(FILE) == times


def test_waits_grow_and_are_drawn(monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("data_shards.fetch.time.sleep", slept.append)
    for failed in (1, 2, 3, 4):
        Patience().pause(failed)
    for most, wait in zip((0.5, 1.0, 2.0, 4.0), slept, strict=True):
        assert most / 2 <= wait <= most


@pytest.mark.parametrize(
    ("trick", "words", "times"),
    [
        (says(404), "404 .no such file.*Try copying", 1),
        (says(403), "403 .not allowed.*Try credentials", 1),
        (says(401), "401.*Try credentials", 1),
        (says(503), r"503; 0 of [\d,]+ bytes came in 3 tries", 3),
        (drops_after(100), r"ended before the file; [\d,]+ of 30,720 bytes came in 3 tries", 3),
        (stalls(1.0), r"nothing for too long; [\d,]+ of [\d,]+ bytes came in 3 tries", 3),
        (sends(lambda c: c + b"x"), r"has [\d,]+ bytes, want [\d,]+", 1),
        (sends(lambda c: c + b"x", -1), "sends more than", 1),
        (sends(lambda c: c[:-1]), r"has [\d,]+ bytes, want", 1),
        (sends(lambda c: c[:-1], -1), r"before the file; [\d,]+ of", 3),
        (sends(lambda c: c[:-1] + b"x"), "damaged: sha256", 1),
        (says(302, Location="file:///etc/passwd"), "redirected to what is no web server", 1),
        (says(302, Location="gopher://x/"), "redirected to what is no web server", 1),
        (says(304), "304", 1),
    ],
)
def test_what_lasts_is_told(web: Web, tmp_path: Path, trick: Trick, words: str, times: int) -> None:
    place = remote(web, tmp_path)
    shard = first(place)
    web.tricks[FILE] = [trick] * 9
    with pytest.raises(ShardError, match=words) as caught:
        check(place, shard)
    assert caught.value.shard == f"{web.url}/{FILE}"
    assert web.files().count(FILE) == times
    assert not kept(tmp_path)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with serving(tmp_path) as web:
        place = remote(web, tmp_path)
    with pytest.raises(ShardError, match=r"in 3 tries.*Try again when the server answers"):
        Manifest.load(place)


def test_a_manifest_without_end_is_refused(web: Web, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(folders, "LARGEST", 100)
    with pytest.raises(ShardError, match="sends more than 100 bytes"):
        Manifest.load(remote(web, tmp_path))


def test_bytes_are_taken_as_they_are(web: Web, tmp_path: Path) -> None:
    """A small packed answer may unpack without end: nothing is unpacked."""
    place = remote(web, tmp_path)
    web.tricks[FILE] = [
        lambda handler, content: handler.answer(200, content, {"Content-Encoding": "gzip"})
    ]
    assert check(place, first(place)).read_bytes() == (web.root / FILE).read_bytes()
    assert {headers["Accept-Encoding"] for headers in web.headers} == {"identity"}


def test_two_processes_fetch_it_once(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    shard = first(place)

    def slowly(handler: Handler, content: bytes) -> None:
        threading.Event().wait(0.2)
        handler.send(content)

    web.tricks[FILE] = [slowly] * 4
    context = multiprocessing.get_context("spawn")  # a fork of threads in locks may never wake
    given = (place, shard, context.Barrier(2))
    others = [context.Process(target=fetch_at_once, args=given) for _ in range(2)]
    for process in others:
        process.start()
    for process in others:
        process.join(60)
    assert [process.exitcode for process in others] == [0] * 2
    assert web.files().count(FILE) == 1
    assert kept(tmp_path) == [shard.sha256]


def test_who_waited_for_one_that_failed_tries_once(web: Web, tmp_path: Path) -> None:
    """Else eight ranks would wait for a dead server one after the other."""
    place = remote(web, tmp_path)
    shard = first(place)
    web.tricks[FILE] = [stalls(1.0)] * 20
    with ThreadPoolExecutor(3) as pool:
        told = [pool.submit(check, place, shard) for _ in range(3)]
    tries = sorted(re.search(r"in (\d) tr", str(one.exception()))[1] for one in told)  # type: ignore[index]
    assert tries == ["1", "1", "3"]
    assert web.files().count(FILE) == 3 + 1 + 1


def test_what_a_dead_process_left_is_no_obstacle(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    shard = first(place)
    half = tmp_path / "cache" / shard.sha256[:2] / f".{shard.sha256}.part"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"x" * 99_999)
    assert check(place, shard).read_bytes() == (web.root / FILE).read_bytes()
    assert kept(tmp_path) == [shard.sha256]


def test_a_cache_that_cannot_be_written(web: Web, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    place = remote(web, tmp_path)
    with pytest.raises(StorageError, match=r"Not a directory.*data\.cache"):
        check(place, first(place))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 kB."""
    disk = tmp_path / "cache"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.root
def test_a_full_cache_is_told_and_left_empty(web: Web, tmp_path: Path, small_disk: Path) -> None:
    place = remote(web, tmp_path)
    with pytest.raises(StorageError, match=r"No space left.*data\.cache"):
        check(place, first(place))
    assert not kept(tmp_path)
    assert web.files().count(FILE) == 1  # the network is not to blame


@pytest.mark.root
def test_a_read_only_cache_serves_what_it_has(web: Web, tmp_path: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    place = remote(web, tmp_path)
    shard, other = first(place), Manifest.load(place).test.shards[0]
    check(place, shard)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert check(place, shard).is_file()
    different = other.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(StorageError, match=r"Read-only.*data\.cache"):
        check(place, different)


@pytest.mark.parametrize("sha256", ["../../../../etc/passwd", "", "A" * 64, "0" * 63 + "/"])
def test_a_hash_that_is_none_is_no_name_of_a_file(web: Web, tmp_path: Path, sha256: str) -> None:
    place = remote(web, tmp_path)
    shard = first(place).model_copy(update={"sha256": sha256})
    with pytest.raises(ShardError, match="its manifest says"):
        check(place, shard)
    assert web.files() == ["toy/manifest.json"]


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
    fsspec.registry._registry.pop(scheme, None) if hasattr(fsspec.registry, "_registry") else None
    for module in [m for m in __import__("sys").modules if m.split(".")[0] == package]:
        monkeypatch.delitem(__import__("sys").modules, module)
    with pytest.raises(ConfigError, match=re.escape(f"pip install 'fedcore[{scheme}]'")):
        Manifest.load(Remote(f"{scheme}://bucket/x", tmp_path, HASTY))


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


def chosen(tmp_path: Path, **data: object) -> RunConfig:
    data = {"source": "digits", "cache": str(tmp_path / "cache"), **data}
    return RunConfig.of({"clients": {"count": 3}, "data": data})


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


def words_of(text: Path, *more: str) -> RunConfig:
    return cli.load_config("lm_small", [f"lm.data.text={text}", *more])


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Token shards in `www/`."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(20):
        (text / f"{number}.txt").write_text(f"a document, number {number}. " * 40)
    made = prepare_text.make(words_of(text, f"data.store={tmp_path / 'www'}"))
    assert isinstance(made, Path)
    return made


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


def assert_same_tokens(here: Path, there: folders.Folder) -> None:
    streams = [
        TokenStream(f, TokenManifest.load(f), context=32, order="shuffled", seed=3)
        for f in (here, there)
    ]
    mine, theirs = (stream.batch(5, 4, range(4)) for stream in streams)
    assert torch.equal(mine, theirs)
    assert torch.equal(streams[0].held_out(), streams[1].held_out())


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


def test_the_manifest_is_never_on_the_disk(web: Web, tmp_path: Path) -> None:
    place = remote(web, tmp_path)
    record = json.loads(place.read("manifest.json"))
    check(place, first(place))
    assert kept(tmp_path) == [record["clients"][0]["shards"][0]["sha256"]]
    assert web.files().count("toy/manifest.json") == 1


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

"""Does a file come whole over connections that break, or is it told why not?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from data_shards import folder as folders
from data_shards.fetch import Patience
from data_shards.manifest import Manifest
from data_shards.tars import check
from fedcore.errors import ShardError
from tests.unit.data_shards.remote.toys import (
    FILE,
    first,
    kept,
    remote,
)
from tests.web import Handler, Trick, Web, drops_after, says, sends, serving, stalls

pytestmark = pytest.mark.broad


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

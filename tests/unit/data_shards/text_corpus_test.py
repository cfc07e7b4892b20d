"""Which documents does a corpus have, in what order, and is what cannot be read told?"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_shards.text.corpus import BLOCK, END, Document, blocks, content, corpus, limited
from fedcore.errors import ShardError


def put(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return root


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_folder_is_its_text_files_by_name(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "b/two.md": "zwei \N{SNOWMAN}",
            "a.txt": b"\xef\xbb\xbfeins",  # with a byte-order mark
            "b/c/three.rst": "drei",
            "b/blank.txt": " \n",
            "b/picture.png": b"\x89PNG\0",
            ".git/config": "hidden",
            "many.txt": f"x{END}\n{END}y",
        },
    )
    found = corpus(tmp_path)
    assert found.documents == [
        Document("a.txt", ".", "eins"),
        Document("b/c/three.rst", "b", "drei"),
        Document("b/two.md", "b", "zwei \N{SNOWMAN}"),
        Document("many.txt:1", ".", "x"),
        Document("many.txt:2", ".", "y"),
    ]
    assert found.skipped == {"binary": 1}
    assert found.documents[2].bytes == 8


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", {"secret.txt": "secret"})
    inside = put(tmp_path / "inside", {"a.txt": "a", "b.txt": "b"})
    (inside / "file.txt").symlink_to(outside / "secret.txt")
    (inside / "folder").symlink_to(outside)
    found = corpus(inside)
    assert [d.name for d in found.documents] == ["a.txt", "b.txt"]
    assert found.skipped == {"link": 2}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "0 documents.*more files"),
        ({"one.txt": "one", "b": b"\0"}, "1 documents, 1 binary files skipped"),
        ({"one.txt": "one", "b/latin.txt": "gr\xfcn".encode("latin-1")}, "latin.txt: not UTF-8"),
    ],
)
def test_a_folder_that_will_not_do(tmp_path: Path, files: dict, words: str) -> None:
    with pytest.raises(ShardError, match=words):
        corpus(put(tmp_path, files))


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch) -> None:
    put(tmp_path, {"a.txt": "a", "b.txt": "b", "closed/c.txt": "c"})
    listed = os.scandir

    def scandir(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(ShardError, match="closed: Permission denied"):
        corpus(tmp_path)


def test_nothing_there_is_told(tmp_path: Path) -> None:
    for look in (corpus, content):
        with pytest.raises(ShardError, match="no such file or folder"):
            look(tmp_path / "nowhere")


def test_json_lines_stand_in_their_order(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "x.jsonl", {"text": "b\u2028c", "name": "n", "group": "g"}, {"text": "a"}
    )
    path.write_text(path.read_text() + "\n" + json.dumps({"text": " "}))
    found = corpus(path).documents
    assert found == [Document("n", "g", "b\u2028c"), Document("line 2", ".", "a")]


def test_a_score_is_the_order(tmp_path: Path) -> None:
    scored = [("late", 2), ("first", -0.5), ("second", 1.0), ("third", 1)]
    path = lines(tmp_path / "x.jsonl", *[{"text": t, "score": s} for t, s in scored])
    texts = [d.text for d in corpus(path).documents]
    assert texts == ["first", "second", "third", "late"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"x.jsonl: line 2: no JSON"),
        ('["text"]', r"line 2: no object with a string"),
        ('{"text": 3}', r"line 2: no object with a string"),
        ('{"text": "a", "score": "high"}', r"line 2: score 'high' is no number"),
        ('{"text": "a", "score": true}', r"line 2: score True is no number"),
        ('{"text": "a", "score": NaN}', r"line 2: score is NaN"),
        ('{"text": "a"}\n{"text": "c", "score": 1}', r"1 of 3 lines have a score"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ShardError, match=words):
        corpus(path)


def test_half_a_character_in_json_can_be_encoded(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a\\ud800b"}\n{"text": "c"}\n')
    assert corpus(path).documents[0].text == "a?b"


def test_one_text_file_is_cut_at_ends_or_blank_lines(tmp_path: Path) -> None:
    put(tmp_path, {"ends.txt": f"a\n\nb{END}c", "blank.txt": ("x" * BLOCK + "\n\n") * 3 + "tail"})
    assert [d.text for d in corpus(tmp_path / "ends.txt").documents] == ["a\n\nb", "c"]
    found = corpus(tmp_path / "blank.txt").documents
    assert [d.name for d in found] == ["blank:1", "blank:2", "blank:3", "blank:4"]
    with pytest.raises(ShardError, match=r"1 documents.*blank lines between"):
        corpus(put(tmp_path, {"short.txt": "a\n\nb"}) / "short.txt")


@given(st.lists(st.sampled_from(["a", "\n", " ", "\r", "b" * 3000]), max_size=40).map("".join))
def test_cutting_loses_nothing(text: str) -> None:
    pieces = blocks(text)
    assert "".join(pieces) == text
    assert all(len(piece) >= BLOCK for piece in pieces[:-1])


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 300), st.integers(0, 9)
)
def test_a_limit_chooses_whole_documents_in_order(sizes: list[int], limit: int, seed: int) -> None:
    documents = [Document(f"{i:02d}", ".", "é" * size) for i, size in enumerate(sizes)]
    chosen = limited(documents, limit, seed)
    room = limit - sum(d.bytes for d in chosen)
    assert chosen == limited(documents, limit, seed)
    assert chosen == sorted(chosen)
    assert room >= 0
    assert all(d.bytes > room for d in documents if d not in chosen)  # nothing more fits


def test_another_seed_is_another_choice() -> None:
    documents = [Document(str(i), ".", "x") for i in range(100)]
    assert limited(documents, 50, 0) != limited(documents, 50, 1)


def test_the_bundled_text_is_the_standard_library() -> None:
    found = corpus(None).documents
    names = {d.name for d in found}
    assert {"argparse.py", "json/decoder.py", "pydoc_data/topics.py:assert"} <= names
    assert not [n for n in names if {"test", "tests", "site-packages"} & set(n.split("/"))]
    assert [d.name for d in found] == sorted(names)
    assert sum(d.bytes for d in found) > 5e6
    few = corpus(None, limit=300_000)
    assert 200_000 < sum(d.bytes for d in few.documents) <= 300_000


def test_the_content_is_names_and_bytes(tmp_path: Path) -> None:
    first = content(put(tmp_path / "a", {"x/y.txt": "one", "z.txt": "two"}))
    assert content(put(tmp_path / "moved", {"x/y.txt": "one", "z.txt": "two"})) == first
    assert content(put(tmp_path / "b", {"x/y.txt": "one", "z.txt": "twp"})) != first
    assert content(put(tmp_path / "c", {"x/q.txt": "one", "z.txt": "two"})) != first
    assert content(put(tmp_path, {"f.txt": "one"}) / "f.txt") != content(
        put(tmp_path, {"f.jsonl": "one"}) / "f.jsonl"
    )

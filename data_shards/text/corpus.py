"""Documents: the Python standard library's own text, or a user's folder, text file or JSON lines.

The order is that of the corpus (sorted by name; JSON lines as they stand, or by `score` ascending):
`lm.data.order: ordered` trains in it. While shards are made, the chosen text is held in memory.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_shards.content import content_of
from data_shards.text.stdlib import stdlib
from fedcore.errors import ShardError
from fedcore.files import parse_json
from fedcore.seeds import EVERYONE, seed

END = "<|endoftext|>"  # in a text file it stands between documents
KEY = "lm.data.text"


class Document(NamedTuple):
    """One piece of text; the whole of it is trained on, or held out, by one client."""

    name: str
    group: str  # the folder right below the corpus' root, "." for none
    text: str

    @property
    def bytes(self) -> int:
        """Length of the text in UTF-8, in bytes."""
        return len(self.text.encode())


class Corpus(NamedTuple):
    """All documents, and what was left out."""

    source: str
    documents: list[Document]
    skipped: dict[str, int]  # reason -> files, e.g. {"binary": 3}


def corpus(text: Path | None, limit: int | None = None, data_seed: int = 0) -> Corpus:
    """The documents of `text` (null = bundled), at most `limit` bytes of them, chosen by seed.

    Raises `ShardError`, naming the file, for what cannot be read or has fewer than two documents.
    """
    skipped: Counter[str] = Counter()
    if text is None:
        found, source = [Document(*parts) for parts in stdlib()], "python"
    elif text.is_dir():
        found, source = list(_of_folder(text, skipped)), "folder"
    else:
        found, source = _of_file(text), "file"
    if limit is not None:
        found = limited(found, limit, data_seed)
    if len(found) < 2:
        raise _too_few(text, len(found), skipped, limit)
    return Corpus(source, found, dict(sorted(skipped.items())))


def _too_few(text: Path | None, found: int, skipped: Counter[str], limit: int | None) -> ShardError:
    left_out = "".join(f", {n} {reason} files skipped" for reason, n in sorted(skipped.items()))
    problem = f"{found} documents{left_out}, and at least one is held out of at least two"
    way_out = f"more files, a .jsonl file, or {END} or blank lines between documents"
    if limit is not None:
        way_out = f"lm.data.limit above {limit}, or {way_out}"
    return ShardError(str(text or "the standard library"), problem, way_out)


def limited(documents: Sequence[Document], limit: int, data_seed: int) -> list[Document]:
    """A random choice of documents in their order: each drawn one that still fits into `limit`."""
    draws = np.random.default_rng(seed(data_seed, EVERYONE, 0, "corpus limit"))
    chosen, room = [], limit
    for i in draws.permutation(len(documents)).tolist():
        if documents[i].bytes <= room:
            chosen.append(i)
            room -= documents[i].bytes
    return [documents[i] for i in sorted(chosen)]


def files(root: Path, skipped: Counter[str] | None = None) -> Iterator[Path]:
    """Regular files below a folder, in no order; not hidden ones, and no links: they lead out."""
    for folder, below, names in os.walk(root, onerror=_refuse):
        here = Path(folder)
        links = [n for n in (*below, *names) if (here / n).is_symlink()]
        if skipped is not None and links:
            skipped["link"] += len(links)
        below[:] = [n for n in below if n not in links and n[0] != "." and n != "__pycache__"]
        for name in (n for n in names if n not in links and n[0] != "."):
            if (here / name).is_file():  # no pipe, no socket
                yield here / name


def _refuse(error: OSError) -> None:
    raise _unreadable(Path(error.filename), error) from None


def content(text: Path) -> str:
    """SHA-256 of a file, or of the names and bytes of all files that are read below a folder."""
    if not text.exists():
        raise ShardError(str(text), "no such file or folder", f"another {KEY}")
    found = sorted(files(text)) if text.is_dir() else [text]
    return content_of([(_name(file, text), file) for file in found])


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file != root else file.suffix


def _bytes(file: Path) -> bytes:
    if not file.is_file():
        raise ShardError(str(file), "no such file or folder", f"another {KEY}")
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(place: Path, error: OSError) -> ShardError:
    way_out = f"making it readable, or another {KEY}"
    return ShardError(str(place), error.strerror or str(error), way_out)


def _text(file: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 (byte {error.start})"
        raise ShardError(str(file), problem, "converting it to UTF-8, or moving it away") from None


def _of_folder(root: Path, skipped: Counter[str]) -> Iterator[Document]:
    """Every text file below `root`; a file with a zero byte is binary."""
    for file in sorted(files(root, skipped)):
        raw = _bytes(file)
        if b"\0" in raw:
            skipped["binary"] += 1
            continue
        name = _name(file, root).encode(errors="replace").decode()
        group = name.partition("/")[0] if "/" in name else "."
        yield from _named(name, group, _text(file, raw).split(END))


def _named(name: str, group: str, pieces: Iterable[str]) -> Iterator[Document]:
    """A document for each piece that is not blank: `name`, or `name:1`, `name:2`, ..."""
    written = [piece for piece in pieces if piece.strip()]
    for i, piece in enumerate(written, 1):
        yield Document(name if len(written) == 1 else f"{name}:{i}", group, piece)


def _of_file(file: Path) -> list[Document]:
    text = _text(file, _bytes(file))
    if file.suffix == ".jsonl":
        return _of_lines(file, text)
    pieces = text.split(END) if END in text else blocks(text)
    return list(_named(file.stem, ".", pieces))


BLOCK = 4_096  # characters


def blocks(text: str) -> list[str]:
    """The text cut at the first blank line after each 4,096 characters: nothing is lost."""
    pieces, start = [], 0
    for gap in re.finditer(r"\n[ \t\r]*\n\s*", text):
        if gap.end() - start >= BLOCK:
            pieces.append(text[start : gap.end()])
            start = gap.end()
    return [*pieces, text[start:]]


def _of_lines(file: Path, text: str) -> list[Document]:
    """A document for each line; by `score`, lowest first, when there are scores."""
    lines = enumerate(text.split("\n"), 1)  # not splitlines: JSON may hold U+2028
    found = [_of_line(file, number, line) for number, line in lines if line.strip()]
    scores = [score for _, score in found if score is not None]
    if scores and len(scores) < len(found):
        problem = f"{len(scores)} of {len(found)} lines have a score"
        raise ShardError(str(file), problem, "a score in each line, or in none")
    if scores:
        found.sort(key=lambda pair: pair[1] or 0.0)  # stable
    return [document for document, _ in found if document.text.strip()]


def _of_line(file: Path, number: int, line: str) -> tuple[Document, float | None]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise _bad(file, number, f"no JSON ({error})") from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise _bad(file, number, 'no object with a string "text"')
    score = record.get("score")
    if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
        raise _bad(file, number, f"score {score!r} is no number")
    if score is not None and score != score:
        raise _bad(file, number, "score is NaN")
    name, group = str(record.get("name", f"line {number}")), str(record.get("group", "."))
    plain = [part.encode(errors="replace").decode() for part in (name, group, record["text"])]
    return Document(*plain), score


def _bad(file: Path, number: int, problem: str) -> ShardError:
    way_out = 'a line {"text": "...", "name"?, "group"?, "score"?} for each document'
    return ShardError(str(file), f"line {number}: {problem}", way_out)

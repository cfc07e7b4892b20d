"""Do tokens turn back into the text they came from, and is the end of a document only that?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_shards.text.corpus import END
from data_shards.text.tokenizers import ByteTokenizer, LibraryTokenizer, load, tokenizer, train_bpe
from fedcore.config_lm import LMDataConfig
from fedcore.errors import ConfigError

TEXTS = ["the cat sat on the mat; the hat is that of the cat\n" * 5, "Grüße, \N{SNOWMAN} 日本\t"]
BPE = train_bpe(TEXTS, 285)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
EXAMPLES = st.one_of(UNICODE, st.sampled_from([END, f"a{END}b", "<|endoftext", "the cat sat"]))


@given(EXAMPLES)
@pytest.mark.parametrize("words", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])
def test_every_text_comes_back(words, text: str) -> None:
    (ids,) = words.encode([text])
    assert words.decode(ids.tolist()) == text
    assert words.end not in ids
    assert all(0 <= i < words.vocab_size for i in ids)


def test_bytes_are_their_numbers() -> None:
    words = ByteTokenizer()
    assert words.encode(["aß", ""])[0].tolist() == [97, 0xC3, 0x9F]
    assert words.vocab_size == 257
    every = words.decode(range(256))
    assert every.startswith("".join(map(chr, range(128))))
    assert set(every[128:]) == {"\N{REPLACEMENT CHARACTER}"}
    assert words.decode([97, words.end, 98]) == f"a{END}b"


def test_bpe_covers_every_byte_and_merges_what_is_frequent() -> None:
    assert BPE.vocab_size == 285
    assert len(set(BPE.encode(["".join(map(chr, range(256)))])[0].tolist())) > 128
    the_cat = BPE.encode([" the cat"])[0]
    assert len(the_cat) < len(" the cat") / 2
    assert BPE.decode([BPE.end]) == END


def test_bpe_is_saved_and_trained_reproducibly(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        train_bpe(TEXTS, 285).save(tmp_path / name)
    saved = tmp_path / "a" / "tokenizer.json"
    assert saved.read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()
    again = load(tmp_path / "a")
    assert (again.vocab_size, again.end) == (BPE.vocab_size, BPE.end)
    text = [*TEXTS, f"the {END} cat"]
    assert [x.tolist() for x in again.encode(text)] == [x.tolist() for x in BPE.encode(text)]
    assert load(saved).decode(range(5)) == BPE.decode(range(5))


def test_a_small_text_gives_a_small_vocabulary() -> None:
    assert train_bpe(["abab"], 5_000).vocab_size < 265
    with pytest.raises(ConfigError, match=r"lm.data.vocab_size: got 256"):
        train_bpe(TEXTS, 256)


def gpt2(folder: Path, extra: dict[str, int]) -> Path:
    """A vocabulary in GPT-2's two files: bytes of a...z and the space, and two merges."""
    letters = [*"abcdefghijklmnopqrstuvwxyz", "\u0120"]  # a space is written as \u0120
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {"he": 27, "\u0120he": 28}
    (folder / "vocab.json").write_text(json.dumps(vocabulary | extra))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\n\u0120 he\n")
    return folder


def test_a_vocabulary_of_gpt2s_kind_is_read(tmp_path: Path) -> None:
    words = load(gpt2(tmp_path, {END: 29}))
    assert (words.vocab_size, words.end) == (30, 29)
    assert words.encode(["he the he"])[0].tolist() == [27, 26, 19, 27, 28]
    assert words.decode([27, 28, 29]) == f"he he{END}"


def test_a_vocabulary_without_an_end_gets_one(tmp_path: Path) -> None:
    words = load(gpt2(tmp_path, {}))
    assert (words.vocab_size, words.end) == (30, 29)


def test_an_end_may_have_another_name_and_ids_may_have_gaps(tmp_path: Path) -> None:
    words = load(gpt2(tmp_path, {"</s>": 70_000}))
    assert (words.vocab_size, words.end) == (70_001, 70_000)


def test_a_configuration_names_its_tokenizer(tmp_path: Path) -> None:
    ByteTokenizer().save(tmp_path)
    of_file = LMDataConfig(tokenizer="file", vocabulary=tmp_path)
    assert isinstance(tokenizer(LMDataConfig(), []), ByteTokenizer)
    assert isinstance(tokenizer(of_file, []), ByteTokenizer)
    bpe = tokenizer(LMDataConfig(tokenizer="bpe", vocab_size=280), TEXTS)
    assert isinstance(bpe, LibraryTokenizer)
    assert bpe.vocab_size == 280


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (None, "no such file"),
        ({"vocab.json": "{}"}, "neither is in this folder"),
        ({"tokenizer.json": "{"}, "tokenizer.json"),
        ({"tokenizer.json": '{"kind": "other"}'}, "tokenizer.json"),
        ({"vocab.json": "[]", "merges.txt": ""}, "vocab.json"),
    ],
)
def test_what_is_no_vocabulary_is_told(tmp_path: Path, files, words: str) -> None:
    place = tmp_path / "words"
    if files is not None:
        place.mkdir()
        for name, text in files.items():
            (place / name).write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load(place)
    assert str(place) in str(caught.value)

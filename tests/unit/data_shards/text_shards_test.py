"""Are token shards what was written, is held-out text never trained on, and is damage named?"""

from __future__ import annotations

import json
import shlex
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from data_shards.tars import problems, read_tars
from data_shards.text.corpus import Corpus, Document
from data_shards.text.deal import by_document, by_folder, held_out
from data_shards.text.manifest import TokenManifest
from data_shards.text.read import TokenStream, read_tokens
from data_shards.text.tokenizers import load
from data_shards.text.write import write
from fedcore.config import RunConfig
from fedcore.config_lm import LMConfig
from fedcore.errors import ConfigError, ShardError
from launcher import cli, prepare_text
from launcher.commands import app
from tests.unit.data_shards.text_tokenizers_test import gpt2

call = CliRunner().invoke
DOCUMENTS = [Document(f"d{i}", "abc"[i % 3], f"document {i} " * (i + 1)) for i in range(20)]
CORPUS = Corpus("by hand", DOCUMENTS, {"binary": 2})
SETTINGS = {"seed": 0}


def make(folder: Path, **lm: object) -> TokenManifest:
    return write(folder, CORPUS, LMConfig.model_validate(lm), SETTINGS)


def texts(folder: Path, manifest: TokenManifest) -> dict[str, list[str]]:
    """The documents of each part, decoded."""
    words = load(folder)
    found = {}
    for name, part in manifest.parts.items():
        ids = read_tokens(folder, part, manifest.dtype).tolist()
        found[name] = words.decode(ids).split(words.decode([words.end]))[:-1]
    return found


@pytest.mark.parametrize(
    "data", [{}, {"tokenizer": "bpe", "vocab_size": 270}], ids=["bytes", "bpe"]
)
def test_each_document_comes_back_in_one_part(tmp_path: Path, data: dict) -> None:
    manifest = make(tmp_path / "s", data={"held_out": 0.2, **data})
    found = texts(tmp_path / "s", manifest)
    assert sorted(chain(*found.values())) == sorted(d.text for d in DOCUMENTS)
    assert len(found["held out"]) == manifest.held_out.documents == 4
    assert found["0"] == [d.text for d in DOCUMENTS if d.text in found["0"]]  # corpus order
    assert manifest.clients[0].bytes == sum(len(text) for text in found["0"])
    assert not problems(tmp_path / "s", manifest)
    assert TokenManifest.load(tmp_path / "s") == manifest


def test_names_and_groups_are_kept(tmp_path: Path) -> None:
    manifest = make(tmp_path / "s")
    for sample in read_tars(tmp_path / "s", manifest.held_out.shards):
        document = DOCUMENTS[int(sample["__key__"])]
        about = {"name": document.name, "group": document.group, "bytes": document.bytes}
        assert json.loads(sample["json"]) == about


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_same_text_gives_the_same_bytes(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        make(tmp_path / name, data={"tokenizer": kind, "vocab_size": 280}, federated={"clients": 2})
    files = [p for p in (tmp_path / "a").rglob("*.*") if p.is_file()]
    assert len(files) == 5
    for file in files:
        assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes()


def test_large_parts_are_cut_into_several_tars(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("data_shards.tar_writer.SHARD_BYTES", 700)
    manifest = make(tmp_path / "s")
    assert len(manifest.clients[0].shards) > 5
    found = texts(tmp_path / "s", manifest)
    assert found["0"] == [d.text for d in DOCUMENTS if d.text not in found["held out"]]


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path) -> None:
    words = gpt2(tmp_path, {"</s>": 70_000})
    corpus = Corpus("by hand", [Document("a", ".", "he the"), Document("b", ".", "the")], {})
    lm = LMConfig.model_validate({"data": {"tokenizer": "file", "vocabulary": words}})
    manifest = write(tmp_path / "s", corpus, lm, SETTINGS)
    assert manifest.dtype == "uint32"
    held = read_tokens(tmp_path / "s", manifest.held_out, "uint32").tolist()
    rest = read_tokens(tmp_path / "s", manifest.clients[0], "uint32").tolist()
    assert sorted([held, rest]) == [[19, 27, 70_000], [27, 26, 19, 27, 70_000]]


def test_a_vocabulary_is_not_trained_on_held_out_text(tmp_path: Path) -> None:
    documents = [Document("a", ".", "qzqz " * 50), Document("b", ".", "abab " * 50)]
    lm = LMConfig.model_validate({"data": {"tokenizer": "bpe", "vocab_size": 300}})
    manifest = write(tmp_path / "s", Corpus("by hand", documents, {}), lm, SETTINGS)
    assert manifest.held_out.tokens == 1 + manifest.held_out.bytes  # no pair of it was merged
    assert manifest.clients[0].tokens < manifest.clients[0].bytes / 2


@pytest.mark.parametrize("name", ["client_00001/00000.tar", "held_out/00000.tar", "tokenizer.json"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "missing"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "truncated"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"x"), "sha256"),
    ],
)
def test_damage_names_the_file_and_the_way_out(tmp_path: Path, name, damage, words) -> None:
    folder = tmp_path / "s"
    manifest = make(folder, federated={"clients": 2})
    damage(folder / name)
    with pytest.raises(ShardError, match=words) as caught:
        TokenStream(folder, manifest, 1, context=8, order="shuffled", seed=0)
    assert str(folder / name) in str(caught.value)
    assert "fedcore shards make" in str(caught.value)
    assert [p.shard for p in problems(folder, manifest)] == [str(folder / name)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["clients"].reverse(), "in order"),
        (lambda m: m["clients"][0].update(documents=3), "3 documents, but"),
        (lambda m: m["vocabulary"].update(end=257), "end 257 of 257"),
        (lambda m: m.update(dtype="uint32"), "257 tokens as uint32"),
        (lambda m: m["held_out"]["shards"][0].update(file="../00000.tar"), "held_out.shards"),
        (lambda m: m.update(format_version=2), "is of format 2"),
    ],
)
def test_a_manifest_that_contradicts_itself(tmp_path: Path, change, words: str) -> None:
    make(tmp_path / "s", federated={"clients": 2})
    path = tmp_path / "s" / "manifest.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ShardError, match=words):
        TokenManifest.load(path.parent)


def test_the_digest_is_of_the_data(tmp_path: Path) -> None:
    same = {make(tmp_path / name).digest() for name in ("a", "b")}
    assert len(same) == 1
    assert make(tmp_path / "c", data={"held_out": 0.5}).digest() not in same


@given(st.integers(2, 60), st.floats(0.001, 0.5), st.integers(0, 5))
def test_held_out_and_trained_documents_are_all_and_apart(n: int, share: float, seed: int) -> None:
    trained, held = held_out(n, share, seed)
    assert sorted(trained + held) == list(range(n))
    assert len(trained) >= 1
    assert abs(len(held) - share * n) <= 1


SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=30)


@given(SIZES, st.integers(1, 8), st.integers(0, 3))
def test_clients_share_all_documents_about_equally(sizes: list[int], n: int, seed: int) -> None:
    documents = [Document(str(i), ".", "x" * size) for i, size in enumerate(sizes)]
    if n > len(sizes):
        with pytest.raises(ConfigError, match=f"lm.federated.clients={len(sizes)}"):
            by_document(documents, range(len(sizes)), n, seed)
        return
    parts = by_document(documents, range(len(sizes)), n, seed)
    held = [sum(sizes[i] for i in part) for part in parts]
    assert sorted(chain(*parts)) == list(range(len(sizes)))
    assert all(parts)
    assert max(held) - min(held) <= max(sizes)


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=30), st.integers(1, 6))
def test_folders_stay_together(groups: list[str], n: int) -> None:
    documents = [Document(str(i), group, "x" * (i + 1)) for i, group in enumerate(groups)]
    if n > len(set(groups)):
        with pytest.raises(ConfigError, match="partition=documents"):
            by_folder(documents, range(len(groups)), n)
        return
    parts = by_folder(documents, range(len(groups)), n)
    held = [{groups[i] for i in part} for part in parts]
    assert sorted(chain(*parts)) == list(range(len(groups)))
    assert all(held)
    assert sum(map(len, held)) == len(set(groups))


def test_federated_shards_have_a_part_for_each_client(tmp_path: Path) -> None:
    manifest = make(tmp_path / "s", data={"partition": "folders"}, federated={"clients": 3})
    found = texts(tmp_path / "s", manifest)
    assert list(found) == ["0", "1", "2", "held out"]
    assert sorted(chain(*found.values())) == sorted(d.text for d in DOCUMENTS)
    group = {d.text: d.group for d in DOCUMENTS}
    assert sorted({group[t] for t in found[k]}.pop() for k in "012") == ["a", "b", "c"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's text, in a folder with a space in its name."""
    root = tmp_path / "my text"
    root.mkdir()
    for document in DOCUMENTS:
        (root / f"{document.name}.txt").write_text(document.text)
    (root / "picture").write_bytes(b"\0")
    return root


def config(tmp_path: Path, **data: object) -> RunConfig:
    store = str(tmp_path / "store")
    return RunConfig.of({"lm": {"data": data}, "data": {"store": store}})


def test_a_users_text_is_made_once_verified_and_shown(own: Path, tmp_path: Path) -> None:
    words = ["--text", str(own), "--set", f"data.store={tmp_path / 'store'}"]
    made = call(app, ["shards", "make", *words])
    assert made.exit_code == 0, made.output
    assert "skipped: 1 binary file" in made.stderr
    folder = Path(made.stdout.strip())
    before = (folder / "manifest.json").stat().st_ino
    assert call(app, ["shards", "make", *words]).stdout == made.stdout
    assert (folder / "manifest.json").stat().st_ino == before
    assert "all as written" in call(app, ["shards", "verify", str(folder)]).output
    shown = call(app, ["shards", "show", str(folder)]).output
    assert "held out" in shown
    assert f"{TokenManifest.load(folder).clients[0].tokens:,}" in shown
    (folder / "tokenizer.json").write_text("{}")
    assert call(app, ["shards", "verify", str(folder)]).exit_code == 3
    assert call(app, ["shards", "make", *words]).exit_code == 0
    assert call(app, ["shards", "verify", str(folder)]).exit_code == 0


def test_a_run_makes_shards_of_its_text_itself_and_again_when_it_changed(
    own: Path, tmp_path: Path
) -> None:
    chosen = config(tmp_path, text=str(own), limit=1_500)
    folder = prepare_text.ensure(chosen)
    manifest = TokenManifest.load(folder)
    assert sum(part.bytes for part in manifest.parts.values()) <= 1_500
    assert prepare_text.ensure(chosen) == folder
    prepare_text._content.cache_clear()  # as in another process
    (own / "d0.txt").write_text("Document 0 ")
    assert prepare_text.ensure(chosen) != folder


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("lm.data.seed=1", True),
        ("seed=1", False),  # the same text is held out whatever the seed of the run
        ("lm.data.limit=1000", True),
        ("lm.data.held_out=0.1", True),
        ("lm.data.tokenizer=bpe", True),
        ("lm.federated.clients=8", True),
        ("lm.data.order=ordered", False),
        ("lm.data.vocab_size=300", False),  # bytes have no use for it
        ("lm.data.partition=folders", False),  # nor one client for that
        ("lm.model.context=8", False),
    ],
)
def test_shards_are_named_by_what_they_depend_on(word: str, other: bool) -> None:
    usual = prepare_text.store_dir(cli.load_config("lm_small"))
    assert (prepare_text.store_dir(cli.load_config("lm_small", [word])) != usual) == other


def test_the_command_makes_what_the_run_wants(own: Path, tmp_path: Path) -> None:
    values = {
        "seed": 3,
        "data": {"store": str(tmp_path / "store")},
        "lm": {
            "data": {"text": str(own), "tokenizer": "bpe", "vocab_size": 262, "held_out": 0.25},
            "federated": {"clients": 2},
        },
    }
    chosen = RunConfig.of(values)
    made = call(app, shlex.split(prepare_text.command(chosen))[1:])
    assert made.exit_code == 0, made.output
    assert Path(made.stdout.strip()) == prepare_text.store_dir(chosen)
    found = prepare_text.make(chosen, lambda name: pytest.fail("made again"))
    assert len(TokenManifest.load(found).clients) == 2


def test_progress_is_told_as_often_as_promised(own: Path, tmp_path: Path) -> None:
    chosen = config(tmp_path, text=str(own))
    told: list[str] = []
    prepare_text.make(chosen, told.append)
    assert len(told) == prepare_text.steps(chosen)


def test_a_store_inside_the_text_is_refused(own: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.store.*outside"):
        prepare_text.ensure(config(own, text=str(own)))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--text", "/nowhere/at/all"], 3, "no such file or folder"),
        (["smoke", "--text", "/tmp"], 2, "Try lm_small"),
        (["lm_small", "--set", "lm.data.tokenizer=file"], 2, "vocabulary"),
    ],
)
def test_mistakes_are_told_in_a_line(words: list[str], code: int, said: str) -> None:
    result = call(app, ["shards", "make", *words])
    assert result.exit_code == code
    assert said in result.output


def test_bundled_text_needs_nothing(tmp_path: Path) -> None:
    folder = prepare_text.ensure(config(tmp_path, limit=300_000))
    manifest = TokenManifest.load(folder)
    assert manifest.source == "python"
    stream = TokenStream(folder, manifest, context=64, order="shuffled", seed=0)
    assert stream.batch(0, 4, range(4)).shape == (4, 65)

"""Does a stream give each token once an epoch, and the same rows to any rank after any resume?"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_shards.tar_writer import described, write_tar
from data_shards.text.manifest import TokenClient, TokenManifest, TokenPart, Vocabulary
from data_shards.text.read import TokenStream, get_batch
from data_shards.text.tokenizers import FILE, ByteTokenizer
from fedcore.batch import TokenData
from fedcore.errors import ShardError
from fedcore.seeds import generator

ORDERS = ["shuffled", "random", "ordered"]
VOCABULARY = 5_000


def numbered(folder: Path, *tokens: int, held_out: int = 50) -> TokenManifest:
    """Clients whose text is the tokens 0, 1, 2, ..., so that a token tells where it stands."""

    def part(name: str, count: int) -> TokenPart:
        (folder / name).mkdir()
        ids = np.arange(count, dtype="<u2").tobytes()
        shard = write_tar(folder, f"{name}/00000.tar", [{"__key__": "0", "u16": ids}])
        return TokenPart(documents=1, tokens=count, bytes=2 * count, shards=(shard,))

    ByteTokenizer().save(folder)
    parts = [part(f"client_{k:05d}", n) for k, n in enumerate(tokens)]
    return TokenManifest(
        source="numbers",
        skipped={},
        vocabulary=Vocabulary(
            kind="bytes", size=VOCABULARY, end=256, file=described(folder, FILE, 0)
        ),
        dtype="uint16",
        settings={},
        clients=tuple(TokenClient(client=k, **p.model_dump()) for k, p in enumerate(parts)),
        held_out=part("held_out", held_out),
    )


def stream(folder: Path, n: int, context: int = 8, order: str = "shuffled", seed: int = 0):
    manifest = numbered(folder, n)
    return TokenStream(folder, manifest, context=context, order=order, seed=seed)


def rows(data: TokenData, step: int, size: int) -> torch.Tensor:
    return data.batch(step, size, range(size))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 90), st.integers(0, 3), st.sampled_from(ORDERS[::2]))
def test_each_token_is_predicted_once_an_epoch(context, more, seed, order) -> None:
    """But for n mod T of them. The text is a ring: a window's tokens follow one another."""
    n = context + more
    with tempfile.TemporaryDirectory() as folder:
        data = stream(Path(folder), n, context, order, seed)
    for epoch in range(3):
        windows = rows(data, epoch, n // context)
        targets = windows[:, 1:].flatten().tolist()
        assert len(set(targets)) == len(targets) == n - n % context
        assert torch.equal((windows[:, :-1] + 1) % n, windows[:, 1:])


def test_what_is_left_out_of_an_epoch_moves(tmp_path: Path) -> None:
    data = stream(tmp_path, 63)  # 7 windows of 8, and 7 tokens left out
    epochs = [set(rows(data, epoch, 7)[:, 1:].flatten().tolist()) for epoch in range(20)]
    assert len(set.union(*epochs)) == 63
    starts = [rows(data, epoch, 7)[:, 0].tolist() for epoch in range(20)]
    assert len({start % 8 for each in starts for start in each}) == 8
    assert len({tuple(sorted(each)) for each in starts}) > 10


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(ORDERS),
    st.integers(1, 40),
    st.integers(0, 60),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_any_split_into_ranks_is_the_whole_batch(order, size, step, cuts) -> None:
    """Also where a batch is larger than an epoch of 9 windows, and after any resume."""
    with tempfile.TemporaryDirectory() as folder:
        data = stream(Path(folder), 77, order=order)
        resumed = stream(Path(tempfile.mkdtemp(dir=folder)), 77, order=order)
    for earlier in range(step):
        rows(data, earlier, size)
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    parts = [resumed.batch(step, size, range(a, b)) for a, b in pairwise(edges)]
    whole = rows(data, step, size)
    assert whole.dtype == torch.int64
    assert whole.shape == (size, 9)
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(data.batch(step, size, range(0, size, 3)), whole[::3])


def test_a_batch_goes_on_into_the_next_epoch(tmp_path: Path) -> None:
    data = stream(tmp_path, 77)  # 9 windows
    one_by_one = torch.cat([rows(data, step, 1) for step in range(18)])
    assert torch.equal(torch.cat([rows(data, step, 6) for step in range(3)]), one_by_one)


def test_ordered_text_stands_as_it_is_and_comes_again(tmp_path: Path) -> None:
    data = stream(tmp_path, 36, order="ordered")  # 4 windows of 8, the last 3 tokens left out
    starts = torch.cat([rows(data, step, 3) for step in range(3)])[:, 0]
    assert starts.tolist() == [0, 8, 16, 24, 0, 8, 16, 24, 0]


def test_random_is_get_batch(tmp_path: Path) -> None:
    data = stream(tmp_path, 77, order="random", seed=5)
    for step in (0, 3):
        x, y = get_batch(torch.arange(77), 6, 8, generator(5, 0, step, "windows"))
        assert torch.equal(rows(data, step, 6), torch.cat([x, y[:, -1:]], dim=1))


def test_get_batch_draws_every_window_alike() -> None:
    """Starts are uniform over 0 ... n - T - 1: chi squared of 20,000 draws in 10 bins."""
    x, y = get_batch(torch.arange(14), 20_000, 4, torch.Generator().manual_seed(0))
    assert torch.equal(x + 1, y)
    counts = torch.bincount(x[:, 0]).double()
    assert len(counts) == 10
    assert ((counts - 2_000) ** 2 / 2_000).sum() < 27.9  # 0.1% of fair draws are above it


def test_seeds_and_clients_have_orders_of_their_own(tmp_path: Path) -> None:
    manifest = numbered(tmp_path, 77, 77)
    for order in ("shuffled", "random"):
        drawn = [
            rows(TokenStream(tmp_path, manifest, k, context=8, order=order, seed=seed), 0, 9)
            for k, seed in [(0, 0), (1, 0), (0, 1)]
        ]
        assert not torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(("tokens", "windows"), [(9, 1), (16, 1), (17, 2), (50, 6)])
def test_held_out_text_is_predicted_once(tmp_path: Path, tokens: int, windows: int) -> None:
    manifest = numbered(tmp_path, 20, held_out=tokens)
    held = TokenStream(tmp_path, manifest, context=8, order="shuffled", seed=0).held_out()
    assert held.shape == (windows, 9)
    assert held[:, 1:].flatten().tolist() == list(range(1, 1 + 8 * windows))


def test_a_stream_knows_its_text(tmp_path: Path) -> None:
    data: TokenData = stream(tmp_path, 77)
    assert (data.vocab_size, data.tokens, data.bytes_per_token) == (VOCABULARY, 77, 2.0)


@pytest.mark.parametrize(("train", "held_out", "name"), [(8, 9, "client 0"), (9, 8, "held-out")])
def test_too_little_text_is_told(tmp_path: Path, train: int, held_out: int, name: str) -> None:
    manifest = numbered(tmp_path, train, held_out=held_out)
    with pytest.raises(ShardError, match=rf"{name}.* 8 tokens.*9.*lm\.model\.context"):
        TokenStream(tmp_path, manifest, context=8, order="shuffled", seed=0)

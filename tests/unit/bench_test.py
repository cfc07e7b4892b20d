"""Do the benches compare like with like, and does docs/numbers.md show what they wrote?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import bare, models, write_numbers
from bench.figures import Sheet, Spread, in_turns, ratio
from fedcore.algorithms import ALGORITHMS
from fedcore.models import ModelSpec
from fedcore.models.proto_head import build_model
from fedcore.objective.view import View
from fedcore.schedule import progress


def parts(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit features [R, D], prototypes and anchors [C, D], labels [R] with a class by itself."""
    draws = torch.Generator().manual_seed(seed)
    features = F.normalize(torch.randn(12, 8, generator=draws, dtype=torch.float64), dim=1)
    prototypes = torch.randn(5, 8, generator=draws, dtype=torch.float64)
    anchors = F.normalize(torch.randn(5, 8, generator=draws, dtype=torch.float64), dim=1)
    return features, prototypes, anchors, torch.tensor([0, 1, 1, 0, 0, 1, 0, 3, 1, 0, 1, 1])


def test_the_bare_losses_are_v14s() -> None:
    features, prototypes, anchors, labels = parts()
    ones, counts = torch.ones(12, dtype=torch.float64), torch.bincount(labels, minlength=5)
    logits = features @ prototypes.T
    view = View(
        features, logits, prototypes, anchors, torch.zeros(5, 8), labels, ones, counts, {}, {}
    )
    wanted = torch.stack([term(view) for term in ALGORITHMS.get("v14").terms])
    found = torch.stack(bare.v14_losses(features, prototypes, anchors, labels))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("log_var", [[2.0, 0.3], [5.0, -1.0]])  # the second is above lambda_max
def test_the_bare_sigma_loss_is_v14s(log_var: list[float]) -> None:
    base, align = torch.tensor([3.0, 0.4], dtype=torch.float64)
    numbers = torch.tensor(log_var, dtype=torch.float64, requires_grad=True)
    rule, at = ALGORITHMS.get("v14").rule, progress(3, 10, 0, 2, 1.0, like=base)
    ours = rule.weigh(base, align, numbers, at)
    plain = base + torch.exp(numbers[0] - numbers[1]).detach() * align
    plain = plain + bare.sigma_loss(base, align, numbers, float(rule.factor(at)))
    torch.testing.assert_close(plain, ours.loss, rtol=1e-12, atol=0)
    (found,), (wanted,) = (torch.autograd.grad(x, numbers) for x in (plain, ours.loss))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


def test_the_network_of_the_comparisons_has_as_many_parameters_as_the_others() -> None:
    assert sum(p.numel() for p in models.plain().parameters()) == 545_098
    ours = build_model("bench_cnn", ModelSpec(3, 32, 32, 10), 0)
    assert sum(p.numel() for p in ours.parameters()) == 545_098 - 10  # ten biases


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_bare_round_is_the_mean_of_clients_trained_alone(channels_last: bool) -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    loop = bare.FedAvg(images, labels, 2, 4, lr=0.1, channels_last=channels_last)
    start = nn.utils.parameters_to_vector(w.contiguous() for w in loop.weights)
    ends = []
    for rows in (slice(0, 4), slice(4, 8)):  # one batch each, so their order is no matter
        model = models.plain()
        nn.utils.vector_to_parameters(start.clone(), model.parameters())
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        ends.append(
            torch.cat([(p - 0.1 * p.grad).detach().flatten() for p in model.parameters()])  # type: ignore[operator]
        )
    loop.round()
    found = torch.cat([w.contiguous().flatten() for w in loop.weights])
    torch.testing.assert_close(found, (ends[0] + ends[1]) / 2, rtol=1e-4, atol=1e-6)
    assert not torch.equal(found, start)


def test_arms_take_turns_and_the_first_turn_does_not_count() -> None:
    said: list[str] = []

    def arm(name: str) -> float:
        said.append(name)
        return float(len(said))

    found = in_turns({"a": lambda: arm("a"), "b": lambda: arm("b")}, 2)
    assert found == {"a": [4, 5], "b": [3, 6]}
    assert said == ["a", "b", "b", "a", "a", "b"]
    assert ratio(found["a"], found["b"]) == Spread.of([4 / 3, 5 / 6])


def test_the_page_is_what_its_json_makes() -> None:
    """Else: PYTHONPATH=. python bench/write_numbers.py."""
    page = (write_numbers.DOCS / "numbers.md").read_text()
    assert len(write_numbers.names(page)) >= 9
    assert write_numbers.written(page, write_numbers.DOCS / "numbers") == page


def test_tables_are_taken_and_the_prose_stays(tmp_path: Path) -> None:
    text = "before\n<!-- bench: mine -->\nold\n<!-- end -->\nafter <!-- bench: -->\n"
    source, kept = tmp_path / "runs", tmp_path / "docs"
    source.mkdir()
    about = {"device": "cpu", "cores": 2, "machine": "x", "threads": 1, "load": [0.5]}
    sheet = Sheet("A title.", ["", "n"], [["one", "1"]])._asdict()
    found = about | {"torch": "2", "commit": "0123456789", "sheets": [sheet]}
    assert "Not yet measured" in write_numbers.written(text, kept)
    (source / "mine.json").write_text(json.dumps(found))
    (source / "unknown.json").write_text("{}")
    assert write_numbers.take(text, source, kept) == ["mine"]
    whole = write_numbers.written(text, kept)
    assert whole == write_numbers.written(whole, kept)
    assert whole.startswith(
        "before\n<!-- bench: mine -->\n\nA title.\n\n|  | n |\n|---|---|\n| one"
    )
    assert "load 0.5, torch 2, commit 01234567." in whole
    assert whole.endswith("<!-- end -->\nafter <!-- bench: -->\n")
    assert "old" not in whole


def test_figures_of_the_older_form_become_tables() -> None:
    spread = {"median": 1.5, "low": 1.0, "high": 2.0}
    loader = {"cores": 2, "write": {"ratio": spread, "rates": {"ours": spread, "tar": spread}}}
    rows = [row for sheet in write_numbers.sheets(loader) for row in sheet.rows]
    assert rows == [["write", "1.50 [1.00..2.00]", "ours 2, tar 2"]]
    case = {"case": "cnn", "width": 4, "ratio": {"wall": spread, "processor": spread}}
    case |= {"seconds": spread, "bare_seconds": spread}
    (table,) = write_numbers.sheets({"cases": [case]})
    assert table.rows[0][0] == "cnn, lanes of 4"
    assert table.rows[0][3] == "1.500 and 1.500"


def test_what_is_kept_says_nothing_of_where_it_was_measured() -> None:
    root = Path(write_numbers.__file__).parent.parent
    for file in (root / "docs" / "numbers").glob("*.json"):
        kept = json.loads(file.read_text())
        assert not [word for word in kept["command"] if word.startswith("/")], file
        assert "node" not in kept, file

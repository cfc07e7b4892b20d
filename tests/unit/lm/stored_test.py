"""Can a trained model be read back, continued, resumed and given away?"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedcore.checkpoint import Checkpoint, candidates
from fedcore.errors import LossDiverged, ShardError, Stopped
from launcher.commands import app
from launcher.lm_stored import load_stored
from tests.lm_toy import built, config_of
from tests.pausing import PauseWhen

pytestmark = pytest.mark.broad


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run that is over."""
    folder = tmp_path_factory.mktemp("trained")
    built(config_of(folder), folder)[0].run()
    return folder / "run"


def test_a_sample_is_the_same_for_the_same_seed(trained: Path) -> None:
    def sample(*words: str) -> str:
        done = CliRunner().invoke(app, ["lm", "sample", str(trained), "--prompt", "def ", *words])
        assert done.exit_code == 0, done.output
        return done.output

    first = sample("--tokens", "20")
    assert first.startswith("def ")
    assert len(first) > 5
    assert sample("--tokens", "20") == first != sample("--tokens", "20", "--seed", "1")
    checkpoint = str(trained / "checkpoints" / "step_00000012")
    assert CliRunner().invoke(app, ["lm", "sample", checkpoint, "--tokens", "3"]).exit_code == 0


def test_transformers_gives_the_same_logits(trained: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    done = CliRunner().invoke(app, ["lm", "export", str(trained), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    tokens = torch.randint(0, 257, (2, 16), generator=torch.Generator().manual_seed(0))
    ours = load_stored(trained).model(tokens)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(tokens).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
    text = "def naïve(x):\n\treturn '日本' # \x00\x7f"
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "out" / "tokenizer.json"))
    ids = theirs(text, add_special_tokens=False)["input_ids"]
    assert ids == list(text.encode()), "the ids that the model was trained on"
    assert theirs.decode(ids) == text
    assert theirs.convert_tokens_to_ids("<|endoftext|>") == 256


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_read(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step_00000012"
    file = newest / "model-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert load_stored(tmp_path / "run").step == 8
    with pytest.raises(ShardError, match=r"model-00000\.safetensors.*sha256"):
        load_stored(newest)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sample", "{empty}"], "run directory"),
        (["sample", "{moved}"], "tokenizer.json"),
        (["export", "{run}", "{empty}/out", "--format", "lama"], "Try llama"),
        (["export", "{run}", "{empty}/out", "--format", "gpt2"], "lm.model.norm"),
        (["sample", "{run}", "--temperature", "-1"], "temperature"),
    ],
)
def test_a_mistake_is_told(words: list[str], told: str, trained: Path, tmp_path: Path) -> None:
    moved = tmp_path / "a" / "b" / "c"
    shutil.copytree(trained / "checkpoints" / "step_00000012", moved)
    places = {"empty": tmp_path / "empty", "moved": moved, "run": trained}
    done = CliRunner().invoke(app, ["lm", *(w.format(**places) for w in words)])
    assert done.exit_code == 2
    assert told in done.output


@pytest.mark.parametrize("stop", [1, 5, 11])
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgdm", "rmsprop", "signsgdm"])
def test_a_resumed_run_equals_an_unbroken_one(optimizer: str, stop: int, tmp_path: Path) -> None:
    config = config_of(tmp_path, optimizer={"name": optimizer, "lr": 0.01})
    whole, said = built(config, tmp_path / "whole")
    whole.run()
    first, _ = built(config, tmp_path / "broken")
    first.ledger.pauses = PauseWhen(lambda: first.outcome.steps == stop)
    with pytest.raises(Stopped):
        first.run()
    second, told = built(config, tmp_path / "broken")
    second.resume(Checkpoint(candidates(tmp_path / "broken" / "run" / "checkpoints")[0]))
    second.run()
    assert told.losses == {k: v for k, v in said.losses.items() if k > stop}
    assert second.outcome.parameters_sha256 == whole.outcome.parameters_sha256
    assert second.outcome.tokens == whole.outcome.tokens


def test_a_loss_that_is_not_finite_names_its_step(tmp_path: Path) -> None:
    config = config_of(tmp_path, optimizer={"name": "sgdm", "lr": 1e30}, log_every=5)
    with pytest.raises(LossDiverged, match=r"diverged in step [234]: loss .*nan|inf"):
        built(config, tmp_path)[0].run()


def test_a_controller_holds_every_matrix_at_its_target(tmp_path: Path) -> None:
    """They start at 0.25 and 1; no decay at all would let them grow from there."""
    settings = {
        "steps": 400,
        "log_every": 10,
        "monitor": {"every": 10, "target_rms": 0.05},
        "schedule": {"name": "constant"},
        "optimizer": {"lr": 0.003},
    }
    run, kept = built(config_of(tmp_path, **settings), tmp_path)
    run.run()
    last = [e.layer_rms for e in kept.events if getattr(e, "layer_rms", None)][-1]
    held = {k: v for k, v in last.items() if not k.startswith(("ln", "layers.0.ln"))}
    assert len(held) == 9
    assert not kept.warnings, "nothing exploded, and the rates foretell nothing of a held lam"
    assert all(0.0375 < rms < 0.0625 for rms in held.values()), held

"""`fedcore lm params`, `sample` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.table import Table

from fedcore.config_lm import LMConfig
from fedcore.errors import ConfigError
from launcher import completion
from launcher.plain import Config, Overrides, plain

if TYPE_CHECKING:
    from fedcore.lm.model import TransformerLM


class Vocabulary(Protocol):
    """What sampling needs of a tokenizer."""

    vocab_size: int
    end: int  # the id that ends a document

    def encode(self, texts: Sequence[str]) -> Sequence[Any]:
        """The ids of each text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids."""


def parts_table(lm: LMConfig, vocab_size: int) -> Table:
    """Parameters by part, exactly, beside the usual estimate."""
    from fedcore.lm import count

    parts = count.parameters(lm.model, vocab_size)
    total, guess = sum(parts.values()), count.estimate(lm.model, vocab_size)
    table = Table("part", "parameters", "share", title=f"{vocab_size:,} ids", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for part, size in [*parts.items(), ("total", total)]:
        if size:
            table.add_row(part, f"{size:,}", f"{size / total:.1%}")
    table.add_row("N (4 d² + 2 d d_ff) + ends", f"{guess:,}", f"{guess / total - 1:+.1%}")
    return table


def costs_table(lm: LMConfig, vocab_size: int) -> Table:
    """Memory of training in float32, and the work in a token and in the run."""
    from fedcore.lm import count

    held = count.memory(lm.model, vocab_size, lm.optimizer)
    flops = count.flops_per_token(lm.model, vocab_size)
    tokens = lm.steps * lm.batch_size * lm.model.context
    table = Table(show_header=False, box=None)
    table.add_row("weights", f"{held.weights:,} bytes")
    table.add_row("gradients", f"{held.gradients:,} bytes")
    table.add_row(f"memory of {lm.optimizer.name}", f"{held.optimizer:,} bytes")
    table.add_row("a token's training", f"{flops:,} FLOP")
    table.add_row("the run", f"{tokens:,} tokens, {flops * tokens:.3g} FLOP")
    return table


@plain
def params(
    config: Config,
    overrides: Overrides = None,
    vocab: Annotated[
        int | None, typer.Option(min=1, help="Ids of the vocabulary; default: the configured one.")
    ] = None,
) -> None:
    """How many parameters a model has, by part, and what training it holds and computes.

    Examples:
    fedcore lm params lm_small
    fedcore lm params lm_small --set lm.model.width=768 --vocab 50257
    """
    from launcher.lm_commands import lm_config
    from launcher.prepare_text import ids_of

    section = lm_config(config, overrides or [])
    size = vocab or ids_of(section.data)
    console = Console()
    console.print(parts_table(section, size))
    console.print()
    console.print(costs_table(section, size))


def continued(
    model: TransformerLM,
    vocabulary: Vocabulary,
    prompt: str,
    tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
) -> str:
    """The prompt and `tokens` more tokens as text; an empty prompt begins a new document."""
    import torch

    from fedcore.lm.sample import generate

    if vocabulary.vocab_size > model.vocab_size:
        want = f"the {model.vocab_size} ids the model was trained on"
        raise ConfigError("tokenizer", vocabulary.vocab_size, want, "the run's own shards")
    ids = [int(i) for i in vocabulary.encode([prompt])[0]] or [vocabulary.end]
    device = model.token_embeddings.weight.device
    out = generate(
        model,
        torch.tensor([ids], device=device),
        tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        generator=torch.Generator().manual_seed(seed),
    )
    new: list[int] = out[0, len(ids) :].tolist()
    return vocabulary.decode([*ids, *new]) if prompt else vocabulary.decode(new)


Stored = Annotated[
    Path,
    typer.Argument(help="A checkpoint folder, or a run directory.", autocompletion=completion.runs),
]


@plain
def sample(
    checkpoint: Stored,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 = always the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Of the k likeliest only.")] = None,
    top_p: Annotated[float, typer.Option(help="Of the likeliest with this share only.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
) -> None:
    """Continue a prompt with a trained model.

    Examples:
    fedcore lm sample runs/lm_small-s0-0123abcd --prompt "def " --tokens 100
    """
    from launcher.lm_stored import load_stored, load_vocabulary

    stored = load_stored(checkpoint)
    text = continued(
        stored.model,
        load_vocabulary(stored),
        prompt,
        tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    typer.echo(text)


@plain
def export(
    checkpoint: Stored,
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="llama or gpt2 (for transformers), or safetensors.",
            autocompletion=completion.one_of("llama", "gpt2", "safetensors"),
        ),
    ] = "llama",
) -> None:
    """Write a trained model for other programs: config.json, model.safetensors, tokenizer.json.

    Examples:
    fedcore lm export runs/lm_small-s0-0123abcd exported --format llama
    """
    from data_shards.text.tokenizers import ByteTokenizer, byte_library
    from fedcore.lm.export import export_model, format_of
    from launcher.lm_stored import load_stored, load_vocabulary
    from launcher.rundir import storage

    stored = load_stored(checkpoint)
    file = export_model(stored.model, out, format_of(form))
    if stored.vocabulary.is_file():
        own = load_vocabulary(stored)
        with storage(out):
            (byte_library() if isinstance(own, ByteTokenizer) else own).save(out)
    typer.echo(file)

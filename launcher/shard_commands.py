"""`fedcore shards`: make, verify and show the shards of images and of text."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from fedcore.config import RunConfig
from fedcore.errors import ConfigError, ShardError
from launcher import cli, completion
from launcher.plain import Overrides, plain, with_examples

if TYPE_CHECKING:
    from data_shards.folder import Folder
    from data_shards.manifest import Manifest
    from data_shards.text.manifest import TokenManifest

shards = typer.Typer(
    help=with_examples(
        """Shards of data: make, verify, show.

        Examples:
        fedcore shards make default
        """
    ),
    no_args_is_help=True,
)

Place = Annotated[
    str,
    typer.Argument(
        help="A folder of shards, its URL, or the configuration that uses them.",
        autocompletion=completion.configs,
    ),
]
Config = Annotated[
    str | None,
    typer.Argument(
        help="A name in launcher/configs, or a YAML file.",
        show_default="default; with --text lm_small",
        autocompletion=completion.configs,
    ),
]
Text = Annotated[
    Path | None, typer.Option(help="Your text: a folder, a text file or JSON lines (.jsonl).")
]
Download = Annotated[
    bool, typer.Option("--download", help="First fetch the published files into data.root.")
]


def _sources() -> str:
    from data_shards.sources import SOURCES

    return "Sources (data.source): " + "; ".join(f"{name}: {s.about}" for name, s in SOURCES)


@shards.command(epilog=_sources())
@plain
def make(
    config: Config = None,
    overrides: Overrides = None,
    text: Text = None,
    download: Download = False,
) -> None:
    """Deal a dataset out to clients, or text as tokens, unless undamaged shards are there.

    Examples:
    fedcore shards make default --set data.alpha=0.5 --set clients.count=8
    fedcore shards make --text notes/ --set lm.data.tokenizer=bpe
    """
    chosen = _chosen(config, text, overrides or [])
    if download:
        _download(chosen)
    # a scheduler that ends this leaves nothing half-made either
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    typer.echo(_make_tokens(chosen) if chosen.lm else _make_images(chosen))


def _chosen(config: str | None, text: Path | None, overrides: Sequence[str]) -> RunConfig:
    if text is None:
        return cli.load_config(config or "default", overrides)
    name = config or "lm_small"
    if cli.load_config(name).lm is None:
        raise ConfigError("--text", name, "a configuration with an lm section", "lm_small")
    return cli.load_config(name, [f"lm.data.text={json.dumps(str(text))}", *overrides])


def _download(config: RunConfig) -> None:
    from data_shards.download import download

    if config.lm:
        raise ConfigError("--download", config.data.source, "a dataset of images", "--text FOLDER")
    download(config.data.source, config.data.root)


def _make_images(config: RunConfig) -> Folder:
    from launcher import prepare

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"shards of {config.data.source}", total=prepare.steps(config))
        return prepare.make(config, lambda name: bar.advance(task), repair=True)


def _make_tokens(config: RunConfig) -> Folder:
    from data_shards.text.manifest import TokenManifest
    from launcher import prepare_text

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("shards of text", total=prepare_text.steps(config))
        folder = prepare_text.make(config, lambda name: bar.advance(task), repair=True)
    for reason, files in TokenManifest.load(folder).skipped.items():
        typer.echo(f"skipped: {files} {reason} file{'s' * (files > 1)}", err=True)
    return folder


def _folder(place: str, overrides: list[str] | None) -> Folder:
    """The folder itself, or that of a configuration."""
    from data_shards.folder import folder_of
    from launcher import prepare, prepare_text

    if "://" in place:
        return folder_of(place, cli.load_config("default", overrides or []).data.cache)
    if Path(place).is_dir():
        return Path(place)
    if "/" in place and ":" not in place and not place.endswith((".yaml", ".yml")):
        raise ShardError(place, "no such folder", "a folder of shards, or a configuration")
    config = cli.load_config(place, overrides or [])
    if config.data.shards is not None:  # it must be what the configuration says
        return prepare_text.make(config) if config.lm else prepare.make(config)
    return prepare_text.store_dir(config) if config.lm else prepare.store_dir(config)


@shards.command()
@plain
def verify(place: Place = "default", overrides: Overrides = None) -> None:
    """Hash and read every shard again, and name each that a run would refuse (exit code 3).

    Examples:
    fedcore shards verify default
    """
    from data_shards.manifest import WAY_OUT
    from data_shards.text.manifest import load_any
    from data_shards.verify import problems

    folder = _folder(place, overrides)
    manifest = load_any(folder)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("hashing", total=len(manifest.shards))
        found = problems(folder, manifest, lambda name: bar.advance(task))
    for problem in found:
        typer.echo(f"{problem.shard}: {problem.problem}", err=True)
    files = len(manifest.shards)
    if found:
        raise ShardError(str(folder), f"{len(found)} of {files} shards are bad", WAY_OUT)
    typer.echo(f"{folder}: {files} shards, {_trained_on(manifest)}, all as written")


def _trained_on(manifest: Manifest | TokenManifest) -> str:
    if manifest.kind == "tokens":
        return f"{sum(part.tokens for part in manifest.clients):,} training tokens"
    return f"{sum(part.samples for part in manifest.clients)} training samples"


@shards.command()
@plain
def show(
    place: Place = "default",
    overrides: Overrides = None,
    clients: Annotated[int, typer.Option(min=0, help="Rows of clients; 0 = all.")] = 20,
    png: Annotated[
        Path | None, typer.Option(help="Draw it there: clients x classes, or the size of texts.")
    ] = None,
) -> None:
    """Which client holds how many samples of which class, or documents and tokens.

    Examples:
    fedcore shards show default --png clients.png
    """
    from data_shards.text.manifest import load_any
    from launcher.doctor.table import PIPE_WIDTH
    from launcher.shard_tables import remarks, table

    folder = _folder(place, overrides)
    manifest = load_any(folder)
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    typer.echo(f"{folder}: {manifest.source}")
    Console(width=width).print(table(manifest, clients))
    for line in remarks(manifest, clients):
        typer.echo(line)
    if png is not None:
        from launcher.shard_plot import plot

        typer.echo(f"drawn: {plot(manifest, png)}")

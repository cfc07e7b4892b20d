"""`fedcore lm ...`: what can be known of a language-model run without training it."""

from __future__ import annotations

import typer

from fedcore.config_lm import LMConfig
from fedcore.errors import ConfigError
from launcher import cli, lm_model_commands

lm = typer.Typer(help="Language models: what a configuration means.", no_args_is_help=True)
for command in (lm_model_commands.params, lm_model_commands.sample, lm_model_commands.export):
    lm.command()(command)


def lm_config(name: str, overrides: list[str]) -> LMConfig:
    """The `lm:` section of a configuration; `ConfigError` if it has none."""
    section = cli.load_config(name, overrides).lm
    if section is None:
        raise ConfigError(
            "lm", None, f"a language-model run; {name} is a federated one", "lm_small"
        )
    return section

"""Words to RunConfig: the arguments of launcher/main.py."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore import extensions
from fedcore.config import RunConfig
from fedcore.config_text import read_yaml, with_overrides
from fedcore.errors import ConfigError
from fedcore.files import LONGEST, plain_name
from fedcore.registry import nearest

CONFIGS = Path(__file__).parent / "configs"

EXAMPLES = """examples:
  torchrun --nproc_per_node=8 launcher/main.py
  torchrun --nproc_per_node=2 launcher/main.py --config smoke
  torchrun --nproc_per_node=8 launcher/main.py --set algorithm.name=v12_log data.alpha=0.05
  torchrun --nproc_per_node=8 launcher/main.py --config lm/cs336
  torchrun --nproc_per_node=8 launcher/main.py --config lm/cs336 --experiment post_norm
"""


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    config: RunConfig
    name: str  # of the configuration, for the run directory
    run_dir: Path
    resume: str  # auto, never or a directory
    print_config: bool = False
    dry_run: bool = False


def parser() -> argparse.ArgumentParser:
    """The parser of the command line of launcher/main.py."""
    parser = argparse.ArgumentParser(
        prog="launcher/main.py",
        description="Train a federation or a language model, or one after another what a list of "
        "experiments says; start one process per device with torchrun.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--config",
        default="default",
        action=_Once,
        help="a name in launcher/configs, or a YAML file",
    )
    add(
        "--set",
        dest="overrides",
        action="extend",
        nargs="+",
        default=[],
        metavar="a.b=value",
        help="override a key (repeatable); the value is YAML",
    )
    add("--run-dir", type=_named_path, help="default: runs/<config>-<algorithm>-s<seed>-<digest>")
    add(
        "--resume",
        default="auto",
        help="auto: go on if the run directory holds an unfinished run (default); "
        "never: start anew, an existing directory is set aside; "
        "DIR: start from the checkpoint or run in DIR",
    )
    add("--print-config", action="store_true", help="print the resolved configuration and end")
    add("--dry-run", action="store_true", help="build everything without data, and end")
    add("--experiment", metavar="NAME|NUMBER", help="of a list of experiments, only this one")
    add("--list", action="store_true", help="print the runs of a list of experiments, and end")
    return parser


class _Once(argparse.Action):
    """An option that stands for one thing: a second one would win in silence."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) != self.default:
            parser.error(f"{option_string} is given twice; settings of one's own go into --set")
        setattr(namespace, self.dest, values)


def _named_path(text: str) -> Path:
    """A path that was really given: an unset shell variable must not mean the working directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give a directory")
    if any(len(part.encode(errors="surrogateescape")) > LONGEST for part in Path(text).parts):
        raise argparse.ArgumentTypeError(f"has a name of more than {LONGEST} bytes")
    return Path(text)


def parse(argv: Sequence[str] | None = None) -> Request:
    """The request; raises `ConfigError`, or exits with 2 on unknown arguments."""
    return request(parser().parse_args(argv))


def request(given: argparse.Namespace) -> Request:
    """The request for one run; `ConfigError` for what only a list of experiments has."""
    config = load_config(given.config, given.overrides)
    for option, value in (("--experiment", given.experiment), ("--list", given.list)):
        if value:
            want = f"a configuration with `experiments`, and {given.config} is one run"
            raise ConfigError(option, value, want, "leaving it out")
    name = config_path(given.config).stem
    algorithm = f"-{plain_name(config.algorithm.name)}" if config.lm is None else ""
    label = f"{plain_name(name)}{algorithm}-{plain_name(f's{config.seed}')}-{config.digest()}"
    return Request(
        config,
        name,
        given.run_dir or Path("runs") / label,
        given.resume,
        given.print_config,
        given.dry_run,
    )


def load_config(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The shipped configuration of that name, or the YAML file at that path: that of one run."""
    values = read_values(name, overrides)
    if LISTED in values:
        want = f"the configuration of one run, and this one lists {LISTED}"
        raise ConfigError("--config", name, want, f"launcher/main.py --config {name}")
    return checked(values)


def checked(values: Mapping[str, Any]) -> RunConfig:
    """The configuration of plain values; names in its `extensions` are known from now on."""
    config = RunConfig.of(values)
    extensions.load(config.extensions)
    return config


LISTED = "experiments"
"""The key that makes a configuration a list of runs: launcher/experiments.py."""


def read_values(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What stands in a configuration of either kind, with the overrides put in."""
    return with_overrides(read_yaml(config_path(name)), overrides)


def is_list(name: str) -> bool:
    """Whether a configuration is a list of experiments."""
    return LISTED in read_values(name)


def config_path(name: str) -> Path:
    """Where the configuration lies; `ConfigError` with the nearest name if nowhere."""
    shipped = CONFIGS / f"{name}.yaml"
    if shipped.is_file():
        return shipped
    if Path(name).is_file():
        return Path(name)
    shipped_names = shipped_configs()
    near = nearest(name, shipped_names)
    way_out = near if near in shipped_names else "one of: " + ", ".join(_in_short(shipped_names))
    there = ", and this is a folder" if name and Path(name).is_dir() else ""
    want = f"a YAML file that is there, or a name in launcher/configs{there}"
    raise ConfigError("--config", name, want, way_out)


def _in_short(names: Sequence[str]) -> list[str]:
    """Those that lie in a folder as one."""
    return sorted({f"{n.partition('/')[0]}/..." if "/" in n else n for n in names})


def stem(name: str) -> str:
    """The name of a configuration without folders and `.yaml`; other dots belong to it."""
    return Path(name).name.removesuffix(".yaml").removesuffix(".yml")


def shipped_configs() -> list[str]:
    """Names of all configurations that come with fedcore."""
    files = sorted(CONFIGS.rglob("*.yaml"))
    return [str(f.relative_to(CONFIGS).with_suffix("")) for f in files]

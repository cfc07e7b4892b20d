"""Configuration as text: reading YAML and overrides, and telling what is wrong with them."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedcore.config_words import Key, keys_of
from fedcore.config_yaml import held, reason
from fedcore.errors import ConfigError, ConfigErrors, FedError
from fedcore.files import other_format, read_bytes
from fedcore.registry import nearest


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


class _OneOfEachKey(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error: the second would win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError("--config", "a key that is no word", "plain keys", "key: value")
            if key.value in seen:
                again = f"given twice, again in line {key.start_mark.line + 1}"
                raise ConfigError(str(key.value), again, "each key once", "removing one")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


MOST_NODES = 100_000  # values of a file, those that stand there as an alias counted again
# what the library raises of values such as 2020-99-99: whatever its helpers do
NO_VALUE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
MOST_TEXT = 4 * 2**20  # characters


def yaml_of(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """The value of a YAML text; `YAMLError` for all that is none, or that is too much.

    A few lines of aliases of aliases may mean a billion values: they are counted, not made.
    """
    if len(text) > MOST_TEXT:
        raise yaml.YAMLError(f"more than {MOST_TEXT:,} characters")
    reader = None
    try:
        reader = loader(text)
        node = reader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > MOST_NODES:
            raise yaml.YAMLError(f"more than {MOST_NODES:,} values")
        return reader.construct_document(node)
    except yaml.YAMLError:
        raise
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except NO_VALUE as error:
        raise yaml.YAMLError(f"a value that cannot be: {error}") from None
    finally:
        if reader is not None:
            reader.dispose()


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for; `YAMLError` for one that holds itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = 0  # while it is counted
        inner = node.value
        flat = [n for pair in inner for n in pair] if isinstance(node, yaml.MappingNode) else inner
        known[id(node)] = 1 + sum(_values(n, known) for n in flat)
    if not known[id(node)]:
        raise yaml.YAMLError("a value that holds itself")
    return known[id(node)]


FORMAT = 1  # of a configuration, and of the files of a run directory beside it


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; `ConfigError` if it cannot be read, is none, or of a format that
    is not ours."""
    try:
        values = yaml_of(read_bytes(path).decode(), _OneOfEachKey)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        want = f"a YAML file, and this is none: {reason(error)}"
        raise ConfigError("--config", str(path), want, "mending it there") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        want = f"keys and their values, and the file holds {held(values)}"
        raise ConfigError("--config", str(path), want, "lines of `key: value`")
    if values.get("format", FORMAT) != FORMAT:
        problem, reader = other_format(values["format"], [FORMAT])
        want = f"a configuration that can be read: it {problem}"
        raise ConfigError("--config", str(path), want, reader)
    return values


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`values` with each `a.b=value` (value in YAML) put in."""
    result: dict[str, Any] = copy.deepcopy(dict(values))
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not all(dotted.split(".")):
            raise ConfigError("--set", override, "key=value", "--set data.alpha=0.5")
        try:
            value = yaml_of(text)
        except yaml.YAMLError:
            raise ConfigError(dotted, text, "a YAML value", "quotes around it") from None
        put(result, dotted, value)
    return result


def put(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set the dotted key in nested mappings, which are made as needed."""
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = values.get(parent)
        values[parent] = values = inner if isinstance(inner, dict) else {}
    values[last] = value


def explain(error: ValidationError, model: type[BaseModel]) -> FedError:
    """A pydantic error as key, value and way out."""
    lines = [_explained(item, model) for item in error.errors()]
    if len(lines) == 1:
        return lines[0]
    # a file that is no configuration at all must not be copied into a log line by line
    more = [f"and {len(lines) - MISTAKES} more"] if len(lines) > MISTAKES else []
    return ConfigErrors("\n".join([*map(str, lines[:MISTAKES]), *more]))


MISTAKES = 6  # told at once


def _explained(item: ErrorDetails, model: type[BaseModel]) -> ConfigError:
    path = [str(part) for part in item["loc"]]
    name, got, said = ".".join(path) or "configuration", item["input"], item["msg"]
    key = keys_of(model).get(name)
    if item["type"] == "missing":
        got = None
    if item["type"] in ("extra_forbidden", "invalid_key"):
        return ConfigError(name, got, "a known key", nearest_key(name, model))
    if item["type"] == "value_error":  # a check of ours says it best
        got = got.model_dump(mode="json") if isinstance(got, BaseModel) else got
        got = got if path else list(got)
        return ConfigError(name, got, said.removeprefix("Value error, "))
    if key is not None:
        return ConfigError(name, got, key.values, _way_out(key, item))
    if name in known_keys(model):
        return ConfigError(name, got, "a section: keys and values", _named(name, got, model))
    # within a list or a mapping
    return ConfigError(name, got, _within(item), _choice(item))


def _way_out(key: Key, item: ErrorDetails) -> str:
    """The word that may have been meant, a list of what was given, or the default."""
    got = item["input"]
    if key.values.startswith("a list") and isinstance(got, str):
        return f"[{got}]"
    return _choice(item) or key.default


def _named(section: str, got: Any, model: type[BaseModel]) -> str:
    """The key of the section that a name may have been meant for, or its page."""
    known = [key for key in (f"{section}.name", f"{section}.source") if key in keys_of(model)]
    return f"{known[0]}={got}" if known and isinstance(got, str) else f"fedcore config {section}"


def _words(item: ErrorDetails) -> list[str]:
    """The words that are allowed there, if only some are."""
    if item["type"] != "literal_error":
        return []
    said: str = item["ctx"]["expected"]
    return said.replace("'", "").replace(" or ", ", ").split(", ")


def _choice(item: ErrorDetails) -> str:
    """The word that may have been meant, where only some are allowed."""
    # a strict cutoff: who asks for fp16 does not mean fp64
    close = difflib.get_close_matches(str(item["input"]), _words(item), n=1, cutoff=0.77)
    return close[0] if close else ""


def _within(item: ErrorDetails) -> str:
    """What is wanted, in the words that the keys themselves have."""
    said = KINDS.get(item["type"].partition("_")[0], item["msg"].removeprefix("Input should be "))
    return " or ".join(_words(item)) or said


KINDS = {
    "string": "a text",
    "float": "a number",
    "int": "a whole number",
    "dict": "a mapping",
    "tuple": "a list",
}


def nearest_key(dotted: str, model: type[BaseModel]) -> str:
    """The known dotted key most like this one: in the same section first, then anywhere."""
    known = list(known_keys(model))
    parent, _, last = dotted.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == parent}
    match = nearest(last, list(siblings))
    if match in siblings:
        return siblings[match]
    elsewhere = [k for k in known if k.rpartition(".")[2] == last]
    return elsewhere[0] if elsewhere else match


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """All dotted keys of a section and the sections in it."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        for part in [field.annotation, *getattr(field.annotation, "__args__", ())]:
            if isinstance(part, type) and issubclass(part, BaseModel):
                keys += known_keys(part, f"{prefix}{name}.")
    return keys

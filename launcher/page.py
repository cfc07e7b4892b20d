"""A web page that is one file: templates, and pictures inlined, so that it needs no network."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedcore.checkpoint import write_atomically
from launcher.rundir import storage

KINDS = {".svg": "image/svg+xml", ".png": "image/png"}


def environment() -> Environment:
    """The templates in launcher/templates; every value is escaped."""
    return Environment(
        loader=PackageLoader("launcher"),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(template: str, out: Path, way_out: str = "another --run-dir", **values: Any) -> Path:
    """Fill a template into `out`; `StorageError` with that way out if it cannot be written."""
    text = environment().get_template(template).render(**values)
    text = text.encode("utf-8", "replace").decode()  # names of files may be no text
    with storage(out.parent, way_out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text)
    return out


def inlined(draw: Callable[[Path], object], suffix: str = ".svg") -> Markup:
    """What `draw` draws into the file it is given, as a data URI for `src`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"picture{suffix}"
        draw(file)
        content = base64.b64encode(file.read_bytes()).decode()
    return Markup(f"data:{KINDS[suffix]};base64,{content}")

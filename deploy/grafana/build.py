"""Writes dashboards/*.json: `make dash`. They are what Grafana reads; change them here."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana import cluster, federation, lm

FOLDER = Path(__file__).parent / "dashboards"


def texts() -> dict[str, str]:
    """Content of each file by name, the same each time."""
    boards = {"federation": federation, "lm": lm, "cluster": cluster}
    return {
        f"{name}.json": json.dumps(
            module.dashboard(), cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False
        )
        + "\n"
        for name, module in boards.items()
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text)

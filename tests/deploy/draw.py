"""Pictures of the dashboards from real runs, without Grafana: `python -m tests.deploy.draw OUT`.

Plain drawings of what Grafana would show: layout, lines, scales, legends, limits. The numbers are
real: runs are started, a Prometheus scrapes them, and its answers are drawn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from tests.deploy import boards, plots, stack
from tests.deploy.boards import Moment, Panel
from tests.deploy.plots import Source
from tests.procs import runs

COLUMN, LINE = 0.72, 0.33  # inches of a step of Grafana's grid, across and down
SMALL = {"font.size": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}
SMALL |= {"grid.color": "#e4e4e4", "axes.titlesize": 8, "axes.titlelocation": "left"}


def picture(board: Mapping[str, Any], source: Source, opened: bool = False) -> Figure:
    """The whole dashboard; opened: with what is in folded rows."""
    found = boards.everything(board) if opened else board["panels"]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in found)
    with mpl.rc_context(SMALL):
        figure = plt.figure(figsize=(24 * COLUMN, height * LINE))
        for panel in found:
            _place(figure, panel, height, source)
    return figure


def _place(figure: Figure, panel: Panel, height: int, source: Source) -> None:
    at = panel["gridPos"]
    left, top = at["x"] / 24, 1 - at["y"] / height
    if panel["type"] == "row":
        figure.text(left + 0.004, top - 0.6 / height, panel["title"], weight="bold", size=10)
        return
    wide, high = at["w"] / 24, at["h"] / height
    margin = {"timeseries": 0.04, "bargauge": 0.07}.get(panel["type"], 0.006)
    below = 1.5 if panel["type"] == "timeseries" else 0.3
    room = (left + margin, top - high + below / height, wide - margin - 0.012, 0)
    room = (*room[:3], high - (below + 1.2) / height)
    axes = figure.add_axes(room)
    axes.set_title(panel["title"], x=-(margin - 0.004) / room[2], weight="bold")
    plots.KINDS[panel["type"]](axes, panel, source)


def save(figure: Figure, path: Path) -> None:
    """Write the picture in few colours: drawings need no more, and it is a third of the size."""
    figure.savefig(path, dpi=85)
    with Image.open(path) as drawn:
        drawn.convert("RGB").quantize(128).save(path, optimize=True)


# -- runs with something to see

FEDERATED = ("--config", "smoke", "--set", "rounds=50", "clients.count=8", "data.alpha=0.3")
FEDERATED += ("clients.lr_log_var=0.05", "evaluate.every=2", "clients.local_epochs=2")
DILOCO = ("--config", "lm/diloco", "--set", "lm.steps=600", "lm.federated.local_steps=20")
DILOCO += ("lm.federated.clients=4", "lm.model.layers=1", "lm.model.width=32", "lm.log_every=20")
DILOCO += ("lm.model.context=32", "lm.model.heads=2", "lm.data.limit=300_000")
SHOWN: dict[str, tuple[int, tuple[str, ...]]] = {
    "digits-v14": (4, (*FEDERATED, "algorithm.name=v14")),
    "digits-v12": (2, (*FEDERATED, "algorithm.name=v12")),
    "stdlib-adamw": (2, ("--config", "lm_smoke", "--set", "lm.steps=2000", "lm.monitor.every=10")),
    "stdlib-diloco": (2, DILOCO),
}
# of which run each is; what stands after _ tells pictures of one dashboard apart
PICTURES = {"federation": "digits-v14", "federation_v12": "digits-v12", "lm": "stdlib-adamw"}
PICTURES |= {"lm_diloco": "stdlib-diloco", "cluster": ".*"}
ALERT = {"alert": "LambdaExplosion", "expr": "max by (run) (fedcore_lambda_exploded) > 0"}
ALERT |= {"labels": {"severity": "critical"}}


def main(out: Path, seconds: float) -> None:
    """Start the runs, wait, and draw each dashboard."""
    out.mkdir(parents=True, exist_ok=True)
    rules = out / "rules.yml"
    rules.write_text(f"groups: [{{name: own, rules: [{ALERT}]}}]")
    start = time.time()
    with stack.running(out / "stack", [rules]) as servers:
        own = (f"metrics.targets={servers.targets}", "metrics.linger=5")
        begun = [runs.start(n, out / run, *words, *own) for run, (n, words) in SHOWN.items()]
        try:
            time.sleep(seconds)
            for name, run in PICTURES.items():
                values = {"run": run, "algorithm": ".*", "client": ".*"}
                now = Source(servers, values, Moment(start, time.time()))
                opened = name == "lm_diloco"
                figure = picture(boards.read(name.partition("_")[0]), now, opened)
                save(figure, out / f"dashboard_{name}.png")
        finally:
            for process in begun:
                process.terminate()
            for process in begun:
                print(runs.finish(process, limit=60)[-600:])


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else 60.0)

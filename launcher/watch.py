"""`fedcore watch`: pictures of a run on a terminal, its lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedcore.algorithms import resolve
from fedcore.config import RunConfig
from fedcore.errors import FedError
from fedcore.telemetry.console import ConsoleSink
from fedcore.telemetry.events import ClientEvent, Event, RoundEvent
from fedcore.telemetry.lm_console import LMConsole
from fedcore.telemetry.screen import console_for
from launcher.reporting import lm_info
from launcher.watch_federated import FederatedWatch
from launcher.watch_lm import LMWatch
from launcher.watch_parts import fitting, printable
from launcher.watch_run import ListFollower, RunFollower, Taker, follower

COLOURS = {"running": "cyan", "completed": "green", "diverged": "red", "failed": "red"}
ROWS = 7  # of a list, around the run that is on
SILENT = 120.0  # seconds without a line after which a log says so
TALL = 10_000  # lines of a picture that is not cut


def main(path: Path, stream: TextIO, every: float, once: bool) -> None:
    """Show until the run is over, or Ctrl-C. every: seconds between looks; once: a single picture.

    Raises `ConfigError` if there is no such directory.
    """
    if once:
        console = console_for(stream)
        followed = follower(path, picture_of)
        followed.update()
        console.print(picture(followed, console, TALL))
    elif stream.isatty():
        live(path, console_for(stream), every)
    else:
        lines(path, stream, every)


def live(path: Path, console: Console, every: float) -> None:
    """One picture, drawn anew; it stays when the run is over."""
    followed = follower(path, picture_of)
    screen = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    with contextlib.suppress(KeyboardInterrupt), screen:
        for _ in looks(followed, every):
            screen.update(picture(followed, console, console.height - 1), refresh=True)
    console.print(Text(end_of(followed)))


def lines(path: Path, stream: TextIO, every: float) -> None:
    """The run's own lines, as in a log."""
    followed = follower(path, lambda config, lm, name: Lines(config, lm, name, stream))
    waited = False
    with contextlib.suppress(KeyboardInterrupt):
        for _ in looks(followed, every):
            if not waited and isinstance(followed, RunFollower) and followed.taker is None:
                print(f"waiting for {followed.run.metrics}", file=stream, flush=True)
                waited = True
            run = followed.current if isinstance(followed, ListFollower) else followed
            if run and not run.is_over() and isinstance(run.taker, Lines):
                run.taker.tell_silence(time.time())
    print(end_of(followed), file=stream, flush=True)


def looks(followed: RunFollower | ListFollower, every: float) -> Iterator[None]:
    """Bring it up to date again and again, until the run is over."""
    while True:
        followed.update()
        yield
        if followed.is_over():
            return
        time.sleep(every)


class Lines:
    """Hands events to the sink that writes a run's log."""

    def __init__(self, config: RunConfig | None, lm: bool, name: str, stream: TextIO) -> None:
        print(f"{name}: {about(config)}" if config else name, file=stream, flush=True)
        self._config, self._stream = config, stream
        self._clients: list[Event] = []
        self._sink: ConsoleSink | LMConsole | None = None
        self._is_lm = lm
        self._last, self._told = time.time(), False  # of the last line; that none came for long

    def tell_silence(self, now: float) -> None:
        """Say once that nothing has come for long."""
        silence = now - self._last
        if silence > SILENT and not self._told:
            self._told = True
            words = f"no line for {silence:,.0f} s: it takes long, or was killed"
            print(words, file=self._stream, flush=True)

    def take(self, event: Event) -> None:
        """The next event; a round is shown once it is whole."""
        self._last, self._told = event.time, False
        if isinstance(event, ClientEvent):
            self._clients.append(event)
            return
        whole = [*self._clients, event] if isinstance(event, RoundEvent) else [event]
        self._clients = []
        self._sink = self._sink or self._made(event)
        self._sink.write(whole)

    def _made(self, event: Event) -> ConsoleSink | LMConsole:
        config = self._config
        if self._is_lm:
            steps = config.lm.steps if config and config.lm else getattr(event, "steps", 1)
            return LMConsole(steps, self._stream)
        rounds = config.rounds if config else getattr(event, "rounds", 1)
        readouts = [*getattr(event, "accuracy", {}), ""]
        return ConsoleSink(rounds, "", readout_of(config) or readouts[0], self._stream)


def picture_of(config: RunConfig | None, lm: bool, name: str) -> Taker:
    """What will be drawn of a run."""
    if lm:
        return LMWatch(config.lm.steps if config and config.lm else 0)
    return FederatedWatch(config.rounds if config else 0, readout_of(config))


def readout_of(config: RunConfig | None) -> str | None:
    """The read-out that the run reports, if its algorithm is known here."""
    try:
        return resolve(config.algorithm).readout if config else None
    except FedError:
        return None


def picture(followed: RunFollower | ListFollower, console: Console, height: int) -> Group:
    """All that is known, in so many lines at most."""
    parts: list[RenderableType | None] = []
    run = followed
    if isinstance(followed, ListFollower):
        parts.append(_list(followed))
        run = followed.current or followed
    if isinstance(run, RunFollower):
        parts[:0] = [_head(run, console.width)]
        if isinstance(run.taker, FederatedWatch | LMWatch):
            parts += run.taker.parts(console.width)
    return fitting(parts, console, console.width, height)


def _head(run: RunFollower, width: int) -> Group:
    """Name, status, what it is; the bar; when the last line came."""
    status = run.status
    title = Text(printable(run.name), "bold", no_wrap=True, overflow="ellipsis")
    title.append(f"  {status}", COLOURS.get(status, "yellow"))
    rows: list[RenderableType] = [title]
    if run.config:
        rows.append(Text(about(run.config), "dim", no_wrap=True, overflow="ellipsis"))
    view = run.taker
    if isinstance(view, FederatedWatch | LMWatch):
        rows += [view.pace.bar(view.unit, width, run.is_over()), _life(run, view)]
    elif not run.is_over():
        rows.append(Text(f"waiting for {printable(str(run.run.metrics))}", "yellow"))
    if run.summary and run.summary.get("message"):
        rows.append(Text(printable(str(run.summary["message"])), COLOURS.get(status, "yellow")))
    return Group(*rows)


def _life(run: RunFollower, view: FederatedWatch | LMWatch) -> Text:
    """How long ago the last line was, and how often the run was resumed."""
    now, notes = time.time(), view.notes
    last = f"last line at {time.strftime('%H:%M:%S', time.localtime(notes.last))}"
    words = Text(last, "dim") if run.is_over() else notes.age(now, view.pace.between_lines)
    return words.append(f"   resumed {notes.resumed} x" if notes.resumed else "", "yellow")


def _list(followed: ListFollower) -> Group:
    """The runs of a list around the one that is on."""
    names = [*followed.states]
    on = followed.current.run.path.name if followed.current else ""
    middle = names.index(on) if on in names else 0
    first = max(0, min(middle - ROWS // 2, len(names) - ROWS))
    done = sum(state not in ("waiting", "unfinished") for state in followed.states.values())
    title = f"{printable(followed.name)}: {done} of {len(names)} runs over"
    table = Table(box=None, show_header=False)
    for number in range(first, min(first + ROWS, len(names))):
        name, status = names[number], followed.states[names[number]]
        mark = "▶" if name == on and status == "unfinished" else ""
        shown = "running" if mark else status
        colour = COLOURS.get(shown, "yellow")
        table.add_row(mark, f"{number + 1}", Text(printable(name)), Text(shown, colour))
    return Group(Text(title, "bold"), table)


def about(config: RunConfig) -> str:
    """What a run is, in a line."""
    if config.lm is None:
        clients = f"{config.clients.count:,} clients, seed {config.seed}"
        return f"{config.algorithm.name} on {config.data.source}, {config.model.name}, {clients}"
    info = lm_info(config)
    federated = config.lm.federated
    clients = f", {federated.clients} clients" if federated else ""
    return (
        f"{info['model']} on {info['dataset']}, {info['algorithm']} {info['schedule']}, "
        f"{info['engine']}{clients}, seed {config.seed}"
    )


def end_of(followed: RunFollower | ListFollower) -> str:
    """The last words: how the run stands, or those of a list."""
    if isinstance(followed, ListFollower):
        states = [*followed.states.values()]
        counted = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        return f"{printable(followed.name)}: {counted or 'no runs'}"
    summary = followed.summary
    words = f"{printable(followed.name)}: {followed.status}"
    if summary is None:
        return words
    code, message = summary.get("exit_code"), printable(str(summary.get("message") or ""))
    done = [f"{summary[k]:,} {k}" for k in ("rounds", "steps") if isinstance(summary.get(k), int)]
    return ", ".join([f"{words} (exit code {code})", *done, *([message] if message else [])])

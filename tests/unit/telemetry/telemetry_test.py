"""Does every sink get its events, and does a broken one never end a run?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedcore.errors import CollectiveError, LossDiverged, Stopped, Unexpected
from fedcore.telemetry.events import ClientEvent, Event
from fedcore.telemetry.telemetry import Telemetry
from tests.unit.telemetry.made_up import client_event, round_event


class Recorder:
    """A meter that remembers, or always raises."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.seen: list[object] = []

    def _take(self, *what: object) -> None:
        if self.broken:
            raise OSError("gone")
        self.seen.extend(what)

    def write(self, events: Sequence[Event]) -> None:
        self._take(*events)

    def close(self) -> None:
        self._take("closed")

    def samples(self, n: int) -> None:
        self._take(n)

    def traffic(self, op: str, size: int, seconds: float) -> None:
        self._take((op, size, seconds))

    def phase(self, name: str, seconds: float) -> None:
        self._take((name, seconds))

    def checkpointed(self, at: float) -> None:
        self._take(("checkpoint", at))

    def checkpoint_failed(self) -> None:
        self._take("no checkpoint")

    def ended(self, status: str, wait: bool) -> None:
        self._take((status, wait))


def test_sinks_see_all_clients_and_the_meter_its_own() -> None:
    sink, meter = Recorder(), Recorder()
    events = [*(client_event(k) for k in range(4)), round_event()]
    Telemetry([sink], meter).write(events, own={1, 3})
    assert sink.seen == events
    assert [e.client for e in meter.seen if isinstance(e, ClientEvent)] == [1, 3]
    assert events[-1] in meter.seen


def test_plain_numbers_reach_the_meter_alone() -> None:
    sink, meter = Recorder(), Recorder()
    telemetry = Telemetry([sink], meter)
    telemetry.trained(5)
    telemetry.phase("train", 1.0)
    telemetry.traffic("gather", 8, 0.1)
    telemetry.checkpointed(2.0)
    assert not sink.seen
    assert meter.seen == [5, ("train", 1.0), ("gather", 8, 0.1), ("checkpoint", 2.0)]


def test_a_broken_sink_is_told_of_once_and_stops_nothing() -> None:
    told, good = list[str](), Recorder()
    telemetry = Telemetry([Recorder(broken=True), good], Recorder(broken=True), told.append)
    for _ in range(3):
        telemetry.write([round_event()])
        telemetry.trained(1)
    telemetry.close()
    assert len(good.seen) == 4
    assert good.seen[-1] == "closed"
    assert len(told) == 2  # the sink and the meter
    assert "gone" in told[0]


def test_warnings_carry_the_present_round() -> None:
    sink = Recorder()
    telemetry = Telemetry([sink])
    telemetry.write([round_event(7)])
    telemetry.warn("hot")
    warning = sink.seen[-1]
    assert isinstance(warning, Event)
    assert (warning.record()["round"], warning.record()["message"]) == (7, "hot")


def test_telemetry_without_sinks_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = Telemetry()
    telemetry.trained(1)
    telemetry.warn("nobody hears")
    telemetry.close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "status", "waits", "is_orderly"),
    [
        (None, "completed", True, True),
        (LossDiverged(3, 1.0, None), "diverged", True, True),
        (Stopped(3, "latest"), "stopped", False, True),  # there may be seconds until SIGKILL
        (CollectiveError("gather", "peer gone"), "failed", False, False),
        (Unexpected(1, "ValueError"), "failed", False, False),
        (ZeroDivisionError(), "failed", False, False),
        (KeyboardInterrupt(), "failed", False, False),
    ],
)
def test_the_end_of_a_run_is_told_and_a_broken_one_stays_listed(
    error: BaseException | None, status: str, waits: bool, is_orderly: bool
) -> None:
    meter, ends = Recorder(), list[str]()

    def run() -> None:
        with Telemetry((), meter, at_end=lambda: ends.append("withdrawn")):
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    assert meter.seen == [(status, waits), "closed"]
    assert bool(ends) is is_orderly

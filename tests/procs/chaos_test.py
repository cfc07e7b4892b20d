"""Does a run that meets six random faults end as if nothing had happened? (`make chaos`: fifty)"""

from __future__ import annotations

import pytest

from tests.procs import chaos

pytestmark = [pytest.mark.procs, pytest.mark.long]


def test_six_faults_leave_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    chaos.main(["--faults", "6", "--seed", "0"])  # asserts after each fault, and at the end
    assert "the same checksums; nothing left behind" in capsys.readouterr().out

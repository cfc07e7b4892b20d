"""Are numbers said as a reader wants them?"""

from __future__ import annotations

import pytest

from launcher.words import duration, ranges, size


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (ranges([3, 1, 2, 9, 9]), "1-3, 9"),
        (ranges(range(0, 40, 2), 2), "0, 2 and 18 more"),
        (duration(59.96), "60.0 s"),
        (duration(200), "3 min 20 s"),
        (duration(7505), "2 h 5 min"),
        (size(3_192_964), "3.19 MB"),
        (size(12), "12 B"),
    ],
)
def test_words_for_numbers(said: str, wanted: str) -> None:
    assert said == wanted

"""docs/numbers.md: the tables between its marks, made from what the benches have written.

    PYTHONPATH=. .venv/bin/python bench/write_numbers.py [--take]

`<!-- bench: NAME -->` ... `<!-- end -->` holds the tables of docs/numbers/NAME.json; all else is
prose. --take: first copy each runs/bench/NAME.json that is there, so that the document can always
be made again from what lies beside it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.figures import Sheet, Spread, told

DOCS = Path(__file__).parent.parent / "docs"
REGION = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.S)


def sheets(found: Mapping[str, Any]) -> Iterator[Sheet]:
    """A bench's tables; of one that leaves none, what can be told of its ratios."""
    if "sheets" in found:
        yield from (Sheet(**sheet) for sheet in found["sheets"])
    elif isinstance(found.get("cases"), list):
        yield beside_bare(found["cases"])
    else:
        yield compared(found)


def beside_bare(cases: list[Mapping[str, Any]]) -> Sheet:
    """Of cases with a `ratio` to something bare, by the clock and in processor time."""
    rows = [
        [
            f"{case['case']}, lanes of {case['width']}",
            *(Spread(**case["ratio"][which]).told(".3f") for which in ("wall", "processor")),
            f"{case['seconds']['median']:.3f} and {case['bare_seconds']['median']:.3f}",
        ]
        for case in cases
    ]
    head = ["", "ratio by the clock", "of processor time", "seconds: ours and bare"]
    return Sheet("Time over that of the bare loop, neighbouring blocks.", head, rows)


def compared(found: Mapping[str, Any]) -> Sheet:
    """Of entries with a `ratio` and the `rates` of both."""
    rows = []
    for name, values in found.items():
        if isinstance(values, Mapping) and "rates" in values:
            rates = values["rates"].items()
            each = ", ".join(f"{key} {rate['median']:,.0f}" for key, rate in rates)
            rows.append([name, Spread(**values["ratio"]).told(".2f"), each])
    head = ["", "ratio", "samples (on the disk: bytes) a second"]
    return Sheet("Rate of the first over that of the second, neighbouring blocks.", head, rows)


def region(found: Mapping[str, Any]) -> str:
    """What stands between the marks."""
    parts = [sheet.markdown() for sheet in sheets(found)]
    return "\n\n".join([*parts, f"Measured on {told(found)}."]) + "\n"


def names(text: str) -> list[str]:
    """The benches that a document shows."""
    return [name for _, name, _ in REGION.findall(text)]


def written(text: str, folder: Path) -> str:
    """The document with its tables made anew; those that nobody has measured stay empty."""

    def fill(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        file = folder / f"{name}.json"
        body = region(json.loads(file.read_text())) if file.is_file() else "Not yet measured.\n"
        return f"{begin}\n{body}\n{end}"

    return REGION.sub(fill, text)


def take(text: str, source: Path, folder: Path) -> list[str]:
    """Copy what a document shows and `source` has; its names. Paths become relative to the project,
    and nothing is said of where it lay."""
    folder.mkdir(exist_ok=True)
    found = [name for name in names(text) if (source / f"{name}.json").is_file()]
    for name in found:
        values = json.loads((source / f"{name}.json").read_text().replace(f"{DOCS.parent}/", ""))
        values.pop("node", None)
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--take", action="store_true", help="copy what was measured first")
    parser.add_argument("--source", type=Path, default=Path("runs/bench"))
    given = parser.parse_args()
    page = DOCS / "numbers.md"
    text = page.read_text()
    if given.take:
        print("taken:", ", ".join(take(text, given.source, DOCS / "numbers")) or "nothing")
    page.write_text(written(text, DOCS / "numbers"))


if __name__ == "__main__":
    main()

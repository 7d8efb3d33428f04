"""The counts in docs/reliability.md, which are those of the last whole attack.

`make attack` ends with `python -m tests.attack.reliability`, which writes them into the page and names what has no row.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
COUNTS = Path(__file__).with_name("counts.json")
ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<count>[^|]+) \|$", re.MULTILINE)
HEADINGS = ("what was tried", "---")


def counted() -> dict[str, str]:
    """What the last whole attack tried, and how often it held."""
    return {name: f"{count['kept']:,} of {count['tried']:,}" for name, count in json.loads(COUNTS.read_text()).items()}


def stated(page: str) -> dict[str, str]:
    """The same, as a page states it."""
    return {row["name"]: row["count"] for row in ROW.finditer(page) if row["name"] not in HEADINGS}


def filled(page: str, counts: dict[str, str]) -> str:
    """The page with these counts in its rows."""
    return ROW.sub(lambda row: f"| {row['name']} | {counts.get(row['name'], row['count'])} |", page)


if __name__ == "__main__":
    page, counts = PAGE.read_text(), counted()
    PAGE.write_text(filled(page, counts))
    for name in sorted(counts.keys() ^ stated(page).keys()):
        print(f"{name!r} {'has no row in the page' if name in counts else 'was not tried'}")

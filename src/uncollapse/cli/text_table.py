"""Tables of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[object]]) -> str:
    """Rows as lines whose columns are aligned on the left, two spaces apart; a number is aligned on the right.

    >>> print(text_table([("id", "cells", "title"), ("fig6", 9, "LocAteR"), ("fig7", 21, "rho")]))
    id    cells  title
    fig6      9  LocAteR
    fig7     21  rho
    """
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(_padded, row, widths)).rstrip() for row in rows)


def _padded(cell: object, width: int) -> str:
    return str(cell).rjust(width) if isinstance(cell, int | float) else str(cell).ljust(width)

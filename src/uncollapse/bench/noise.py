"""Was the machine quiet enough? SDPA is timed against itself, and the distance of that ratio from 1 is the noise."""

from __future__ import annotations

import pandas as pd

ALLOWED = 0.05  # of SDPA's time


def noisy_parts(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Shape and pass of each part whose noise is more than is allowed -> SDPA's ratio to itself."""
    itself = table[(table["group"] == "attention") & (table["name"] == table["against"]) & table["ratio"].notna()]
    return {
        (str(row["shape"]), str(row["work"])): float(row["ratio"])
        for _, row in itself.iterrows()
        if abs(row["ratio"] - 1.0) > ALLOWED
    }


def noise_sentences(table: pd.DataFrame) -> list[str]:
    """One sentence for each part that is not to be trusted, and what to do."""
    found = [
        f"Not to be trusted: {shape}, {work}. There SDPA takes {ratio:.2f} of its own time, more than "
        f"{100 * ALLOWED:.0f} % off, so a difference of that size between two forms means nothing."
        for (shape, work), ratio in noisy_parts(table).items()
    ]
    return [*found, "Something else was running: measure again on a quiet machine."] if found else []

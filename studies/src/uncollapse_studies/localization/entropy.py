"""Figure 4 of the second paper: the lower bound of attention entropy, corrected and as printed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from uncollapse.theory import entropy_lower_bound

from ..figure import Result, Size

LENGTHS = (16, 64, 256)
CORRECTED, PRINTED = "corrected (Zhai et al.)", "as printed (Eq. 9)"


def bounds(norms: np.ndarray) -> pd.DataFrame:
    """Both forms over nu, and the largest entropy there can be."""
    parts = [
        pd.DataFrame(
            {
                "T": tokens,
                "form": name,
                "nu": norms,
                "bound": entropy_lower_bound(norms, tokens, form),  # type: ignore[arg-type]
                "log_T": np.log(tokens),
            }
        )
        for tokens in LENGTHS
        for name, form in ((CORRECTED, "corrected"), (PRINTED, "as_printed"))
    ]
    return pd.concat(parts, ignore_index=True)


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """The bound over nu for three lengths."""
    from ..charts.entropy_chart import entropy_bound_chart

    table = bounds(np.linspace(0.0, 20.0, 201 if size == "full" else 11))
    printed = table[table["form"] == PRINTED]
    peaks = printed.loc[printed.groupby("T")["bound"].idxmax()]
    sentences = [
        "The corrected bound starts at log T and falls all the way: smaller scores guarantee more entropy.",
        *(
            f"T = {row['T']}: the printed bound reaches {row['bound']:.1f} at nu = {row['nu']:.1f}, "
            f"where no entropy can exceed log T = {row['log_T']:.2f}."
            for row in peaks.to_dict("records")
        ),
        "The peak of the printed curve comes from exp(-nu/2), which is exp(-nu) in the theorem it quotes.",
    ]
    return Result(
        table=table,
        chart=entropy_bound_chart(table),
        sentences=sentences,
        reading_aid="The dotted line is log T, the entropy of uniform attention. A lower bound must stay below it.",
        summary=peaks[["T", "nu", "bound", "log_T"]]
        .rename(columns={"nu": "peak of the print at nu", "bound": "its height", "log_T": "log T"})
        .round(2),
        settings={"T": list(LENGTHS), "nu": [0.0, 20.0]},
    )

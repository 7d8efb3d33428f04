"""Figures 2 and 3 of the second paper: the signal propagation probability rho(theta), corrected and as printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from uncollapse.theory import signal_propagation, signal_propagation_limit

from ..figure import Result, Size

CORRECTED, PRINTED, LIMIT = "corrected", "as printed", "limit of Lemma 2"
FORMS = {CORRECTED: "corrected", PRINTED: "as_printed"}
ETAS = (0.001, 0.1, 0.5, 2.0)
PAIRS = ((128.0, 0.01), (512.0, 0.01))  # xi and eta of Figure 3: r = 1.28 and 5.12
ZOOM = 0.03  # around theta = 1/2


def propagation_grid(thetas: Sequence[float], xis: Sequence[float], etas: Sequence[float]) -> pd.DataFrame:
    """Rho on a grid, in both forms."""
    theta, xi, eta = (axis.ravel() for axis in np.meshgrid(thetas, xis, etas))
    return pd.concat(
        [
            pd.DataFrame(
                {"form": name, "eta": eta, "xi": xi, "theta": theta, "rho": signal_propagation(theta, xi, eta, form)}  # type: ignore[arg-type]
            )
            for name, form in FORMS.items()
        ],
        ignore_index=True,
    )


def figure_2(size: Size, tick: Callable[[], object]) -> Result:
    """Rho over position and xi, for several eta."""
    from ..charts.propagation_chart import propagation_map

    points = 24 if size == "full" else 4
    thetas = (np.arange(points) + 0.5) / points
    xis = np.linspace(-12.0, 12.0, points + 1)
    table = propagation_grid(list(thetas), list(xis), ETAS)
    wide = table.pivot(index=["eta", "xi", "theta"], columns="form", values="rho")
    gap = (wide[CORRECTED] - wide[PRINTED]).abs()
    worst = gap.groupby("eta").max()
    flat = propagation_grid([0.0, 0.5, 1.0], [0.0], ETAS).pivot(index=["form", "eta"], columns="theta", values="rho")
    flat = flat.loc[CORRECTED]
    sentences = [
        f"The two forms differ by up to {worst.max():.2f} (at eta = {worst.idxmax():g}): the corrected variance is "
        "smallest in the middle, the printed one grows towards the end.",
        "The corrected map is its own mirror image under theta -> 1 - theta, xi -> -xi; the printed one is not.",
        f"At xi = 0 positions do not propagate alike: at eta = {ETAS[-1]:g} the middle has rho "
        f"{flat.loc[ETAS[-1], 0.5]:.2f}, the ends {flat.loc[ETAS[-1], 0.0]:.2f} (Lemma 2.3 says uniform).",
    ]
    return Result(
        table=table,
        chart=propagation_map(table),
        sentences=sentences,
        reading_aid="Each column of a panel is one xi; bright positions propagate. Late tokens are at the top.",
        summary=worst.round(3).rename("largest difference of the forms").reset_index(),
        settings={"thetas": points, "xi": [-12.0, 12.0], "eta": list(ETAS)},
    )


def figure_3(size: Size, tick: Callable[[], object]) -> Result:
    """Rho near the limit, whole and around theta = 1/2."""
    from ..charts.propagation_chart import propagation_lines

    points = 161 if size == "full" else 9
    parts = []
    for xi, eta in PAIRS:
        for view, thetas in (
            ("all positions", np.linspace(0.0, 1.0, points)),
            ("around the middle", np.linspace(0.5 - ZOOM, 0.5 + ZOOM, points)),
        ):
            part = propagation_grid(list(thetas), [xi], [eta])
            limit = part[part["form"] == CORRECTED].assign(form=LIMIT)
            limit["rho"] = signal_propagation_limit(limit["theta"], xi * eta)
            parts.append(pd.concat([part, limit]).assign(view=view, r=round(xi * eta, 6)))
    table = pd.concat(parts, ignore_index=True)
    sentences = [
        f"xi = {xi:g}, r = {xi * eta:.2f}: tokens from theta = 1/2 to {min(1.0, 0.5 + 1 / (xi * eta)):.2f} propagate."
        for xi, eta in PAIRS
    ] + [
        "At theta = 1/2 itself rho is 1/2 in either form, so the limit is 1/2 there and not 1 as Lemma 2 says.",
        "The corrected form turns on within a narrower stretch of positions than the printed one.",
        f"|xi| cannot exceed sqrt(d), so xi = {PAIRS[0][0]:g} and {PAIRS[1][0]:g} need widths of at least "
        f"{PAIRS[0][0] ** 2:,.0f} and {PAIRS[1][0] ** 2:,.0f}.",
    ]
    near = table[(table["view"] == "around the middle") & (table["form"] != LIMIT)]
    rise = near[(near["rho"] > 0.1) & (near["rho"] < 0.9)].groupby(["xi", "form"])["theta"].agg(["min", "max"])
    return Result(
        table=table,
        chart=propagation_lines(table),
        sentences=sentences,
        reading_aid="Above: all positions. Below: the same around theta = 1/2, where the two forms differ.",
        summary=rise.round(4).rename(columns={"min": "rho passes 0.1 at", "max": "rho passes 0.9 at"}).reset_index(),
        settings={"pairs": [list(pair) for pair in PAIRS], "points": points, "zoom": ZOOM},
    )

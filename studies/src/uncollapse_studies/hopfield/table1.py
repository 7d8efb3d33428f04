"""Appendix Table 1 of the first paper: the residual ratio of attention-only ViT-T by depth, on CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from ..artefact import NOT_SEEN, REPRODUCED, TREND
from ..figure import Result, Size
from ..printed import TABLE1
from .table1_networks import (
    BOTH,
    CHOICE,
    HIDDEN,
    NETWORK,
    PLAIN,
    SKIP,
    SMALLEST,
    Table1Setting,
    distinct,
    floor_one_by_one,
    projections,
    ratios_table,
)

FLOOR = 2e-6  # printed ratios below it are rounding of float32, and nothing to be compared with
NEAR = 0.3  # powers of ten: nearer than that to each column, a choice reproduces the table
FIRST, SECOND = TABLE1  # the printed columns


def aims(depth: int) -> dict[str, pd.Series[float]]:
    """The printed columns by depth, without what is below FLOOR or beyond `depth`."""
    whole = {name: pd.Series(values, index=range(1, len(values) + 1)) for name, values in TABLE1.items()}
    return {name: column[(column > FLOOR) & (column.index <= depth)] for name, column in whole.items()}


def distances(table: pd.DataFrame) -> pd.DataFrame:
    """How far each distinct choice and network is from each printed column, in float32.

    The distance is the root mean square over the depths of `aims` of log10(ours / printed): powers of ten. `factor` is
    the largest of these ratios, or of their inverses; `within` counts the depths where the printed ratio is no more
    than one spread away, `depths` all that are compared.
    """
    own = distinct(table[table["dtype"] == "float32"])
    rows = []
    for column, aim in aims(int(table["depth"].max())).items():
        for key, group in own.groupby([*CHOICE, *NETWORK], sort=False):
            found = group.set_index("depth").loc[aim.index]
            gap = np.log10(found["mean"] / aim)
            within = int(((found["mean"] - aim).abs() <= found["spread"]).sum())
            rows.append((column, *key, float(np.sqrt((gap**2).mean())), 10 ** gap.abs().max(), within, len(aim)))
    return pd.DataFrame(rows, columns=["column", *CHOICE, *NETWORK, "distance", "factor", "within", "depths"])


def nearest(far: pd.DataFrame) -> pd.DataFrame:
    """Distance of each choice to both columns, nearest first.

    A choice is as far away (`farther`) as the farther of its two columns: the first from the plain network, the second
    from the nearest network with the skip. So many depths of one column cannot make up for few of the other.
    """
    first = far[(far["column"] == FIRST) & is_cell(far, *PLAIN) & (far["start"] == "zero")]
    second = far[(far["column"] == SECOND) & (far["rule"] == "hopfield") & (far["alpha"] > 0)]
    second = second.sort_values("distance", kind="stable").drop_duplicates(CHOICE)
    numbers = ["distance", "factor", "within", "depths"]
    merged = first[[*CHOICE, *numbers]].merge(second.drop(columns="column"), on=CHOICE, suffixes=("", "_second"))
    farther = merged[["distance", "distance_second"]].max(axis=1)
    return merged.assign(farther=farther).sort_values("farther", kind="stable").reset_index(drop=True)


def is_cell(table: pd.DataFrame, alpha: float, hidden: float) -> pd.Series[bool]:
    """Rows of rule hopfield with these two numbers."""
    return (table["rule"] == "hopfield") & (table["alpha"] == alpha) & (table["alpha_hidden"] == hidden)


def at_choice(table: pd.DataFrame, choice: pd.Series[Any]) -> pd.DataFrame:
    """The rows of one choice."""
    return table[(table[CHOICE] == choice[CHOICE]).all(axis=1)]


def verdict(table: pd.DataFrame, best: pd.Series[Any]) -> str:
    """Reproduced if both columns are near; the same trend if at least the skip keeps tokens further apart."""
    if best["farther"] < NEAR:
        return REPRODUCED
    own = at_choice(table, best).query("depth == depth.max() and dtype == 'float32' and start == 'zero'")
    plain, both = (own.loc[is_cell(own, *pair), "mean"].item() for pair in (PLAIN, BOTH))
    factor = max(best["factor"], best["factor_second"])
    return f"{TREND} (within a factor of {factor:.2g} at every depth above rounding)" if both > plain else NOT_SEEN


def sentences(
    setting: Table1Setting, table: pd.DataFrame, ranked: pd.DataFrame, far: pd.DataFrame, one_by_one: float
) -> list[str]:
    """What the table shows, computed from it."""
    best, names = ranked.iloc[0], len(table[CHOICE].drop_duplicates())
    within, compared = (int(best[name] + best[f"{name}_second"]) for name in ("within", "depths"))
    return [
        f"Ours: mean ± spread (standard deviation) over {setting.images} images and {setting.seeds} seeds, in float32.",
        f"Compared at the depths where the printed ratio is above {FLOOR:g}, below which it is rounding: "
        f'{best["depths"]} of {setting.depth} of "{FIRST}", {best["depths_second"]} of "{SECOND}". Distance: root '
        "mean square of log10(ours / printed).",
        f"Nearest of {len(ranked)} distinct choices ({names} names: with timm's and torch's initialisation joint and "
        f"separate projections are the same) is {_named(best)}: {best['distance']:.3f} powers of ten from the first "
        f"column, {best['distance_second']:.3f} from the second; farthest: {_named(ranked.iloc[-1])}, "
        f"{ranked.iloc[-1]['farther']:.2f} from the farther one.",
        f"Below {NEAR:g} in both columns counts as reproduced; this is: {verdict(table, best)}. The printed "
        f"ratio is no more than one spread from ours at {within} of {compared} depths.",
        _preference(table, best, far),
        _who_does_the_work(table, best),
        _floor(table, best, one_by_one),
    ]


def _preference(table: pd.DataFrame, best: pd.Series[Any], far: pd.DataFrame) -> str:
    """Which network with the skip the second column is nearest to, if any."""
    own = at_choice(far, best)
    own = own[(own["column"] == SECOND) & (own["alpha"] > 0)].set_index(["alpha_hidden", "start"])["distance"]
    raw, zero, alone = own[BOTH[1], "raw"], own[BOTH[1], "zero"], own[SKIP[1], "zero"]
    chosen = at_choice(table, best).query("dtype == 'float32' and start == 'zero'")
    chosen = chosen[is_cell(chosen, *BOTH)]
    spread = np.log10(1 + chosen["spread"] / chosen["mean"]).mean()
    same = max(raw, zero, alone) - min(raw, zero, alone) < spread
    return (
        f"There the second column is {raw:.3f} from alpha with alpha' if scores start raw, {zero:.3f} if they start at "
        f"zero, {alone:.3f} from alpha alone: start {'raw' if raw < zero else 'zero'} is nearer, "
        + (f"but with a spread of {spread:.2f} this prefers none of the three" if same else "beyond the spread")
        + ". Table and picture show start zero."
    )


def _who_does_the_work(table: pd.DataFrame, best: pd.Series[Any]) -> str:
    """Where each network ends, and in how many choices alpha alone keeps tokens further apart than alpha' alone."""
    end = distinct(table.query("depth == depth.max() and dtype == 'float64' and start == 'zero'"))
    means = {pair: end[is_cell(end, *pair)].set_index(CHOICE)["mean"] for pair in (PLAIN, SKIP, HIDDEN, BOTH)}
    own = {pair: column[tuple(best[CHOICE])] for pair, column in means.items()}
    doer = "alpha (the visible skip)" if own[SKIP] > own[HIDDEN] else "alpha' (the hidden state)"
    return (
        f"After {end['depth'].iloc[0]} layers there: alpha alone {own[SKIP]:.2g}, alpha' alone {own[HIDDEN]:.2g}, both "
        f"{own[BOTH]:.2g}, neither {own[PLAIN]:.1e} (float64): {doer} does the work; alpha alone ends above alpha' "
        f"alone in {int((means[SKIP] > means[HIDDEN]).sum())} of {len(means[SKIP])} distinct choices."
    )


def _floor(table: pd.DataFrame, best: pd.Series[Any], one_by_one: float) -> str:
    """What float32 leaves of plain attention, beside float64 and beside the printed floor."""
    end = at_choice(table, best).query("depth == depth.max() and start == 'zero'")
    single, double = (
        end.loc[is_cell(end, *PLAIN) & (end["dtype"] == t), "mean"].item() for t in ("float32", "float64")
    )
    printed = float(np.mean([value for value in TABLE1[FIRST] if value <= FLOOR]))
    start = f"Plain attention ends at {single:.1e} in float32 and at {double:.1e} in float64"
    if double >= single / 100:
        return f"{start}: this network is not deep enough to reach the rounding of float32."
    return (
        f"{start}: the printed floor, {printed:.1e} on average, is rounding of float32, not a property of the network. "
        f"It is {printed / single:.1f} times ours, perhaps because of how the mean token is taken: summed token after "
        f"token, as numpy does it, ours is {one_by_one:.1e}."
    )


def _named(row: pd.Series[Any]) -> str:
    norm = "LayerNorm" if row["layernorm"] else "no LayerNorm"
    joint = f", {row['projection']} projections" if len(projections(row["init"])) > 1 else ""
    return f"{row['init']}, {norm}{joint}"


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """The table, the nearest choice, and its curves beside the printed ones."""
    from ..charts.table1_chart import table1_chart

    setting = Table1Setting() if size == "full" else SMALLEST
    table = ratios_table(setting, tick)
    far = distances(table)
    ranked = nearest(far)
    best = ranked.iloc[0]
    chosen = at_choice(table, best).query("dtype == 'float32'")
    ours = chosen[(chosen["start"] == "zero") | (chosen["rule"] != "hopfield")].assign(network=_network_names)
    printed = pd.DataFrame(
        [(name, depth, value) for name, values in TABLE1.items() for depth, value in enumerate(values, start=1)],
        columns=["network", "depth", "mean"],
    ).query(f"depth <= {setting.depth}")
    about = f"attention-only ViT-T, {_named(best)}, start zero"
    return Result(
        table=table,
        chart=table1_chart(ours[["network", "depth", "mean", "spread"]], printed, about),
        sentences=sentences(setting, table, ranked, far, floor_one_by_one(setting, best)),
        reading_aid="Solid: ours, at the choice of initialisation, LayerNorm and projection that comes nearest, start "
        "zero, with the spread over images and seeds (downwards at most to a tenth of the mean); dashed: as printed. "
        "near 1: tokens differ; towards 0: all alike.",
        summary=summary(ours, printed),
        settings={**asdict(setting), "floor": FLOOR, "distances": ranked.to_dict("records")},
        verdict=verdict(table, best),
    )


def summary(ours: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """One row per depth: the printed ratios, and ours as mean ± spread."""
    numbers = [f"{mean:.3g} ± {spread:.1g}" for mean, spread in zip(ours["mean"], ours["spread"], strict=True)]
    shown = pd.concat([printed.assign(shown=printed["mean"].map("{:.3g}".format)), ours.assign(shown=numbers)])
    wide = shown.pivot(index="depth", columns="network", values="shown")
    return wide[list(shown["network"].unique())].reset_index().rename_axis(columns=None)


def _network_names(table: pd.DataFrame) -> pd.Series[str]:
    names = {PLAIN: "neither", SKIP: "alpha only", HIDDEN: "alpha' only", BOTH: "alpha and alpha'"}
    words = {"realformer": "RealFormer", "revit": "ReViT"}
    named = [
        words.get(rule) or names[alpha, hidden]
        for rule, alpha, hidden in zip(table["rule"], table["alpha"], table["alpha_hidden"], strict=True)
    ]
    return pd.Series(named, index=table.index)

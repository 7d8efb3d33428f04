"""What bounds are worth: from the weights alone and from the attention matrices, over widths, tokens and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
import torch

from uncollapse.attention import AttentionOnly
from uncollapse.metrics import norm_1_inf, residual
from uncollapse.theory import contraction_bounds, residual_bounds

from ..figure import Result, Size
from .bounds import CELLS

CURVES = ("residual", "bound from the attention", "bound from the weights")
SMALLEST_SHOWN = 1e-300  # below, float64 has no numbers


@dataclass(frozen=True)
class NetworkSize:
    """An attention-only network and its tokens, standard normal; heads have 64 components, or 16 in narrow networks."""

    width: int = 192  # ViT-T's
    tokens: int = 64
    init: str = "xavier"
    depth: int = 8

    @property
    def heads(self) -> int:
        """As many as fit."""
        return self.width // (64 if self.width >= 64 else 16)


SIZES = tuple(NetworkSize(*each) for each in product((32, 192, 384), (16, 64, 197), ("timm", "torch", "xavier")))
SMALLEST = (NetworkSize(32, 8, "torch", depth=3), NetworkSize(32, 8, "xavier", depth=3))


def contraction_table(sizes: tuple[NetworkSize, ...], seeds: int, tick: Callable[[], object]) -> pd.DataFrame:
    """log10 of what is left of the input's residual, and of its bounds, by layer; mean over the seeds."""
    rows = []
    with torch.random.fork_rng():
        for size, (network, (alpha, alpha_hidden)) in product(sizes, CELLS.items()):
            for seed in range(seeds):
                torch.manual_seed(seed)
                about = (size.width, size.heads, size.tokens, size.init, network, alpha, alpha_hidden)
                rows += [(*about, *row) for row in _left(size, alpha, alpha_hidden)]
            tick()
    columns = ["width", "heads", "tokens", "init", "network", "alpha", "alpha_hidden", "depth", "curve"]
    table = pd.DataFrame(rows, columns=[*columns, "value"])
    grouped = table.groupby(columns, sort=False)["value"]
    result = grouped.agg(mean="mean", spread=lambda v: v.std(ddof=0), seeds="count").reset_index()
    return result[result["seeds"] == seeds]


def _left(size: NetworkSize, alpha: float, alpha_hidden: float) -> Iterator[tuple[int, str, float]]:
    """Layer, curve and log10 of the residual or bound over the residual of the input, each in its own norm."""
    net = AttentionOnly(
        size.depth, size.width, size.heads, alpha=alpha, alpha_hidden=alpha_hidden, init=size.init
    ).double()
    x = torch.randn(1, size.tokens, size.width, dtype=torch.float64)
    start = residual(x)
    frobenius, composite = start.norm().item(), norm_1_inf(start).item()
    for near, far in zip(contraction_bounds(net, x), residual_bounds(net, x), strict=True):
        values = (
            near.measured.item() / frobenius,
            near.from_input.item() / frobenius,
            far.corrected_depth.item() / composite,
        )
        if min(values) > SMALLEST_SHOWN:
            yield from (
                (near.layer, curve, float(np.log10(value))) for curve, value in zip(CURVES, values, strict=True)
            )


def size_summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per size, at the last layer that float64 can hold with inherited scores and no skip."""
    own = table[table["network"] == list(CELLS)[1]]
    wide = own.pivot_table(
        index=["width", "heads", "tokens", "init", "depth"], columns="curve", values="mean", sort=False
    )
    last = wide.reset_index().groupby(["width", "heads", "tokens", "init"], sort=False).tail(1)
    above = (last[CURVES[1]] - last[CURVES[0]]) / last["depth"]
    shown = {curve: [f"10^{round(value)}" for value in last[curve]] for curve in CURVES}
    names = last[["width", "heads", "tokens", "init", "depth"]].rename(columns={"depth": "layers"})
    per_layer = pd.Series([f"{10.0**value:.1f}" for value in above], index=last.index)
    return names.assign(**shown, **{"attention's bound over the residual, per layer": per_layer}).rename_axis(
        columns=None
    )


def _sentences(table: pd.DataFrame) -> list[str]:
    index = ["width", "tokens", "init", "network", "depth"]
    wide = table.pivot_table(index=index, columns="curve", values="mean")
    left, near, far = (wide[curve] for curve in CURVES)
    broken = int((left > near + 1e-9).sum() + (left > far + 1e-9).sum())
    vacuous = wide[far > 0.0].groupby("width").size()
    counts = wide.groupby("width").size()
    where = ", ".join(f"{vacuous.get(width, 0)} of {count} at width {width}" for width, count in counts.items())
    each = (near - left) / wide.index.get_level_values("depth")
    with_skip = (near - left).xs(list(CELLS)[2], level="network")
    return [
        f"{len(wide)} layers whose residual float64 can hold were measured; {broken} times one is above a bound.",
        f"The bound from the weights alone is above the residual of the input, so that it says nothing, in {where}.",
        f"The bound from the attention matrices is {10.0 ** each.min():.2f} to {10.0 ** each.max():.1f} times the "
        f"residual per layer; with the skip it is at most {10.0 ** with_skip.max():.1f} times the residual after all "
        "layers.",
    ]


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """What is left of the residual by depth at ViT-T's width, with both bounds, and a table over all sizes."""
    from ..charts.bounds_chart import contraction_chart

    sizes, seeds = (SIZES, 3) if size == "full" else (SMALLEST, 1)
    table = contraction_table(sizes, seeds, tick)
    shown = NetworkSize() if size == "full" else SMALLEST[-1]
    own = table[(table["width"] == shown.width) & (table["tokens"] == shown.tokens) & (table["init"] == shown.init)]
    return Result(
        table=table,
        chart=contraction_chart(own, CURVES),
        sentences=_sentences(table),
        reading_aid=f"Width {shown.width}, {shown.tokens} tokens, {shown.init} weights: what is left of the residual "
        "of the input. A true bound lies above the black line. The table is of α = 0 and α′ = 0.5.",
        summary=size_summary(table),
        settings={"sizes": [replace(each).__dict__ for each in sizes], "seeds": seeds},
    )

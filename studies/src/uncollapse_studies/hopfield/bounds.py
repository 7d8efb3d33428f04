"""The residual of attention-only networks by depth, beside the bounds of the first paper's appendix D."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from uncollapse.attention import AttentionOnly
from uncollapse.metrics import norm_1, norm_1_inf, residual
from uncollapse.theory import SPAN, residual_bounds, residual_coefficients

from ..figure import Result, Size

CELLS = {  # panel -> alpha, alpha'
    "self-attention (α = α′ = 0)": (0.0, 0.0),
    "hidden state (α = 0, α′ = 0.5)": (0.0, 0.5),
    "skip and hidden state (α = α′ = 0.5)": (0.5, 0.5),
}
MEASURED = "measured"
CURVES = {  # field of LayerBounds -> its name in the figure
    "measured": MEASURED,
    "printed": "one layer, as printed (D.2)",
    "corrected": "one layer, corrected",
    "printed_depth": "from the input, as printed (D.3)",
    "corrected_depth": "from the input, corrected",
}
SMALLEST_SHOWN = 1e-300  # below, float64 has no numbers


@dataclass(frozen=True)
class BoundsSetting:
    """Sizes of the networks."""

    depth: int = 12
    width: int = 32
    heads: int = 2
    tokens: int = 16
    seeds: int = 5
    token_size: float = 0.3  # standard deviation of a component
    init: str = "timm"


SMALLEST = BoundsSetting(depth=2, width=8, tokens=4, seeds=1)


def bounds_table(setting: BoundsSetting, tick: Callable[[], object]) -> pd.DataFrame:
    """Measured residual and bounds of every layer; log10 is averaged over the seeds."""
    rows = []
    with torch.random.fork_rng():
        for cell, (alpha, alpha_hidden) in CELLS.items():
            for seed in range(setting.seeds):
                torch.manual_seed(seed)
                network = AttentionOnly(
                    setting.depth,
                    setting.width,
                    setting.heads,
                    alpha=alpha,
                    alpha_hidden=alpha_hidden,
                    init=setting.init,
                ).double()
                x = setting.token_size * torch.randn(1, setting.tokens, setting.width, dtype=torch.float64)
                for layer in residual_bounds(network, x):
                    rows += [
                        (cell, alpha, alpha_hidden, layer.layer, name, getattr(layer, field).item(), layer.assumption)
                        for field, name in CURVES.items()
                    ]
                tick()
    columns = ["network", "alpha", "alpha_hidden", "depth", "curve", "value", "assumption"]
    table = pd.DataFrame(rows, columns=columns)
    table = table[table["value"] > SMALLEST_SHOWN].assign(value=lambda t: np.log10(t["value"]))
    grouped = table.groupby(columns[:5], sort=False)
    result = grouped.agg(
        mean=("value", "mean"),
        spread=("value", lambda v: v.std(ddof=0)),
        seeds=("value", "count"),
        rows_within_assumption=("assumption", "mean"),
    ).reset_index()
    return result[result["seeds"] == setting.seeds].assign(residual=lambda t: 10.0 ** t["mean"])


def counterexample() -> tuple[float, float, float]:
    """Residual, printed and corrected bound where Lemma D.1 fails: two tokens, W_QK = 0, W_V = I, d_k = 256."""
    inherited = torch.tensor([[0.6, -0.6], [0.0, 0.0]], dtype=torch.float64)
    tokens = torch.eye(2, dtype=torch.float64)
    after = norm_1_inf(residual((0.5 * inherited).softmax(dim=-1) @ tokens)).item()
    size = norm_1_inf(residual(tokens)).item()
    printed, corrected = (
        residual_coefficients(0.5, 0.0, 1.0, norm_1(inherited).item(), 256, tokens=2, form=form)[1] * size
        for form in ("as_printed", "corrected")
    )
    return after, printed, corrected


def _bend(table: pd.DataFrame) -> str:
    """How the fall of the residual changes with depth where scores are inherited and there is no skip."""
    own = table[(table["network"] == list(CELLS)[1]) & (table["curve"] == MEASURED)].sort_values("depth")
    steps = own["mean"].diff().dropna()
    return (
        f"Inherited scores without a skip slow the collapse and do not stop it: layer {int(own['depth'].iloc[1])} "
        f"divides the residual by 10^{-steps.iloc[0]:.1f}, layer {int(own['depth'].iloc[-1])} by "
        f"10^{-steps.iloc[-1]:.1f}: it falls faster than exponentially."
    )


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """Residual and bounds by depth, three networks side by side."""
    from ..charts.bounds_chart import bounds_chart

    setting = BoundsSetting() if size == "full" else SMALLEST
    table = bounds_table(setting, tick)
    wide = table.pivot_table(index=["network", "depth"], columns="curve", values="residual", sort=False)
    with_skip = wide.loc[list(CELLS)[2]].iloc[-1]
    after, printed, corrected = counterexample()
    broken = {name: int((wide[MEASURED] > wide[name] * (1 + 1e-9)).sum()) for name in wide.columns if name != MEASURED}
    sentences = [
        f"Of the {len(wide)} layers whose residual float64 can hold, {broken[CURVES['corrected']]} are above the "
        f"corrected bound of the layer and {broken[CURVES['corrected_depth']]} above that from the input.",
        f"The printed bounds speak of α = 0. With α = 0.5, as in the paper's Table 1, the residual after "
        f"{setting.depth} layers is {with_skip[MEASURED]:.1e}, far above D.2 ({with_skip[CURVES['printed']]:.1e}) and "
        f"D.3 ({with_skip[CURVES['printed_depth']]:.1e}); the corrected bound with the skip gives "
        f"{with_skip[CURVES['corrected']]:.1e}.",
        f"Lemma D.1 as printed, with scaled scores, also fails at α = 0: two tokens, W_QK = 0, W_V = I, d_k = 256 "
        f"leave {after:.3f}, the printed bound is {printed:.3f}, the corrected one {corrected:.3f}.",
        f"{table['rows_within_assumption'].min():.0%} of the rows of scores, in the layer with the fewest, span at "
        f"most {SPAN}, as the proofs assume.",
        _bend(table),
        f"Width {setting.width} and {setting.tokens} tokens of size {setting.token_size:g} flatter the bound from the "
        "input, which grows at usual widths; hopfield-contraction shows it there, beside a bound that follows the "
        "residual.",
    ]
    summary = wide.reset_index()
    summary = summary[summary["depth"].isin([1, 2, 4, 8, setting.depth])]
    return Result(
        table=table,
        chart=bounds_chart(table),
        sentences=sentences,
        reading_aid="A true bound lies above the black line. Solid: corrected; dashed: as printed. The two darker "
        "colours start from the residual of the layer before, the two lighter ones from the network's input alone.",
        summary=summary.map(lambda v: f"{v:.1e}" if isinstance(v, float) else v).rename_axis(columns=None),
        settings={**setting.__dict__, "span": SPAN},
    )

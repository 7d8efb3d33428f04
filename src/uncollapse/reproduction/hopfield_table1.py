"""Appendix Table 1 of the first paper: the residual ratio of attention-only ViT-T by depth, on CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from uncollapse.attention import AttentionOnly, ScoreRule
from uncollapse.attention.network import INITIALISATIONS, AttentionLayer
from uncollapse.metrics import residual_ratio
from uncollapse.training.images import ImageCollator, load_images

from .artefact import REPRODUCED, TREND
from .cells.measured import round_to
from .figure import Result, Size
from .printed import TABLE1

COLUMNS = ["depth", "rule", "alpha", "alpha_hidden", "start", "init", "layernorm", "projection", "dtype"]
CHOICE = ["init", "layernorm", "projection"]
NETWORK = ["rule", "alpha", "alpha_hidden", "start"]
FLOOR = 2e-6  # float32 cannot tell smaller ratios from rounding: the printed ones stay at 1.8e-6 from depth 4 on
NEAR = 0.3  # powers of ten: nearer than that, a choice reproduces the table
PLAIN, SKIP, HIDDEN, BOTH = (0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)  # alpha, alpha'


@dataclass(frozen=True)
class Setting:
    """Sizes and choices."""

    data: str = "cifar-10"
    images: int = 4
    image_size: int = 224
    patch_size: int = 16
    depth: int = 12
    heads: int = 3
    width: int = 192
    seeds: int = 3
    inits: tuple[str, ...] = ("timm", "xavier", "torch")
    dtypes: tuple[str, ...] = ("float32", "float64")


SMALLEST = Setting("digits", images=2, image_size=16, patch_size=4, depth=3, heads=2, width=16, seeds=1)


def networks() -> Iterator[tuple[ScoreRule, float, float, list[str]]]:
    """Rule, alpha, alpha' and the starts that it stands for; without alpha' both starts are the same network."""
    for alpha, hidden in (PLAIN, SKIP, HIDDEN, BOTH):
        if hidden == 0.0:
            yield ScoreRule.hopfield(0.0), alpha, hidden, ["zero", "raw"]
        else:
            yield ScoreRule.hopfield(hidden, "zero"), alpha, hidden, ["zero"]
            yield ScoreRule.hopfield(hidden, "raw"), alpha, hidden, ["raw"]
    yield ScoreRule.realformer(), 0.0, 1.0, ["raw"]
    yield ScoreRule.revit(0.5), 0.0, 0.5, ["raw"]


def embedded(pixels: Tensor, setting: Setting, init: str) -> Tensor:
    """Images (B, C, S, S) as ViT's tokens (B, 1 + patches, width): patches, a class token, positions; all fresh."""
    size = setting.patch_size
    patches = nn.functional.unfold(pixels, size, stride=size).mT  # (B, patches, C size^2)
    linear = nn.Linear(patches.shape[-1], setting.width)
    initialise = INITIALISATIONS[init]
    if initialise is not None:
        initialise(linear)
        nn.init.zeros_(linear.bias)
    first = nn.init.trunc_normal_(torch.empty(1, 1, setting.width), std=0.02)
    positions = nn.init.trunc_normal_(torch.empty(1, 1 + patches.shape[1], setting.width), std=0.02)
    tokens: Tensor = torch.cat([first.expand(len(pixels), -1, -1), linear(patches)], dim=1) + positions
    return tokens


def join_projections(network: AttentionOnly, init: str) -> None:
    """Draw W_Q, W_K and W_V of each layer as one matrix of three times the height, as most ViTs hold them."""
    for layer in cast("list[AttentionLayer]", [*network.layers]):
        parts = (layer.query, layer.key, cast(nn.Linear, layer.value))
        joint = nn.Linear(parts[0].in_features, 3 * parts[0].out_features)
        initialise = INITIALISATIONS[init]
        if initialise is not None:
            initialise(joint)
            nn.init.zeros_(joint.bias)
        for part, weight, bias in zip(parts, joint.weight.chunk(3), joint.bias.chunk(3), strict=True):
            part.load_state_dict({"weight": weight, "bias": bias})


def projections(init: str) -> list[tuple[str, list[str]]]:
    """How to draw W_Q, W_K and W_V, and the choices it stands for: only Xavier's rule looks at a matrix's height."""
    if init == "xavier":
        return [("separate", ["separate"]), ("joint", ["joint"])]
    return [("separate", ["separate", "joint"])]


def ratios_table(setting: Setting, tick: Callable[[], object]) -> pd.DataFrame:
    """Mean and spread (standard deviation) over images and seeds of the residual ratio after each layer."""
    data = load_images(setting.data)
    items = [data.valid[i] for i in range(setting.images)]
    pixels = ImageCollator(setting.image_size, data.mean, data.std)(items)["pixel_values"]
    found: dict[tuple[object, ...], list[np.ndarray]] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products as small as these are no faster on several
    try:
        with torch.random.fork_rng(), torch.no_grad():
            for init, norm, seed in product(setting.inits, (True, False), range(setting.seeds)):
                for drawn, choices in projections(init):
                    torch.manual_seed(seed)
                    tokens = embedded(pixels, setting, init)
                    network = AttentionOnly(setting.depth, setting.width, setting.heads, layer_norm=norm, init=init)
                    if drawn == "joint":
                        join_projections(network, init)
                    for key, ratios in _ratios(network, tokens, setting.dtypes, tick):
                        for choice in choices:
                            found.setdefault((*key[:4], init, norm, choice, key[4]), []).append(ratios)
    finally:
        torch.set_num_threads(threads)
    rows = []
    for row, seeds in found.items():
        pooled = np.concatenate(seeds, axis=1)
        rows += [(depth, *row, r.mean(), r.std(), len(seeds)) for depth, r in enumerate(pooled, start=1)]
    table = pd.DataFrame(rows, columns=[*COLUMNS, "mean", "spread", "seeds"])
    return table.assign(**{name: table[name].map(round_to) for name in ("mean", "spread")})


def _ratios(
    network: AttentionOnly, tokens: Tensor, dtypes: Sequence[str], tick: Callable[[], object]
) -> Iterator[tuple[tuple[str, float, float, str, str], np.ndarray]]:
    """Ratios (depth, images) of every rule on the same weights, by rule, alpha, alpha', start and dtype."""
    for dtype in dtypes:
        network = network.to(getattr(torch, dtype))
        for rule, alpha, hidden, starts in networks():
            network.rule, network.alpha = rule, alpha
            by_layer = [residual_ratio(x).double().numpy() for x in network(tokens.to(getattr(torch, dtype)))]
            for start in starts:
                yield (rule.name, alpha, hidden, start, dtype), np.stack(by_layer)
            tick()


def distances(table: pd.DataFrame) -> pd.DataFrame:
    """How far each choice and network is from each printed column, in powers of ten.

    The distance is the root mean square over the depths of the difference of log10(max(ratio, FLOOR)), in float32.
    """
    own = table[table["dtype"] == "float32"]
    rows = []
    for column, printed in TABLE1.items():
        aim = pd.Series({depth: max(value, FLOOR) for depth, value in enumerate(printed, start=1)})
        for key, group in own.groupby([*CHOICE, *NETWORK], sort=False):
            mean = group.set_index("depth")["mean"].clip(lower=FLOOR)
            gap = np.log10(mean) - np.log10(aim.loc[mean.index])
            rows.append((column, *key, float(np.sqrt((gap**2).mean()))))
    return pd.DataFrame(rows, columns=["column", *CHOICE, *NETWORK, "distance"])


def nearest(far: pd.DataFrame) -> pd.DataFrame:
    """Distance of each choice to both columns at once, nearest first.

    It is the root mean square of the plain network's distance to the first column and of that of the nearest network
    with the skip to the second.
    """
    plain, printed = TABLE1
    first = far[(far["column"] == plain) & is_cell(far, *PLAIN) & (far["start"] == "zero")]
    second = far[(far["column"] == printed) & (far["rule"] == "hopfield") & (far["alpha"] > 0)]
    second = second.sort_values("distance", kind="stable").drop_duplicates(CHOICE)
    merged = first[[*CHOICE, "distance"]].merge(second, on=CHOICE, suffixes=("", "_second"))
    both = np.sqrt((merged["distance"] ** 2 + merged["distance_second"] ** 2) / 2)
    return merged.assign(both=both).sort_values("both", kind="stable").reset_index(drop=True)


def is_cell(table: pd.DataFrame, alpha: float, hidden: float) -> pd.Series[bool]:
    """Rows of rule hopfield with these two numbers."""
    return (table["rule"] == "hopfield") & (table["alpha"] == alpha) & (table["alpha_hidden"] == hidden)


def sentences(table: pd.DataFrame, ranked: pd.DataFrame, far: pd.DataFrame) -> list[str]:
    """What the table shows, computed from it."""
    best, last = ranked.iloc[0], int(table["depth"].max())
    chosen = table[(table[CHOICE] == best[CHOICE]).all(axis=1)]
    end = chosen[(chosen["depth"] == last) & (chosen["start"] == "zero")]
    final = {
        (pair, dtype): end.loc[is_cell(end, *pair) & (end["dtype"] == dtype), "mean"].item()
        for pair in (PLAIN, SKIP, HIDDEN, BOTH)
        for dtype in ("float32", "float64")
    }
    low, high = (final[pair, "float64"] for pair in (HIDDEN, SKIP))
    doer = "alpha (the visible skip)" if high > low else "alpha' (the hidden state)"
    every, alone = _who_does_the_work(table, last), _skip_distance(best, far)
    return [
        f"Nearest to the two printed columns: init {best['init']}, {_norm(best['layernorm'])}, {best['projection']} "
        f"projections, {best['both']:.2f} powers of ten away (root mean square of log10 over the depths, both columns, "
        f"ratios below {FLOOR:g} taken as {FLOOR:g}); farthest: {_named(ranked.iloc[-1])}, "
        f"{ranked.iloc[-1]['both']:.2f}.",
        f"There the second column is nearest to alpha {best['alpha']:g}, alpha' {best['alpha_hidden']:g}, start "
        f"{best['start']} ({best['distance_second']:.3f} away); alpha 0.5 without alpha' is {alone:.3f} "
        f"away. Nearer than {NEAR:g} over both columns counts as reproduced.",
        f"After {last} layers there: alpha alone {high:.2g}, alpha' alone {low:.2g}, both "
        f"{final[BOTH, 'float64']:.2g}, neither {final[PLAIN, 'float64']:.1e} (float64): {doer} does the work; {every}",
        _floor(final[PLAIN, "float32"], final[PLAIN, "float64"]),
    ]


def _who_does_the_work(table: pd.DataFrame, last: int) -> str:
    """In how many of the choices alpha alone keeps tokens further apart than alpha' alone."""
    end = table[(table["depth"] == last) & (table["dtype"] == "float64") & (table["start"] == "zero")]
    skip, hidden = (end[is_cell(end, *pair)].set_index(CHOICE)["mean"] for pair in (SKIP, HIDDEN))
    return f"alpha alone ends above alpha' alone in {int((skip > hidden).sum())} of {len(skip)} choices."


def _skip_distance(best: pd.Series[object], far: pd.DataFrame) -> float:
    """How far the network with alpha alone is from the second printed column, at the nearest choice."""
    own = far[(far[CHOICE] == best[CHOICE]).all(axis=1) & (far["column"] == [*TABLE1][1]) & is_cell(far, *SKIP)]
    return float(own["distance"].iloc[0])


def _floor(single: float, double: float) -> str:
    """What float32 leaves of plain attention, beside float64."""
    start = f"Plain attention ends at {single:.1e} in float32 and at {double:.1e} in float64"
    if double < single / 100:
        return f"{start}: the printed floor near 1.8e-6 is rounding of float32, not a property of the network."
    return f"{start}: this network is not deep enough to reach the rounding of float32."


def _norm(there: bool) -> str:
    return "LayerNorm" if there else "no LayerNorm"


def _named(row: pd.Series[object]) -> str:
    return f"{row['init']}, {_norm(bool(row['layernorm']))}, {row['projection']}"


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """The table, the nearest choice, and its curves beside the printed ones."""
    from uncollapse.report.table1_chart import table1_chart

    setting = Setting() if size == "full" else SMALLEST
    table = ratios_table(setting, tick)
    far = distances(table)
    ranked = nearest(far)
    best = ranked.iloc[0]
    chosen = table[(table[CHOICE] == best[CHOICE]).all(axis=1) & (table["dtype"] == "float32")]
    printed = pd.DataFrame(
        [(name, depth, value) for name, values in TABLE1.items() for depth, value in enumerate(values, start=1)],
        columns=["network", "depth", "mean"],
    )
    ours = chosen[(chosen["start"] == "zero") | (chosen["rule"] != "hopfield")].assign(network=_network_names)
    summary = printed[printed["depth"] <= setting.depth].pivot(index="depth", columns="network", values="mean")
    summary = summary.join(ours.pivot(index="depth", columns="network", values="mean")).reset_index()
    return Result(
        table=table,
        chart=table1_chart(ours[["network", "depth", "mean", "spread"]], printed),
        sentences=sentences(table, ranked, far),
        reading_aid="Solid: ours, at the choice of initialisation, LayerNorm and projection that comes nearest, start "
        "zero; dashed: as printed. 1: tokens as different as can be; towards 0: all alike.",
        summary=summary.map(lambda v: f"{v:.3g}" if isinstance(v, float) else v),
        settings={**asdict(setting), "floor": FLOOR, "distances": ranked.to_dict("records")},
        verdict=REPRODUCED if ranked.iloc[0]["both"] < NEAR else TREND,
    )


def _network_names(table: pd.DataFrame) -> pd.Series[str]:
    names = {PLAIN: "neither", SKIP: "alpha only", HIDDEN: "alpha' only", BOTH: "alpha and alpha'"}
    words = {"realformer": "RealFormer", "revit": "ReViT"}
    named = [
        words.get(rule) or names[alpha, hidden]
        for rule, alpha, hidden in zip(table["rule"], table["alpha"], table["alpha_hidden"], strict=True)
    ]
    return pd.Series(named, index=table.index)

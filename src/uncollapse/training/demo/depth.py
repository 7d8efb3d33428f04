"""How alike the tokens of attention-only networks become with depth, at initialisation (the experiment of Table 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from uncollapse.attention import AttentionOnly, ScoreRule
from uncollapse.attention.rule import Skip
from uncollapse.metrics import residual_ratio
from uncollapse.metrics.similarity import unit_tokens

DEPTH, WIDTH, HEADS = 12, 192, 3  # those of ViT-Tiny, as in Table 1
SKIP: Skip = "normed"  # without another residual the stream would shrink by alpha in every layer
COLLAPSED = 0.01  # below this the tokens differ by less than a hundredth of their size


@dataclass(frozen=True)
class NetworkVariant:
    """One attention-only network: a score rule and a visible skip."""

    name: str
    rule: ScoreRule
    alpha: float


PLAIN, HIDDEN_ONLY, SKIP_ONLY, BOTH = "self-attention", "hidden state α′ only", "skip α only", "hopfield: α and α′"
VARIANTS = (
    NetworkVariant(PLAIN, ScoreRule.hopfield(0.0), alpha=0.0),
    NetworkVariant(HIDDEN_ONLY, ScoreRule.hopfield(0.5), alpha=0.0),
    NetworkVariant("RealFormer", ScoreRule.realformer(), alpha=0.0),
    NetworkVariant("ReViT", ScoreRule.revit(0.5), alpha=0.0),
    NetworkVariant(SKIP_ONLY, ScoreRule.hopfield(0.0), alpha=0.5),
    NetworkVariant(BOTH, ScoreRule.hopfield(0.5), alpha=0.5),
)


def random_tokens(ids: Tensor, width: int) -> Tensor:
    """Embed token ids (B, T) as vectors (B, T, width) with random token and position embeddings."""
    embedding = torch.randn(int(ids.max()) + 1, width, dtype=torch.float64)
    positions = torch.randn(ids.shape[1], width, dtype=torch.float64)
    return embedding[ids] + positions


def tokens_by_depth(
    ids: Tensor,
    variant: NetworkVariant,
    seed: int,
    *,
    depth: int = DEPTH,
    layer_norm: bool = True,
    init: str = "xavier",
) -> list[Tensor]:
    """The tokens (B, T, WIDTH) that enter a network and those after each layer, in float64.

    Variants share their weights at equal seeds.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = random_tokens(ids, WIDTH)
        network = AttentionOnly(
            depth, WIDTH, HEADS, alpha=variant.alpha, skip=SKIP, rule=variant.rule, layer_norm=layer_norm, init=init
        ).to(x.dtype)
    with torch.no_grad():
        return [x, *network(x)]


def residual_by_depth(
    ids: Tensor,
    *,
    depth: int = DEPTH,
    layer_norm: bool = True,
    init: str = "xavier",
    seeds: int = 3,
    variants: Iterable[NetworkVariant] = VARIANTS,
    tick: Callable[[], object] = lambda: None,
) -> pd.DataFrame:
    """Residual ratio (Eq. 44) after each layer, one row per network and depth.

    `mean` and `spread` (standard deviation) are over the seeds; `tick` is called after each network.
    """
    rows = []
    for seed in range(seeds):
        for variant in variants:
            layers = tokens_by_depth(ids, variant, seed, depth=depth, layer_norm=layer_norm, init=init)[1:]
            keep, _ = variant.rule.coefficients(2)
            ratios = [residual_ratio(tokens).mean().item() for tokens in layers]
            rows += [(variant.name, variant.alpha, keep, n, ratio) for n, ratio in enumerate(ratios, start=1)]
            tick()
    table = pd.DataFrame(rows, columns=["attention", "alpha", "keep", "depth", "ratio"])
    grouped = table.groupby(["attention", "alpha", "keep", "depth"], sort=False)["ratio"]
    result = grouped.agg(mean="mean", spread=lambda r: r.std(ddof=0), seeds="count").reset_index()
    return result.assign(init=init, layer_norm=layer_norm)


def cosines_by_depth(ids: Tensor, variant: NetworkVariant, layers: Sequence[int]) -> pd.DataFrame:
    """The cosine of every two tokens of one sequence (1, T) after some layers; layer 0 is what enters the network.

    Columns layer, row, column (tokens from 1) and cosine.
    """
    states = tokens_by_depth(ids, variant, 0, depth=max(*layers, 1))
    tables = []
    for layer in layers:
        unit = unit_tokens(states[layer][0])
        place = pd.MultiIndex.from_product([range(1, len(unit) + 1)] * 2, names=["row", "column"])
        cosines = (unit @ unit.mT).clamp(-1.0, 1.0).flatten().tolist()
        tables.append(pd.DataFrame({"layer": layer, "cosine": cosines}, index=place).reset_index())
    return pd.concat(tables, ignore_index=True)


def collapse_depth(table: pd.DataFrame, attention: str) -> int | None:
    """The first depth at which a network's mean residual ratio is below `COLLAPSED`; None if it never is."""
    below = table[(table["attention"] == attention) & (table["mean"] < COLLAPSED)]
    return None if below.empty else int(below["depth"].min())

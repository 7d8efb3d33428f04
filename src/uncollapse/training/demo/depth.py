"""The residual ratio of attention-only networks by depth, at initialisation (the experiment of Table 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from uncollapse.attention import AttentionOnly, ScoreRule
from uncollapse.attention.rule import Skip
from uncollapse.metrics import residual_ratio

COLLAPSED = 0.01  # below this the tokens differ by less than a hundredth of their size


@dataclass(frozen=True)
class NetworkVariant:
    """One attention-only network: a score rule and a visible skip."""

    name: str
    rule: ScoreRule
    alpha: float


HIDDEN_ONLY, SKIP_ONLY, BOTH = "hidden state α′ only", "skip α only", "hopfield: α and α′"
VARIANTS = (
    NetworkVariant("self-attention", ScoreRule.hopfield(0.0), alpha=0.0),
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


def residual_by_depth(
    ids: Tensor,
    *,
    depth: int = 12,
    width: int = 192,
    heads: int = 3,
    layer_norm: bool = True,
    skip: Skip = "normed",  # without another residual the stream would shrink by alpha in every layer
    init: str = "xavier",
    seeds: int = 3,
    variants: Iterable[NetworkVariant] = VARIANTS,
    tick: Callable[[], object] = lambda: None,
) -> pd.DataFrame:
    """Residual ratio (Eq. 44) after each layer in float64, one row per network and depth.

    All variants of one seed share their weights. `mean` and `spread` (standard deviation) are over the seeds; `tick` is
    called after each network. Width, heads and depth default to those of ViT-Tiny, as in Table 1.
    """
    rows = []
    with torch.random.fork_rng():
        for seed in range(seeds):
            for variant in variants:
                torch.manual_seed(seed)
                x = random_tokens(ids, width)
                network = AttentionOnly(
                    depth,
                    width,
                    heads,
                    alpha=variant.alpha,
                    skip=skip,
                    rule=variant.rule,
                    layer_norm=layer_norm,
                    init=init,
                ).to(x.dtype)
                with torch.no_grad():
                    ratios = [residual_ratio(tokens).mean().item() for tokens in network(x)]
                keep, _ = variant.rule.coefficients(2)
                rows += [(variant.name, variant.alpha, keep, n, ratio) for n, ratio in enumerate(ratios, start=1)]
                tick()
    table = pd.DataFrame(rows, columns=["attention", "alpha", "keep", "depth", "ratio"])
    grouped = table.groupby(["attention", "alpha", "keep", "depth"], sort=False)["ratio"]
    result = grouped.agg(mean="mean", spread=lambda r: r.std(ddof=0), seeds="count").reset_index()
    return result.assign(init=init, layer_norm=layer_norm)


def collapse_depth(table: pd.DataFrame, attention: str) -> int | None:
    """The first depth at which a network's mean residual ratio is below `COLLAPSED`; None if it never is."""
    below = table[(table["attention"] == attention) & (table["mean"] < COLLAPSED)]
    return None if below.empty else int(below["depth"].min())


def findings(table: pd.DataFrame) -> list[str]:
    """One sentence per network: from which layer on it is collapsed, or its final residual ratio."""
    last = int(table["depth"].max())
    sentences = []
    for attention, rows in table.groupby("attention", sort=False):
        depth, final = collapse_depth(table, str(attention)), rows.loc[rows["depth"] == last, "mean"].item()
        if depth is None:
            sentences.append(f"{attention}: tokens stay apart; residual ratio {final:.2g} after {last} layers.")
        else:
            sentences.append(f"{attention}: collapsed (below {COLLAPSED:g}) from layer {depth} on.")
    return sentences


def which_knob(final: pd.DataFrame) -> str:
    """One sentence on which of alpha and alpha' keeps tokens apart; `final` has the rows of the last layer."""
    skip, hidden, both = (
        final.loc[final["attention"] == name, "mean"].item() for name in (SKIP_ONLY, HIDDEN_ONLY, BOTH)
    )
    winner = "skip α" if skip > hidden else "hidden state α′"
    return (
        f"After {final['depth'].iloc[0]} layers the skip α alone leaves a residual ratio of {skip:.2g}, the hidden "
        f"state α′ alone {hidden:.2g}, both together {both:.2g}: the {winner} is what keeps tokens apart here."
    )

"""The networks of appendix Table 1: attention-only ViTs at initialisation on real images, and their residual ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from uncollapse.attention import AttentionOnly, ScoreRule
from uncollapse.attention.network import INITIALISATIONS, AttentionLayer
from uncollapse.data.images import ImageCollator, load_images
from uncollapse.metrics import norm_1_inf, residual_ratio

from ..cells.measured import round_to

COLUMNS = ["depth", "rule", "alpha", "alpha_hidden", "start", "init", "layernorm", "projection", "dtype"]
CHOICE = ["init", "layernorm", "projection"]
NETWORK = ["rule", "alpha", "alpha_hidden", "start"]
PLAIN, SKIP, HIDDEN, BOTH = (0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)  # alpha, alpha'


@dataclass(frozen=True)
class Table1Setting:
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


SMALLEST = Table1Setting("digits", images=2, image_size=16, patch_size=4, depth=3, heads=2, width=16, seeds=1)


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


def embedded(pixels: Tensor, setting: Table1Setting, init: str) -> Tensor:
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


def distinct(table: pd.DataFrame) -> pd.DataFrame:
    """The table without the choices that are another one under a second name, see `projections`."""
    kept = {(init, drawn) for init in table["init"].unique() for drawn, _ in projections(init)}
    return table[[pair in kept for pair in zip(table["init"], table["projection"], strict=True)]]


def pixels_of(setting: Table1Setting) -> Tensor:
    """The first images of the validation set: (B, C, S, S)."""
    data = load_images(setting.data)
    items = [data.valid[i] for i in range(setting.images)]
    return ImageCollator(setting.image_size, data.mean, data.std)(items)["pixel_values"]


def built(
    pixels: Tensor, setting: Table1Setting, init: str, norm: bool, projection: str, seed: int
) -> tuple[Tensor, AttentionOnly]:
    """Tokens and network of one seed."""
    torch.manual_seed(seed)
    tokens = embedded(pixels, setting, init)
    network = AttentionOnly(setting.depth, setting.width, setting.heads, layer_norm=norm, init=init, skip="normed")
    if projection == "joint":
        join_projections(network, init)
    return tokens, network


@contextmanager
def _apart() -> Iterator[None]:
    """Without gradients, with random numbers of its own, and on one core: products as small as these gain nothing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(), torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)


def ratios_table(setting: Table1Setting, tick: Callable[[], object]) -> pd.DataFrame:
    """Mean and spread (standard deviation) over images and seeds of the residual ratio after each layer."""
    pixels = pixels_of(setting)
    found: dict[tuple[object, ...], list[np.ndarray]] = {}
    with _apart():
        for init, norm, seed in product(setting.inits, (True, False), range(setting.seeds)):
            for drawn, choices in projections(init):
                tokens, network = built(pixels, setting, init, norm, drawn, seed)
                for key, ratios in _ratios(network, tokens, setting.dtypes, tick):
                    for choice in choices:
                        found.setdefault((*key[:4], init, norm, choice, key[4]), []).append(ratios)
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


def floor_one_by_one(setting: Table1Setting, choice: pd.Series[Any]) -> float:
    """Plain attention's last ratio in float32 if the mean token is a sum taken token after token, as numpy does it."""
    pixels, found = pixels_of(setting), []
    with _apart():
        for seed in range(setting.seeds):
            tokens, network = built(pixels, setting, choice["init"], choice["layernorm"], choice["projection"], seed)
            network.rule, network.alpha = ScoreRule.self_attention(), 0.0
            x = network(tokens)[-1]
            mean = torch.from_numpy(np.cumsum(x.numpy(), axis=-2)[..., -1:, :]) / x.shape[-2]
            found.append(norm_1_inf(x - mean) / norm_1_inf(x))
    return float(torch.cat(found).mean())

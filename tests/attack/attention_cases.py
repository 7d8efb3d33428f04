"""Random layers of attention: shapes, rules, masks, dtypes, layouts and modes, each drawn from a number."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import uncollapse as uc
from tests.attention.parity import RULES
from uncollapse.attention._dropout import draw_seed, dropout_factors
from uncollapse.attention._reversible import LIMIT
from uncollapse.attention.functional import can_reverse
from uncollapse.attention.reference import masked, softmax_of_visible

# Largest error relative to 1 + the largest number beside it. float32: an entry sums up to 130 products in each of up to
# five layers, and RealFormer's scores grow to about 50, which the exponential multiplies into its error. In 16 bits the
# gradient of a score is a difference of numbers that were rounded before, and sums over all rows: with a single key it
# should be 0 and comes out as the sum of their rounding.
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 0.3}
REVERSIBLE = tuple(sorted(name for name, rule in RULES.items() if can_reverse(rule)))
MODES = ("train", "train", "train", "no_grad", "inference", "autocast")
MASKS = ("none", "bool", "additive", "learned", "padding", "row", "hides whole rows")


@dataclass(frozen=True)
class Case:
    """What one number stands for."""

    number: int
    rules: tuple[str, ...] = tuple(sorted(RULES))

    def run(self, backend: str, exact: bool = False) -> list[Tensor]:
        """Outputs, scores and gradients in float64; `exact` computes in float64 from the same rounded inputs."""
        draw = random.Random(self.number)
        maker = torch.Generator().manual_seed(self.number)
        dtype = draw.choice(list(ROUNDING))
        mode = draw.choice(MODES)
        if mode == "autocast":
            dtype = torch.float32
        batch, groups = draw.randint(1, 2), draw.randint(1, 2)
        heads = groups * draw.randint(1, 3)
        queries = draw.choice([1, 2, 17, 63, 64, 65, 130])
        causal = draw.random() < 0.3  # then in all layers: later ones would need scores that earlier ones leave out
        keys = queries if causal else draw.choice([1, 3, 64, 100, queries])
        sizes = draw.choice([1, 3, 8, 16]), draw.choice([1, 2, 8, 24])
        rounded = torch.bfloat16 if mode == "autocast" else dtype

        def tensor(heads: int, tokens: int, size: int) -> Tensor:
            made = _laid_out(draw, maker, batch, heads, tokens, size).to(rounded)
            made = made.to(torch.float64 if exact else dtype)
            return made.requires_grad_(draw.random() < 0.8)

        layers, outs, masks, state = [], [], [], None
        rule = RULES[draw.choice(self.rules)]
        torch.manual_seed(self.number)  # of the dropout
        with _mode(mode, exact):
            for _ in range(draw.randint(1, 5)):
                layer = tensor(heads, queries, sizes[0]), tensor(groups, keys, sizes[0]), tensor(groups, keys, sizes[1])
                shape = (batch, heads, queries, keys)
                mask = {"is_causal": True} if causal else _mask(draw, maker, shape, torch.float64 if exact else dtype)
                how = {"rule": rule, "backend": backend, "enable_gqa": True, **mask}
                how["scale"] = draw.choice([None, None, 0.0, -0.3, 0.7])
                dropped = draw.choice([0.0, 0.0, 0.2, 1.0])
                out, state = uc.hopfield_attention(*layer, state, dropout_p=0.0 if exact else dropped, **how)
                if exact and dropped:
                    out = _with_dropout(state.scores(), layer[2], dropped, **mask)
                layers.append(layer)
                masks += [m for m in mask.values() if isinstance(m, Tensor)]
                outs.append(out)
            scores = state.scores()
        given = [t for t in (*(t for layer in layers for t in layer), *masks) if t.requires_grad]
        if mode in ("train", "autocast") and any(out.requires_grad for out in outs):
            weights = [torch.randn(out.shape, generator=maker, dtype=torch.float64) for out in outs]
            sum((out.double() * weight).sum() for out, weight in zip(outs, weights, strict=True)).backward()
        gradients = [t.grad if t.grad is not None else torch.zeros_like(t) for t in given]
        return [t.detach().clone().double() for t in (*outs, scores, *gradients)]

    @property
    def rounding(self) -> float:
        """The error that is to be expected of this case."""
        draw = random.Random(self.number)
        dtype, mode = draw.choice(list(ROUNDING)), draw.choice(MODES)
        return ROUNDING[torch.bfloat16 if mode == "autocast" else dtype]


def _with_dropout(
    scores: Tensor, v: Tensor, p: float, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """The definition with the weights dropped that the fast backends drop; the reference draws its own."""
    weights = softmax_of_visible(masked(scores, attn_mask, is_causal))
    kept = dropout_factors(draw_seed(p), p, weights.shape, 0, weights.shape[2], weights.device)
    return (weights * kept) @ v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)


def _mode(mode: str, exact: bool) -> Any:
    if mode == "autocast" and not exact:
        return torch.autocast("cpu", torch.bfloat16)
    return {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(mode, nullcontext)()


def _laid_out(draw: random.Random, maker: torch.Generator, batch: int, heads: int, tokens: int, size: int) -> Tensor:
    """Numbers (batch, heads, tokens, size): contiguous, as Hugging Face models give them, strided, or expanded."""
    kind = draw.choice(["contiguous", "swapped", "strided", "expanded"])
    if kind == "swapped":
        return torch.randn(batch, tokens, heads, size, generator=maker, dtype=torch.float64).transpose(1, 2)
    if kind == "strided":
        return torch.randn(batch, heads, tokens, 2 * size, generator=maker, dtype=torch.float64)[..., ::2]
    if kind == "expanded":
        one = torch.randn(batch, 1, tokens, size, generator=maker, dtype=torch.float64)
        return one.expand(batch, heads, tokens, size)
    return torch.randn(batch, heads, tokens, size, generator=maker, dtype=torch.float64)


def _mask(draw: random.Random, maker: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Arguments that hide keys; shapes that broadcast to (B, H, Q, K)."""
    batch, heads, queries, keys = shape
    kind = draw.choice(MASKS)
    shapes = [shape, (1, heads, queries, keys), (queries, keys), (batch, 1, 1, keys), (keys,), (heads, 1, keys)]
    size = draw.choice(shapes)
    if kind == "bool":
        return {"attn_mask": torch.rand(size, generator=maker) > 0.4}
    if kind in ("additive", "learned"):
        mask = torch.randn(size, generator=maker, dtype=torch.float64).to(dtype)
        return {"attn_mask": mask.requires_grad_(kind == "learned")}
    if kind == "padding":
        return {"attn_mask": torch.rand(batch, 1, 1, keys, generator=maker) > 0.3}
    if kind == "row":
        return {"attn_mask": torch.rand(queries, 1, generator=maker) > 0.2}
    if kind == "hides whole rows":
        mask = torch.rand(shape, generator=maker) > 0.4
        mask[:, :, :: max(1, queries // 3)] = False
        return {"attn_mask": mask}
    return {}


def largest_error(number: int, backend: str) -> float:
    """The largest difference from the reference, in units of the rounding to be expected; infinite if one is nan."""
    case = Case(number, REVERSIBLE) if backend == "reversible" else Case(number)
    rounding = max(case.rounding, LIMIT) if backend == "reversible" else case.rounding
    worst = 0.0
    for got, want in zip(case.run(backend), case.run("reference", exact=True), strict=True):
        computed = got != -torch.inf  # scores above the diagonal of causal layers are not
        got, want = got[computed], want[computed]
        if not want.numel():
            continue
        error = ((got - want).abs().max() / (1 + want.abs().max())).item()
        worst = max(worst, error / rounding if error == error else float("inf"))
    return worst

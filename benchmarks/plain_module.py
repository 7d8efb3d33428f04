"""What the conversion of a plain PyTorch module costs beside the same recursion written into the module.

python benchmarks/plain_module.py            a training step of 6 layers, 256 tokens; prints both times and their ratio
python benchmarks/plain_module.py --quick    a small one

Steps of both are interleaved, in alternating order, on one thread, and the best processor time of each is taken, so
that other work disturbs little.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

import uncollapse as uc


class Attention(nn.Module):
    """Attention as people write it; with `state` given back, the recursion is written into it."""

    def __init__(self, width: int, heads: int, written_in: bool) -> None:
        super().__init__()
        self.heads, self.written_in = heads, written_in
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, y: Tensor, x: Tensor, state: uc.HiddenState | None) -> tuple[Tensor, uc.HiddenState | None]:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, -1))
        if self.written_in:
            out, state = uc.hopfield_attention(q, k, v, state, alpha_hidden=0.5, is_causal=True)
            return 0.5 * x + 0.5 * self.proj(out.transpose(1, 2).flatten(2)), state
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2)), None


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, width: int, heads: int, written_in: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, written_in)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, state: uc.HiddenState | None) -> tuple[Tensor, uc.HiddenState | None]:
        out, state = self.attention(self.norm1(x), x, state)
        x = x + out
        return x + self.mlp(self.norm2(x)), state


class Model(nn.Module):
    """A stack of them."""

    def __init__(self, layers: int, width: int, heads: int, written_in: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, heads, written_in) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for block in self.blocks:
            x, state = block(x, state)
        return x


def measured(layers: int, width: int, heads: int, tokens: int, repeats: int) -> tuple[float, float]:
    """Processor seconds of a forward and backward: of the converted module, and with the recursion written in."""
    torch.manual_seed(0)
    written = Model(layers, width, heads, True)
    stock = Model(layers, width, heads, False)
    stock.load_state_dict(written.state_dict())
    x = torch.randn(2, tokens, width)
    converted = uc.convert(stock, alpha=0.5, alpha_hidden=0.5, example=x)
    torch.testing.assert_close(converted(x), written(x), rtol=1e-4, atol=1e-4)
    best = {"converted": float("inf"), "written": float("inf")}
    models = [("converted", converted), ("written", written)]
    for _ in range(repeats):
        models.reverse()  # neither is always the one that finds the other's memory
        for name, model in models:
            start = time.process_time()
            model(x).square().mean().backward()
            best[name] = min(best[name], time.process_time() - start)
    return best["converted"], best["written"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 layers, 64 tokens")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)  # so that other work on the machine disturbs less
    converted, written = measured(2, 64, 2, 64, 5) if quick else measured(6, 256, 4, 256, 60)
    times = f"converted {1000 * converted:.1f} ms, written into the module {1000 * written:.1f} ms"
    print(f"{times}, ratio {converted / written:.3f}")

"""Appendix F: the network as a discretised differential equation, one layer per step.

    tau_v dx/dt = softmax(h) V - x,    tau_h dh/dt = q K^T - h        (Eq. 45, 46)

With rho = dt/tau_v and rho' = dt/tau_h, each of the two derivatives can be taken

- forward:  x_{n+1} = alpha x_n + (1 - alpha) f_n,         alpha = 1 - rho         (Eq. 50, 51)
- backward: x_{n+1} = alpha x_n + (1 - alpha) f_{n+1},     alpha = 1/(1 + rho)     (Eq. 54, 56)
- central:  x_{n+1} = x_{n-1} + 2 (1 - alpha) (f_n - x_n), alpha = 1 - rho

with f = softmax(h) V; the same with alpha' and f = q K^T for h. The central form follows from
(x_{n+1} - x_{n-1}) / (2 dt) = (f_n - x_n) / tau: printed Eq. 60 and 61 have + x_n, + h_n in place of - x_n, - h_n
(they discretise dx/dt = f + x), and Eq. 61 lacks the transpose on K_n.

Layer n has weights of its own, so f_n is evaluated with the weights of layer n: on its input for a forward or central
difference of x, on its output for a backward one, which is therefore the solution of a fixed-point problem.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from .rule import ScoreRule

Difference = Literal["forward", "backward", "central"]
Scheme = tuple[Difference, Difference]


class ScoredLayer(Protocol):
    """What a step needs of a layer."""

    def norm(self, x: Tensor, /) -> Tensor:
        """What enters the attention."""

    def scores(self, x: Tensor, /) -> Tensor:
        """S(x) = q K^T, scaled: (B, H, T, T)."""

    def read(self, hidden: Tensor, x: Tensor, /, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        """softmax(hidden) V(x): (B, T, M)."""


def step_weight(difference: Difference, rho: float) -> float:
    """The weight alpha of the old state that stands for a step rho = dt/tau.

    >>> step_weight("forward", 0.25), step_weight("backward", 1.0)
    (0.75, 0.5)
    """
    return 1.0 / (1.0 + rho) if difference == "backward" else 1.0 - rho


@dataclass(frozen=True)
class Discretisation:
    """Which difference stands for the derivative of the visible and of the hidden state.

    ("forward", "backward") is Modern Hopfield Attention. A backward visible difference is solved by iteration until no
    entry changes by more than `tolerance` times the largest entry, at most `max_iterations` times.
    """

    visible: Difference = "forward"
    hidden: Difference = "backward"
    tolerance: float = 1e-6
    max_iterations: int = 200

    def __post_init__(self) -> None:
        for name in (self.visible, self.hidden):
            if name not in get_args(Difference):
                raise ValueError(f"scheme must name two of {', '.join(get_args(Difference))}, got {name!r}.")
        if "central" in (self.visible, self.hidden):
            warnings.warn(
                "A central difference of a decaying state is unstable: its parasitic solution grows by "
                "rho + sqrt(1 + rho^2) a layer. Use it with small steps 1 - alpha or for study.",
                stacklevel=4,
            )

    @property
    def is_default(self) -> bool:
        return (self.visible, self.hidden) == ("forward", "backward")

    @property
    def order(self) -> int:
        """The power of the step with which the error falls: 2 if both differences are central, else 1."""
        return 2 if self.visible == self.hidden == "central" else 1

    def check(self, rule: ScoreRule, layer_norm: bool, backend: str) -> None:
        """Raise where the scheme cannot go together with the rule, a LayerNorm or a backend."""
        if not self.is_default and rule.name != "hopfield":
            raise ValueError(f"scheme {(self.visible, self.hidden)} goes with rule 'hopfield', not {rule.name!r}.")
        if not self.is_default and backend != "auto":
            raise ValueError(
                f"backend {backend!r} goes with scheme ('forward', 'backward'); this scheme has its own steps."
            )
        if layer_norm and self.visible != "forward":
            raise ValueError(f"layer_norm=True needs a forward visible difference, got {self.visible!r}.")


def integrate(
    layers: Iterable[ScoredLayer],
    x: Tensor,
    scheme: Discretisation,
    alpha: float,
    rule: ScoreRule,
    normed_skip: bool = False,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> list[Tensor]:
    """Tokens (B, T, M) after every layer, for any pair of differences.

    With a norm, which a forward visible difference alone may have, alpha multiplies the tokens or, with `normed_skip`,
    what the norm makes of them.
    """
    tokens: list[Tensor] = []
    hidden = _Hidden(scheme.hidden, rule)
    before = None  # y_{n-1}, for the central difference
    for layer in layers:
        y = layer.norm(x)

        def drive(at: Tensor, layer: ScoredLayer = layer) -> Tensor:
            return layer.read(hidden.at(layer, at), at, attn_mask=attn_mask, is_causal=is_causal)

        if scheme.visible == "backward":
            x = at = _fixed_point(lambda new, y=y, drive=drive: alpha * y + (1.0 - alpha) * drive(new), y, scheme)  # type: ignore[misc]
        elif scheme.visible == "central" and before is not None:
            x, at = before + 2.0 * (1.0 - alpha) * (drive(y) - y), y  # Eq. 60, sign corrected
        else:
            skipped = y if normed_skip else x
            x, at = alpha * skipped + (1.0 - alpha) * drive(y), y  # Eq. 50; also the first central step
        hidden.advance(layer, at)
        before = y
        tokens.append(x)
    return tokens


class _Hidden:
    """h of the layer in hand, as a function of the tokens at which the layer is evaluated."""

    def __init__(self, difference: Difference, rule: ScoreRule) -> None:
        self.difference, self.rule = difference, rule
        self.n = 1
        self.now: Tensor | None = None  # backward: h_{n-1}; otherwise h_n, known before the layer is evaluated
        self.before: Tensor | None = None  # h_{n-1}, for the central difference

    def at(self, layer: ScoredLayer, tokens: Tensor) -> Tensor:
        if self.difference == "backward":
            keep, take = self.rule.coefficients(self.n)
            scores = layer.scores(tokens)
            return take * scores if self.now is None else keep * self.now + take * scores  # Eq. 54, 59
        if self.now is None:  # an explicit h_1 has no layer before it: it is the start
            scores = layer.scores(tokens)
            return torch.zeros_like(scores) if self.rule.start == "zero" else scores
        return self.now

    def advance(self, layer: ScoredLayer, tokens: Tensor) -> None:
        """Go to the next layer; `tokens` are those at which this one was evaluated."""
        h = self.at(layer, tokens)
        if self.difference == "backward":
            self.now = h
        else:
            keep, take = self.rule.keep, self.rule.take
            if self.difference == "central" and self.before is not None:
                self.now = self.before + 2.0 * take * (layer.scores(tokens) - h)  # Eq. 61, sign corrected
            else:
                self.now = keep * h + take * layer.scores(tokens)  # Eq. 51, 57; also the first central step
            self.before = h
        self.n += 1


def _fixed_point(update: Callable[[Tensor], Tensor], x: Tensor, scheme: Discretisation) -> Tensor:
    """The solution of x = update(x), by iteration from x; gradients flow through every iteration."""
    for _ in range(scheme.max_iterations):
        new = update(x)
        change, size = (new - x).detach().abs().max(), new.detach().abs().max()
        x = new
        if change <= scheme.tolerance * size:
            return x
    raise RuntimeError(
        f"the backward visible step did not converge: after {scheme.max_iterations} iterations the tokens still change "
        f"by {change / size:.1e} of their size (tolerance {scheme.tolerance:.1e}); "
        "raise alpha, shrink the value weights, or raise max_iterations."
    )

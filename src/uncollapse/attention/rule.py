"""ScoreRule: how attention scores are inherited from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

Start = Literal["zero", "raw"]
Skip = Literal[
    "stream",  # alpha times the tokens before the norm, beside the block's own residual
    "normed",  # alpha times what enters the attention, beside the block's own residual
    "replace",  # alpha times the tokens before the norm, in place of the block's own residual
]


@dataclass(frozen=True)
class ScoreRule:
    """How scores before the softmax are inherited over the layers n = 1, 2, ...

        H_n = keep H_{n-1} + take S_n,    S_n = scaled Q_n K_n^T

    Use a named rule: `hopfield`, `self_attention`, `realformer` or `revit`. A coefficient is a number, or a tensor of
    shape () or (H,) that gets its gradient: one value for all heads, or one for each.

    >>> ScoreRule.hopfield(0.5).coefficients(1)
    (0.0, 0.5)
    >>> ScoreRule.realformer().coefficients(7)
    (1.0, 1.0)
    """

    name: str
    keep: float | Tensor
    take: float | Tensor
    start: Start = "raw"  # layer 1 has no H_0: "zero" gives H_1 = take S_1, "raw" gives H_1 = S_1
    mean: bool = False  # H_n is the mean of S_1 .. S_n; keep and take are not used
    alpha: float = 0.0  # the visible skip that belongs to the rule, used where none is given
    learned: bool = False  # keep and take are where parameters start, which `convert` gives each layer

    def __post_init__(self) -> None:
        if self.start not in get_args(Start):
            raise ValueError(f"start must be one of {', '.join(get_args(Start))}, got {self.start!r}.")
        for name in ("keep", "take", "alpha"):
            value = getattr(self, name)
            if not is_tensor(value):
                check_share(name, value)
                object.__setattr__(self, name, float(value))  # also of numpy's numbers, which JSON refuses

    @classmethod
    def hopfield(cls, alpha_hidden: float | Tensor | str = 0.5, start: Start = "zero") -> ScoreRule:
        """Modern Hopfield Attention (Eq. 54): H_n = alpha' H_{n-1} + (1 - alpha') S_n.

        In `uncollapse.convert` alpha' may be "learned", or "learned:0.1" with another start than 0.5.
        """
        if isinstance(alpha_hidden, str):
            keep = learned_start("alpha_hidden", alpha_hidden)
            return cls("hopfield", keep=keep, take=1.0 - keep, start=start, alpha=0.5, learned=True)
        check_coefficient("alpha_hidden", alpha_hidden)
        return cls("hopfield", keep=alpha_hidden, take=1.0 - alpha_hidden, start=start, alpha=0.5)

    @classmethod
    def self_attention(cls) -> ScoreRule:
        """Ordinary attention: H_n = S_n, nothing is inherited."""
        return cls("self_attention", keep=0.0, take=1.0)

    @classmethod
    def realformer(cls, mean: bool = False) -> ScoreRule:
        """RealFormer (He et al., 2020): H_n = H_{n-1} + S_n, or the running mean of the scores."""
        return cls("realformer", keep=1.0, take=1.0, mean=mean)

    @classmethod
    def revit(cls, gate: float | Tensor | str = 0.5) -> ScoreRule:
        """ReViT (Diko et al., 2024): H_n = (1 - gate) H_{n-1} + gate S_n, started with H_1 = S_1.

        In `uncollapse.convert` the gate may be "learned", as in the paper, or "learned:0.9" to start there, not at 0.5.
        """
        if isinstance(gate, str):
            take = learned_start("gate", gate)
            return cls("revit", keep=1.0 - take, take=take, learned=True)
        check_coefficient("gate", gate)
        return cls("revit", keep=1.0 - gate, take=gate)

    def coefficients(self, n: int) -> tuple[float | Tensor, float | Tensor]:
        """(keep, take) of layer n = 1, 2, ...; keep of layer 1 is 0."""
        if n < 1:
            raise ValueError(f"layers are counted from 1, got layer {n}.")
        if n == 1:
            return 0.0, self.take if self.start == "zero" else 1.0
        if self.mean:
            return (n - 1) / n, 1 / n
        return self.keep, self.take


def chosen_rule(rule: ScoreRule | None, alpha_hidden: float | Tensor | str, start: Start) -> ScoreRule:
    """`rule` if one is given, else hopfield with the other two."""
    if rule is None:
        return ScoreRule.hopfield(alpha_hidden, start)
    if not isinstance(rule, ScoreRule):
        raise ValueError(
            "rule must be ScoreRule.hopfield(alpha_hidden, start), ScoreRule.self_attention(), "
            f"ScoreRule.realformer(mean), ScoreRule.revit(gate) or a ScoreRule of your own, got {rule!r}."
        )
    return rule


def learned_start(name: str, value: str) -> float:
    """The start that "learned" or "learned:0.1" names; 0.5 where it names none.

    >>> learned_start("alpha", "learned:0.1")
    0.1
    """
    word, _, start = value.partition(":")
    try:
        number = float(start or 0.5)
    except ValueError:
        word = ""
    if word != "learned":
        raise ValueError(
            f"{name} must be a number from 0 to 1, 'learned' or, with a start, 'learned:0.1', got {value!r}."
        )
    check_share(name, number)
    return number


def is_tensor(value: Any) -> bool:
    """Whether a coefficient is a tensor; this module does not import torch."""
    return hasattr(value, "requires_grad")


def check_coefficient(name: str, value: Any) -> None:
    """Raise unless `value` is a number from 0 to 1 or a tensor, whose values are not looked at."""
    if not is_tensor(value):
        check_share(name, value)


def check_share(name: str, value: Any) -> None:
    """Raise unless `value` is a number from 0 to 1."""
    if not isinstance(value, Real):
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}.")
    if not 0.0 <= float(value) <= 1.0:  # also refuses NaN
        raise ValueError(f"{name} must lie in [0, 1], got {value}.")


def check_skip(skip: str) -> None:
    """Raise unless `skip` names a reading of the visible skip."""
    if skip not in get_args(Skip):
        raise ValueError(f"skip must be one of {', '.join(get_args(Skip))}, got {skip!r}.")

"""Coefficients that may be learned: alpha' of each head and alpha of a layer as parameters."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from .rule import ScoreRule, check_share, learned_start

PREFIX = "uncollapse"  # of the parameters in an attention module, and so of their names in a checkpoint
MARGIN = 0.05  # how far the sigmoid reaches beyond 0 and 1, so that both are values that can be left again


class Coefficients:
    """A rule and the weight of the visible skip, each a number or, as "learned", the start of parameters."""

    def __init__(self, rule: ScoreRule, alpha: float | str) -> None:
        self.rule = rule
        self.alpha_learned = isinstance(alpha, str)  # alpha is then where the parameters start
        self.alpha = self._checked(learned_start("alpha", alpha) if isinstance(alpha, str) else alpha)

    @property
    def is_learned(self) -> bool:
        """Whether there are parameters for the coefficients."""
        return self.alpha_learned or self.rule.learned

    def change(self, alpha: float | None, alpha_hidden: float | None) -> None:
        """Set alpha, alpha' or both; if one of them is refused, neither changes."""
        rule = self.rule
        for name, value, learned in (
            ("alpha", alpha, self.alpha_learned),
            ("alpha_hidden", alpha_hidden, rule.learned),
        ):
            if value is not None and learned:
                raise ValueError(f"{name} of this model is learned; to set a number, make it anew with one.")
        if alpha_hidden is not None:
            if rule.name != "hopfield":
                raise ValueError(f"alpha_hidden belongs to the rule 'hopfield'; this model runs {rule.name!r}.")
            rule = ScoreRule.hopfield(alpha_hidden, rule.start)
        if alpha is not None:
            self.alpha = self._checked(alpha)
        self.rule = rule

    def _checked(self, alpha: float) -> float:
        check_share("alpha", alpha)
        return float(alpha)


class LearnedShares(nn.Module):
    """The coefficients of one layer as parameters: alpha' (or ReViT's gate) for each head, alpha for the layer.

    A value is a sigmoid stretched by `MARGIN` on either side and cut off at 0 and 1. A plain sigmoid is never 0, and
    next to 0 has hardly a gradient; this one starts at 0 exactly and has the gradient of its inner end there.
    """

    hidden: nn.Parameter | None  # (H,)
    visible: nn.Parameter | None  # (1,): W_O has mixed the heads where the tokens are added

    def __init__(self, coefficients: Coefficients, heads: int, like: Tensor, inherits: bool) -> None:
        super().__init__()
        self.coefficients = coefficients
        rule = coefficients.rule
        start = rule.take if rule.name == "revit" else rule.keep  # ReViT's gate, or alpha'
        hidden = like.new_full((heads,), raw_value(float(start)))
        visible = like.new_full((1,), raw_value(coefficients.alpha))
        self.register_parameter("hidden", nn.Parameter(hidden) if rule.learned and inherits else None)
        self.register_parameter("visible", nn.Parameter(visible) if coefficients.alpha_learned else None)

    def rule(self) -> ScoreRule:
        """The rule of this layer with its present coefficients."""
        rule = self.coefficients.rule
        if self.hidden is None:
            return replace(rule, learned=False)
        value = share(self.hidden)
        return ScoreRule.revit(value) if rule.name == "revit" else ScoreRule.hopfield(value, rule.start)

    def alpha(self) -> float | Tensor:
        """The weight of the visible skip, (1,) if it is learned."""
        return self.coefficients.alpha if self.visible is None else share(self.visible)

    def inherited_share(self) -> Tensor | None:
        """How much of its scores each head inherits (H,), if that is learned; gathered if FSDP2 has sharded it."""
        if self.hidden is None:
            return None
        value = share(_whole(self.hidden.detach())).cpu()
        return 1.0 - value if self.coefficients.rule.name == "revit" else value

    def visible_share(self) -> float | None:
        """The weight of the visible skip, if that is learned."""
        return None if self.visible is None else float(share(_whole(self.visible.detach())))


def _whole(tensor: Tensor) -> Tensor:
    """A DTensor gathered; asked by its method, since the import of the class alone takes half a second."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def share(raw: Tensor) -> Tensor:
    """The value in [0, 1] of a raw parameter.

    >>> share(torch.tensor([raw_value(0.0), raw_value(0.5), raw_value(1.0)])).tolist()
    [0.0, 0.5, 1.0]
    """
    value = (1.0 + 2.0 * MARGIN) * torch.sigmoid(raw) - MARGIN
    return value + (value.clamp(0.0, 1.0) - value).detach()  # cut off, with the gradient of what is cut


def raw_value(value: float) -> float:
    """The raw parameter whose share is `value`."""
    inner = (value + MARGIN) / (1.0 + 2.0 * MARGIN)
    raw = math.log(inner / (1.0 - inner))
    return raw + 1e-5 * (value == 1.0) - 1e-5 * (value == 0.0)  # so that rounding falls on the side that is cut off

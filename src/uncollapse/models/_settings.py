"""What a converted model runs with, and how that is written to its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from uncollapse.attention.functional import check_backend
from uncollapse.attention.rule import ScoreRule, check_share


class ConversionSettings:
    """Rule, alpha and backend of a converted model; all its hooks share one object, so `set_alpha` acts at once."""

    def __init__(self, rule: ScoreRule, alpha: float, backend: str) -> None:
        check_share("alpha", alpha)
        check_backend(backend)
        if type(rule) is not ScoreRule:
            raise ValueError(f"the rule {type(rule).__name__} cannot be written to a config; use a plain ScoreRule.")
        self.rule, self.alpha, self.backend = rule, float(alpha), backend

    @property
    def is_stock(self) -> bool:
        """Whether the model computes what it computed before the conversion."""
        return self.alpha == 0 and self.rule.coefficients(2) == (0.0, 1.0)

    def change(self, alpha: float | None, alpha_hidden: float | None) -> None:
        """Set alpha, alpha' or both; if one of them is refused, neither changes."""
        rule = self.rule
        if alpha_hidden is not None:
            if rule.name != "hopfield":
                raise ValueError(f"alpha_hidden belongs to the rule 'hopfield'; this model runs {rule.name!r}.")
            rule = ScoreRule.hopfield(alpha_hidden, rule.start)
        if alpha is not None:
            check_share("alpha", alpha)
            self.alpha = float(alpha)
        self.rule = rule

    def to_config(self) -> dict[str, Any]:
        """As plain data for config.json."""
        return {"alpha": self.alpha, "backend": self.backend, "rule": asdict(self.rule)}

    @classmethod
    def from_config(cls, data: Mapping[str, Any]) -> ConversionSettings:
        """The settings that `to_config` wrote."""
        return cls(ScoreRule(**data["rule"]), data["alpha"], data["backend"])

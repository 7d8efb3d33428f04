"""What a converted model runs with, and how that is written to its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from numbers import Real
from typing import Any

from uncollapse.attention.functional import check_backend
from uncollapse.attention.learned import Coefficients
from uncollapse.attention.rule import ScoreRule, Skip, check_skip, is_tensor

CONFIG_KEY = "uncollapse"  # where the settings live in model.config


class ConversionSettings(Coefficients):
    """Rule, visible skip and backend of a converted model; its hooks share one object, so `set_alpha` acts at once."""

    def __init__(
        self, rule: ScoreRule, alpha: float | str, backend: str, skip: Skip, scores_dtype: str | None = None
    ) -> None:
        check_backend(backend)
        check_skip(skip)
        if type(rule) is not ScoreRule:
            raise ValueError(f"the rule {type(rule).__name__} cannot be written to a config; use a plain ScoreRule.")
        if is_tensor(rule.keep) or is_tensor(rule.take):
            raise ValueError("convert keeps its coefficients itself: give numbers, or 'learned' for parameters.")
        if scores_dtype not in (None, "float32", "float16"):
            raise ValueError(f"scores_dtype must be None, 'float32' or 'float16', got {scores_dtype!r}.")
        self.backend, self.skip, self.scores_dtype = backend, skip, scores_dtype
        super().__init__(rule, alpha)

    @property
    def has_skip(self) -> bool:
        """Whether tokens pass by the attention: alpha is not 0, or may become so."""
        return self.alpha_learned or self.alpha > 0

    @property
    def is_stock(self) -> bool:
        """Whether the model computes what it computed before the conversion."""
        return self.alpha == 0 and self.rule.coefficients(2) == (0.0, 1.0)

    def _checked(self, alpha: float) -> float:
        if self.skip == "replace" and alpha == 0:
            raise ValueError(
                "skip='replace' puts alpha x + (1 - alpha) attention in place of the block's sum and needs alpha > 0, "
                f"got alpha = 0 (rule {self.rule.name!r}); give alpha, or use skip='stream'."
            )
        return super()._checked(alpha)

    def to_config(self) -> dict[str, Any]:
        """As plain data for config.json."""
        rule = {key: value for key, value in asdict(self.rule).items() if key != "learned" or value}
        config = {"alpha": self.alpha, "skip": self.skip, "backend": self.backend, "rule": rule}
        if self.alpha_learned:
            config["alpha_learned"] = True
        return config if self.scores_dtype is None else config | {"scores_dtype": self.scores_dtype}

    @classmethod
    def from_config(cls, data: Any) -> ConversionSettings:
        """The settings that `to_config` wrote; version 0.1 had no skip but "normed" and did not name it."""
        where = f"{CONFIG_KEY} in the config"
        optional = {"skip", "alpha_learned", "scores_dtype"}
        settings = {"skip": "normed"} | _checked_fields(data, where, SETTINGS, optional)
        rule = _checked_fields(settings["rule"], f"rule of {where}", RULE, {"start", "mean", "alpha", "learned"})
        alpha = settings["alpha"]
        alpha = f"learned:{alpha}" if settings.get("alpha_learned") else alpha
        return cls(ScoreRule(**rule), alpha, settings["backend"], settings["skip"], settings.get("scores_dtype"))


SETTINGS: dict[str, type] = {
    "alpha": Real,
    "skip": str,
    "backend": str,
    "rule": Mapping,
    "alpha_learned": bool,
    "scores_dtype": str,
}
RULE: dict[str, type] = {
    "name": str,
    "keep": Real,
    "take": Real,
    "start": str,
    "mean": bool,
    "alpha": Real,
    "learned": bool,
}
NOUNS: dict[type, str] = {Real: "a number", str: "a text", bool: "true or false", Mapping: "an object"}


def _checked_fields(data: Any, where: str, kinds: Mapping[str, type], optional: set[str]) -> dict[str, Any]:
    """A copy of `data`, or a ValueError if it is no object with just these fields: configs come from strangers too."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be an object with {', '.join(kinds)}, got {data!r}.")
    for key, value in data.items():
        if key not in kinds:
            raise ValueError(f"{where} has the unknown field {key!r}; it may have {', '.join(kinds)}.")
        if not isinstance(value, kinds[key]):
            raise ValueError(f"{key} in {where} must be {NOUNS[kinds[key]]}, got {value!r}.")
    for key in kinds:
        if key not in data and key not in optional:
            raise ValueError(f"{where} lacks {key}; it needs {', '.join(k for k in kinds if k not in optional)}.")
    return dict(data)

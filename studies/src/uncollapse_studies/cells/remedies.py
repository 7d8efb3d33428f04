"""The cells of the study of learning rates: a small LLaMA, plain and with each remedy, at seven rates."""

from __future__ import annotations

from typing import Any

from .cell import OWN, Budget, Cell
from .tiny import at_budget

PLAIN = "plain"
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
RECIPE = "llama-laptop"
TEXTS = {"shakespeare": "tinyshakespeare", "wikitext": "wikitext-2"}
NETWORK: dict[str, Any] = {
    **{"vocab_size": 300, "length": 64, "layers": 4, "heads": 4, "kv_heads": None, "width": 64, "batch_size": 16},
    **{"steps": 500, "warmup_steps": 50, "eval_every": 500, "eval_examples": 512, "save_every": 500},
    **{"diagnose_every": 500, "log_every": 50},
}
REMEDIES: dict[str, dict[str, Any]] = {  # each at the strength that its authors, or their library, give
    PLAIN: {},
    "qk_norm": {"remedy": "qk_norm"},
    "qk_clip": {"remedy": "qk_clip(threshold=100)"},
    "sigma_reparam": {"remedy": "sigma_reparam"},
    "qk_rate": {"remedy": "qk_rate(factor=0.1)"},
    "soft_cap": {"remedy": "soft_cap(cap=50)"},
    "sink": {"remedy": "sink"},
    "output_gate": {"remedy": "output_gate"},
    "value_mixing": {"remedy": "value_mixing(attended=0.5, attended_first=0.5)"},  # value residual
    "hopfield": {"rule": "hopfield", "alpha": 0.5, "alpha_hidden": 0.5, "skip": "stream"},
    "locater": {"kappa_scale": 1e-3, "kappa_mean": 1e-3, "normalisation": "tokens"},
}


def rate_cells(artefact: str, text: str, budget: Budget, seeds: int) -> list[Cell]:
    """Every remedy at every rate, one seed after the other; the plain network first.

    >>> cells = rate_cells("remedies-rates-shakespeare", "shakespeare", "laptop", 3)
    >>> len(cells), cells[1].label
    (231, 'plain-rate-0.003')
    """
    chosen = dict(list(REMEDIES.items())[: 2 if budget == "tiny" else None])
    rates = RATES[: 2 if budget == "tiny" else None]
    return [
        _cell(artefact, text, name, keys, rate, seed, budget)
        for seed in range(seeds)
        for name, keys in chosen.items()
        for rate in rates
    ]


def _cell(artefact: str, text: str, name: str, keys: dict[str, Any], rate: float, seed: int, budget: Budget) -> Cell:
    own: dict[str, float] = {key: float(keys[key]) for key in OWN if key in keys}
    rule = {"rule": "self_attention", "alpha": None} if "rule" not in keys else {}
    whole = {**NETWORK, "data": TEXTS[text], **rule, **keys}
    return Cell(
        artefact,
        f"{name}-rate-{rate:g}",
        name,
        seed,
        budget,
        RECIPE,
        {**at_budget(budget, RECIPE, whole), "learning_rate": rate},
        own,
    )

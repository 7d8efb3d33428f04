"""All claims, in the order of the papers."""

from __future__ import annotations

from importlib import import_module

from .claim import CLAIMS, Claim

MODULES = {
    "hopfield": (
        *("norms", "scores", "lemma_steps", "lemmas", "main_text", "decay", "discretisation"),
        *("similarity", "printed_results", "trained"),
    ),
    "localization": (
        *("softmax", "gradient", "lemma1", "moments", "limits", "figures"),
        *("norms", "entropy", "contribution", "locater", "trained"),
    ),
}


def claims() -> dict[str, Claim]:
    """Every claim by its id.

    >>> claims()["hopfield-eq15-recursion"].place
    'Appendix D.1, Eq. 15'
    """
    for paper, modules in MODULES.items():
        for module in modules:
            import_module(f"uncollapse_studies.{paper}.claims.{module}")
    return CLAIMS

"""All claims, in the order of the papers."""

from __future__ import annotations

import inspect
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
    """Every claim by its id, in the order of the papers whichever file was imported first.

    >>> claims()["hopfield-eq15-recursion"].place
    'Appendix D.1, Eq. 15'
    """
    files = [f"uncollapse_studies.{paper}.claims.{module}" for paper, modules in MODULES.items() for module in modules]
    for file in files:
        import_module(file)
    order = {file: number for number, file in enumerate(files)}  # checks registered from elsewhere come last

    def position(claim: Claim) -> int:
        return order.get(inspect.unwrap(claim.check).__module__, len(order))

    return dict(sorted(CLAIMS.items(), key=lambda item: position(item[1])))

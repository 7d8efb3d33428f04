"""What every figure is: an id, a title, and a function that computes its table and draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from .charts.figure_page import Drawing

Size = Literal["full", "smallest"]


@dataclass(frozen=True)
class Result:
    """A computed figure."""

    table: pd.DataFrame  # all numbers, tidy
    chart: Drawing
    sentences: Sequence[str]  # what it shows, computed from the table
    reading_aid: str
    summary: pd.DataFrame  # the few numbers that go on the page
    settings: Mapping[str, Any]  # what was set, seeds included
    verdict: str = ""  # reproduced, same trend, not seen, undecided, cannot be tested at this scale, or pending
    finding: str = ""  # the sentence that a reader should take away


@dataclass(frozen=True)
class Figure:
    """An entry of the registry; the module is imported when the figure is run."""

    id: str
    title: str
    module: str  # MODULE.py
    function: str = "figure"
    time: str = "seconds"
    stands_for: str = ""  # the table or figure of the paper

    def run(self, size: Size = "full", tick: Callable[[], object] = lambda: None) -> Result:
        """Compute and draw; "smallest" is for tests and trials, with fewer points, draws or layers."""
        make: Callable[..., Result] = getattr(import_module(f".{self.module}", __package__), self.function)
        return make(size, tick)


_SECOND = {  # of the second paper: title, module, function
    1: ("Softmax and its piecewise-linear form", "localization.softmax", "figure"),
    2: ("Which positions propagate, by xi and eta", "localization.propagation", "figure_2"),
    3: ("Propagation near the limit of Lemma 2", "localization.propagation", "figure_3"),
    4: ("The lower bound of attention entropy", "localization.entropy", "figure"),
    5: ("Simulated propagation and entropy of random walks", "localization.simulation", "figure"),
}
FIGURES = {
    figure.id: figure
    for figure in (
        *(
            Figure(f"localization-fig{number}", *about, stands_for=f"Figure {number}")
            for number, about in _SECOND.items()
        ),
        Figure(
            "hopfield-bounds",
            "The residual of attention-only networks and its bounds",
            "hopfield.bounds",
            stands_for="appendix D, Theorem D.3",
        ),
        Figure(
            "hopfield-contraction",
            "What bounds of the residual are worth, over widths, tokens and weights",
            "hopfield.contraction",
            time="3 min",
            stands_for="appendix D, Theorem D.3, and a bound of ours",
        ),
        Figure(
            "hopfield-table1",
            "Appendix Table 1: the residual ratio by depth",
            "hopfield.table1",
            time="2 min",
            stands_for="appendix Table 1",
        ),
        Figure(
            "hopfield-initialisation",
            "What alpha multiplies, at initialisation",
            "hopfield.initialisation",
            time="1 min",
            stands_for="nothing in the paper",
        ),
        Figure(
            "hopfield-similarity-trained",
            "Cosines of token pairs in models that others trained",
            "hopfield.violins",
            "similarity",
            stands_for="appendix Figures 4 to 12, on other models",
        ),
        Figure(
            "hopfield-entropy-trained",
            "Entropies of attention rows in models that others trained",
            "hopfield.violins",
            "entropy",
            stands_for="appendix Figures 13 to 20, on other models",
        ),
        Figure(
            "hopfield-retrieval",
            "A continuous Hopfield network retrieves digits",
            "hopfield.retrieval",
            stands_for="appendix F",
        ),
    )
}

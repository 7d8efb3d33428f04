"""The registry of artefacts that need training; those that need none are in `figure.py`."""

from __future__ import annotations

from functools import partial

from .artefact import Artefact
from .cells.cell import Budget, Cell
from .cells.hopfield import IN_VIOLINS, ablation_cells, learned_cells, main_cells, probe_cells, skipfree_cells
from .cells.localization import NETWORKS, TOKENS, penalty_cells, propagation_cells
from .cells.readings import COMPARISONS, ID, following_cells, reading_cells

HOPFIELD, LOCALIZATION = "hopfield", "localization"
_WORDS = {"gpt2": "GPT on WikiText-2", "vit": "ViT on CIFAR-10"}
_MAIN = {"gpt2": "perplexity of GPT-2", "vit": "accuracy of ViT"}
_VIOLINS = {
    "hopfield-similarity-gpt2": "appendix Figure 4 (GPT-2 medium)",
    "hopfield-similarity-vit": "appendix Figure 5 (ViT-T)",
    "hopfield-entropy-gpt2": "nothing in the paper",
    "hopfield-entropy-vit": "appendix Figures 13 and 14 (ViT-T)",
}


def _main(artefact: str, model: str, methods: tuple[str, ...], budget: Budget, seeds: int) -> list[Cell]:
    return main_cells(artefact, model, budget, seeds, methods)


def _hopfield() -> list[Artefact]:
    found = [
        Artefact(
            f"hopfield-main-{model}",
            f"Six ways to inherit scores, {words}",
            HOPFIELD,
            "hopfield.trained_methods",
            partial(_main, f"hopfield-main-{model}", model, ()),
            seeds=3,
            stands_for=f"main text, {_MAIN[model]}",
        )
        for model, words in _WORDS.items()
    ]
    found += [
        Artefact(
            f"{ID}{name}",
            f"What alpha multiplies, each method at its own rate{', trained longer' * (known.shorter is not None)}, "
            f"{_WORDS[known.model]}",
            HOPFIELD,
            "hopfield.trained_readings",
            partial(reading_cells, f"{ID}{name}"),
            seeds=3,
            stands_for=f"main text, {_MAIN[known.model]}",
            minutes={"gpt2": 4.5, "vit": 1.5, "vit-longer": 4.5}[name],
            following=partial(following_cells, f"{ID}{name}"),
        )
        for name, known in COMPARISONS.items()
    ]
    found += [
        Artefact(
            f"hopfield-learned-{model}",
            f"What coefficients become when they are learned, {words}",
            HOPFIELD,
            "hopfield.trained_learned",
            partial(learned_cells, f"hopfield-learned-{model}", model),
            seeds=3,
            stands_for="nothing in the paper",
        )
        for model, words in _WORDS.items()
    ]
    found += [
        Artefact(
            "hopfield-ablation",
            "Ablation over alpha and alpha'",
            HOPFIELD,
            "hopfield.trained_ablation",
            ablation_cells,
            stands_for="main text, Table 6",
        ),
        Artefact(
            "hopfield-skipfree",
            "ViT without residual connections, by depth",
            HOPFIELD,
            "hopfield.trained_skipfree",
            skipfree_cells,
            stands_for="main text, Table 7",
            minutes=2.5,
        ),
        Artefact(
            "hopfield-probe",
            "Linear probes of the trained ViTs",
            HOPFIELD,
            "hopfield.trained_methods",
            probe_cells,
            seeds=3,
            stands_for="main text, linear probes",
            minutes=0.5,
        ),
    ]
    for kind, words in (("similarity", "Cosines of token pairs"), ("entropy", "Entropies of attention rows")):
        for model, network in _WORDS.items():
            id = f"hopfield-{kind}-{model}"
            found.append(
                Artefact(
                    id,
                    f"{words}, {network}",
                    HOPFIELD,
                    "hopfield.trained_violins",
                    partial(_main, id, model, IN_VIOLINS),
                    seeds=3,
                    stands_for=_VIOLINS[id],
                    function=kind,
                )
            )
    return found


def _localization(ending: str, words: str) -> list[Artefact]:
    """Figures 6 to 12 in one normalisation of the penalty."""
    found = []
    for id, network in NETWORKS.items():
        first, layers = id == "localization-fig6", f"{network.layers} layer{'s' * (network.layers > 1)}"
        found.append(
            Artefact(
                f"{id}{ending}",
                f"LocAteR over training{words}: d = {network.width}, {layers}",
                LOCALIZATION,
                "localization.trained_penalty",
                partial(penalty_cells, f"{id}{ending}"),
                seeds=3 if first else 1,
                stands_for=f"{'Section 7' if first else 'Appendix D'}, Figure {id.removeprefix('localization-fig')}",
                minutes=network.minutes,
            )
        )
    rho = Artefact(
        f"localization-fig7{ending}",
        f"Signal propagation over training{words}, with LocAteR and without",
        LOCALIZATION,
        "localization.trained_propagation",
        partial(propagation_cells, f"localization-fig7{ending}"),
        seeds=3,
        stands_for="Section 7, Figure 7",
        minutes=3.5,
    )
    return [found[0], rho, *found[1:]]


_READINGS = {"": "", TOKENS: ", penalty over tokens"}  # endings of ids and of titles
ARTEFACTS = {
    artefact.id: artefact
    for artefact in (
        *_hopfield(),
        *(entry for reading in _READINGS.items() for entry in _localization(*reading)),
    )
}

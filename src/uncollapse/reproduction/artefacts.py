"""The registry of artefacts that need training; those that need none are in `figure.py`."""

from __future__ import annotations

from functools import partial

from .artefact import Artefact
from .cells.cell import Cell, Scale
from .cells.hopfield import IN_VIOLINS, ablation_cells, main_cells, probe_cells, skipfree_cells
from .cells.localization import NETWORKS, penalty_cells, propagation_cells

HOPFIELD, LOCALIZATION = "hopfield", "localization"
_WORDS = {"gpt2": "GPT on WikiText-2", "vit": "ViT on CIFAR-10"}


def _main(artefact: str, model: str, methods: tuple[str, ...], scale: Scale, seeds: int) -> list[Cell]:
    return main_cells(artefact, model, scale, seeds, methods)


def _hopfield() -> list[Artefact]:
    found = [
        Artefact(
            f"hopfield-main-{model}",
            f"Six ways to inherit scores, {words}",
            HOPFIELD,
            "trained_methods",
            partial(_main, f"hopfield-main-{model}", model, ()),
            seeds=3,
        )
        for model, words in _WORDS.items()
    ]
    found += [
        Artefact("hopfield-ablation", "Ablation over alpha and alpha'", HOPFIELD, "trained_ablation", ablation_cells),
        Artefact(
            "hopfield-skipfree",
            "ViT without residual connections, by depth",
            HOPFIELD,
            "trained_skipfree",
            skipfree_cells,
            minutes=2.5,
        ),
        Artefact(
            "hopfield-probe",
            "Linear probes of the trained ViTs",
            HOPFIELD,
            "trained_methods",
            probe_cells,
            seeds=3,
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
                    "trained_violins",
                    partial(_main, id, model, IN_VIOLINS),
                    seeds=3,
                    function=kind,
                )
            )
    return found


def _localization() -> list[Artefact]:
    found = []
    for id, network in NETWORKS.items():
        words = f"LocAteR over training: d = {network.width}, {network.layers} layer{'s' * (network.layers > 1)}"
        seeds, cells = (3 if id == "localization-fig6" else 1), partial(penalty_cells, id)
        found.append(Artefact(id, words, LOCALIZATION, "trained_penalty", cells, seeds=seeds, minutes=network.minutes))
    rho = "Signal propagation over training, with LocAteR and without"
    found.insert(
        1,
        Artefact(
            "localization-fig7", rho, LOCALIZATION, "trained_propagation", propagation_cells, seeds=3, minutes=3.5
        ),
    )
    return found


ARTEFACTS = {artefact.id: artefact for artefact in (*_hopfield(), *_localization())}

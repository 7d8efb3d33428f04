"""What the printed tables of results say by themselves: one run each, no seeds, no error bars.

All numbers of the paper are typed in, from notes taken of its main text; the verdicts follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...audit.claim import SCALE, AuditRun, Evidence, Plot, becomes, judge
from ...printed import ABLATION, PERPLEXITY, PROBE, SHARES, SKIP_FREE, VIT
from .sources import claim

_TYPED_IN = "The verdict follows from printed numbers that are typed in; there is no formula."
PLAIN_TINY = VIT["Tiny, CIFAR-100"][0]
LANGUAGE = {name: tuple(-value for value in row) for name, row in PERPLEXITY.items()}  # larger is better, as elsewhere


@claim(
    "hopfield-probe-printed",
    "Abstract page, summary (which may not be the authors'), and the printed linear probes from ImageNet-1k",
    "Modern Hopfield Attention enhances transfer to downstream tasks.",
    corrected="It does in three of the four printed tasks; on Stanford Dogs accuracy falls from 95.00 to 83.64.",
    consequence="Expect large changes in either direction; one run each.",
    root="hopfield-not-stated",
    no_perturbation=_TYPED_IN,
    changes_our_mind="Seeds of the four probes.",
    mutation=becomes("holds", "without Stanford Dogs", table={k: v for k, v in PROBE.items() if k != "Stanford Dogs"}),
    changes={"table": PROBE},
)
@claim(
    "hopfield-language-printed",
    "Abstract, and the printed perplexities of GPT-2 and LLaMA",
    "Modern Hopfield Attention can systematically improve GPT.",
    consequence="All five printed pairs agree; one run each, so there is no telling by how much.",
    no_perturbation=_TYPED_IN,
    changes_our_mind="Seeds of the five comparisons.",
    mutation=becomes("fails", "the two columns exchanged", table={k: v[::-1] for k, v in LANGUAGE.items()}),
    changes={"table": LANGUAGE},
)
@claim(
    "hopfield-vit-printed",
    "Abstract, and the printed accuracies of ViT",
    "Modern Hopfield Attention can systematically improve the accuracy of the Vision Transformer.",
    corrected="In the printed tables it does so in 12 of 18 comparisons: in all of Large and of ImageNet, in none "
    "of Tiny on CIFAR-100.",
    consequence="On small networks and easy data the printed numbers show no gain.",
    no_perturbation=_TYPED_IN,
    changes_our_mind='A reading of "systematically" that allows a third of the comparisons to go the other way.',
    mutation=becomes("holds", "the ImageNet row alone", table={"ImageNet": VIT["Base, ImageNet-1k"]}),
    changes={"table": VIT},
)
def improves(run: AuditRun, table: Mapping[str, tuple[float, ...]]) -> Evidence:
    """Each printed number with inherited scores against self-attention's of its row.

    Holds if all are in favour; under a condition if some are. Read off the print.
    """
    differences = [(name, value - row[0]) for name, row in table.items() for value in row[1:]]
    better = sum(difference > 0 for _, difference in differences)
    kinds = ("alpha = 0.5", "alpha = 0.7")
    rows = [
        (name, value - row[0], kind if len(row) > 2 else "difference")
        for name, row in table.items()
        for value, kind in zip(row[1:], kinds, strict=False)
    ]
    return Evidence(
        judge(better == len(differences), better > 0),
        f"{better} of {len(differences)} printed comparisons are in favour; differences from "
        f"{min(d for _, d in differences):+.2f} to {max(d for _, d in differences):+.2f}.",
        {"comparisons": len(differences), "in favour": better},
        Plot("", "difference from self-attention", rows, kind="point", rule=0.0),
    )


@claim(
    "hopfield-ablation-printed",
    "Main text, ablation of alpha and alpha' (ViT-T, CIFAR-100), printed numbers",
    "Mixing in inherited scores and a skip improves ViT-T on CIFAR-100 for some choice of alpha and alpha'.",
    corrected=f"All 22 printed cells lie below the plain ViT-T of the main table, {PLAIN_TINY}.",
    survives=False,
    consequence="The ablation ranks settings among themselves; it shows no gain over plain attention.",
    root="hopfield-ablation-base",
    no_perturbation=_TYPED_IN,
    changes_our_mind="A plain ViT-T trained with the settings of the ablation.",
    mutation=becomes("holds under a condition", "against a plain network of 72", plain=72.0),
)
def ablation(run: AuditRun, plain: float = PLAIN_TINY) -> Evidence:
    """Every cell against the plain network of the main table.

    Holds if all exceed it; under a condition if some do. Read off the print.
    """
    cells = [value for row in ABLATION.values() for value in row]
    above = sum(value > plain for value in cells)
    rows = [(s, v, name) for name, row in ABLATION.items() for s, v in zip(SHARES, row, strict=True) if v > 60]
    return Evidence(
        judge(above == len(cells), above > 0),
        f"{above} of {len(cells)} cells exceed the plain network's {plain:g}; the best is {max(cells):g}.",
        {"cells": len(cells), "above the plain network": above, "best cell": max(cells), "plain network": plain},
        Plot("alpha or alpha'", "accuracy", rows, rule=plain, rule_says="plain ViT-T"),
    )


@claim(
    "hopfield-skipfree-printed",
    "Main text, networks without any residual connection, printed numbers",
    "Without any other residual connection, Modern Hopfield Attention still trains where self-attention degrades with "
    "depth.",
    corrected="Up to 8 layers. At 12 both are at chance, 10 % and 1 %.",
    consequence="The alpha-skip replaces a residual connection up to a depth only. The comparison gives one side a "
    "skip.",
    no_perturbation=_TYPED_IN,
    changes_our_mind="Numbers at depth 12 above chance.",
    mutation=becomes("holds", "depths up to 8", deepest=8),
)
def skip_free(run: AuditRun, deepest: int = 12) -> Evidence:
    """Better than self-attention at every depth.

    Holds if it is so at all depths; under a condition if at some. Read off the print.
    """
    pairs = {depth: both for depth, both in SKIP_FREE.items() if depth <= deepest}
    better = {depth: all(ours > plain for plain, ours in both) for depth, both in pairs.items()}
    rows = [
        (depth, both[0][k], name)
        for depth, both in pairs.items()
        for k, name in enumerate(("self-attention", "hopfield"))
    ]
    return Evidence(
        judge(all(better.values()), any(better.values())),
        f"Better at depths {', '.join(str(d) for d, b in better.items() if b)}; not at "
        f"{', '.join(str(d) for d, b in better.items() if not b) or 'none'}.",
        {f"CIFAR-10 gain at depth {depth}": both[0][1] - both[0][0] for depth, both in pairs.items()},
        Plot("layers", "CIFAR-10 accuracy", rows),
    )


def scatter(row: Sequence[float]) -> float:
    """Run-to-run scatter of a smooth curve, from its second differences: their variance is 6 times that of a run."""
    return float(np.sqrt(np.mean(np.diff(row, n=2) ** 2) / 6.0))


@claim(
    "hopfield-vit-beyond-scatter",
    "Main text, accuracies of ViT, printed numbers (implied, not printed)",
    "The printed gains of ViT on CIFAR are larger than what runs of one network differ by.",
    corrected="Most are within two standard errors of a difference, with the scatter that the paper's own ablation "
    "shows; those of Large on CIFAR-100 are beyond it.",
    consequence="Take gains of a few tenths of a point from single runs as no evidence. Run seeds.",
    root="hopfield-not-stated",
    no_perturbation=_TYPED_IN,
    changes_our_mind="Seeds, from which the scatter of a run follows.",
    mutation=becomes("holds", "if runs scattered by 0.001 points", noise=0.001),
)
def beyond_scatter(run: AuditRun, noise: float | None = None) -> Evidence:
    """The scatter of the ablation's inner cells about a smooth curve stands for the seeds that were not run.

    Holds if every gain exceeds two standard errors of a difference of two runs; under a condition if some do. Read off
    the print.
    """
    found = noise if noise is not None else float(np.mean([scatter(row[1:9]) for row in ABLATION.values()]))
    bar = 2.0 * np.sqrt(2.0) * found
    gains = [value - row[0] for name, row in VIT.items() if "CIFAR" in name for value in row[1:] if value > row[0]]
    clear = sum(gain > bar for gain in gains)
    return Evidence(
        judge(clear == len(gains), clear > 0),
        f"The ablation scatters by {found:.2f} points about a smooth curve, so a difference of two runs has to exceed "
        f"{bar:.2f}: {clear} of the {len(gains)} printed gains do.",
        {
            "scatter of a run": found,
            "two standard errors of a difference": float(bar),
            "gains": len(gains),
            "gains beyond it": clear,
        },
    )


REQUIRED = (
    "training length",
    "batch size",
    "learning rate",
    "schedule",
    "optimizer",
    "weight decay",
    "start of the hidden state",
    "seed",
)
TABLE_2 = ("batch size", "learning rate", "schedule", "optimizer", "warmup", "num tokens")
TABLE_3 = ("training length", "batch size", "learning rate", "schedule", "optimizer", "warmup", "augmentation")


@claim(
    "hopfield-table3-complete",
    "Appendix G, Table 3, read off the print (implied: the text says detailed)",
    "Table 3 describes the training of the ViT in detail: enough to run it again.",
    corrected="Weight decay, seeds, and how the hidden state starts are missing.",
    survives=False,
    consequence="A reproduction has to choose them and to say so.",
    root="hopfield-not-stated",
    no_perturbation=_TYPED_IN,
    changes_our_mind="The missing settings, in the paper or in its code.",
    mutation=becomes("holds", "with the missing settings added", given=REQUIRED),
    changes={"given": TABLE_3},
)
@claim(
    "hopfield-table2-complete",
    "Appendix G, Table 2, read off the print (implied: the text says detailed)",
    "Table 2 describes the training of GPT-2 in detail: enough to run it again.",
    corrected="The length of training, weight decay, seeds, and how the hidden state starts are missing.",
    survives=False,
    consequence="A reproduction has to choose them and to say so; warm-up is given in epochs of an unknown number.",
    root="hopfield-not-stated",
    no_perturbation=_TYPED_IN,
    changes_our_mind="The missing settings, in the paper or in its code.",
    mutation=becomes("holds", "with the missing settings added", given=REQUIRED),
    changes={"given": TABLE_2},
)
def complete(run: AuditRun, given: Sequence[str]) -> Evidence:
    """The settings that training needs against those printed.

    Holds if none is missing. Read off the print; the list of what training needs is ours.
    """
    missing = [name for name in REQUIRED if name not in given]
    return Evidence(
        judge(not missing),
        f"Not printed: {', '.join(missing) or 'nothing'}.",
        {"settings needed": len(REQUIRED), "missing": len(missing)},
    )


@claim(
    "hopfield-imagenet",
    "Main text, ViT-B on ImageNet-1k",
    "Trained on ImageNet-1k, ViT-B reaches 77.058 with alpha = 0.7 against 76.074 with self-attention.",
    consequence="One run on a large data set: not to be repeated without a cluster.",
    no_perturbation=_TYPED_IN,
    changes_our_mind="A machine on which such a run takes less than a month.",
    mutation=becomes("pending", "if processors were a million times as fast", speed=1e17),
    changes={"operations": 6.0 * 86e6 * 197 * 1.28e6 * 300},
)
@claim(
    "hopfield-llama",
    "Main text, LLaMA",
    "LLaMA with alpha = 0.5 has a lower perplexity on three data sets.",
    consequence="The size of the network is not given, so that no run can be compared with the printed numbers.",
    no_perturbation=_TYPED_IN,
    changes_our_mind="The size of the network.",
    mutation=becomes("pending", "if the size were given and small", operations=1e15),
    changes={"operations": None},
)
def affordable(run: AuditRun, operations: float | None, speed: float = 1e11, days: float = 30.0) -> Evidence:
    """Arithmetic of one training run against a month of two cores at 1e11 operations a second (an assumption).

    It cannot be checked if the run is longer or its size unknown; else it is pending.
    """
    budget = speed * 86400.0 * days
    if operations is None:
        return Evidence(
            SCALE, "The size of the network is not printed: there is nothing to train.", {"size": "unknown"}
        )
    years = operations / speed / 86400.0 / 365.0
    return Evidence(
        SCALE if operations > budget else "pending",
        f"One training run is {operations:.1e} operations: {years:,.3g} years of two cores at {speed:.0e} a second.",
        {"operations": operations, "years": years, "budget in days": days},
    )

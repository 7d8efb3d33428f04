"""Token-similarity and entropy violins of trained models that others made, none of which inherits scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
import torch

from uncollapse.diagnosis import Diagnosis, diagnose
from uncollapse.diagnosis.attention_statistics import ENTROPY_WIDTH
from uncollapse.metrics.similarity import COSINE_WIDTH

from ..artefact import NOT_SEEN, OUT_OF_REACH, TREND
from ..figure import Result, Size

COLUMNS = ["cosine_mode", "cosine_median", "cosine_mean", "cosine_aligned", "residual_ratio"]
ENTROPIES = ["entropy_mean", "entropy_min", "entropy_normalised"]
GROUP = 0.01  # share of pairs above which tokens that point the same way are a group


def diagnoses(size: Size, tick: Callable[[], object]) -> dict[str, Diagnosis]:
    """A diagnosis of each trained model; at the smallest size of one with random weights, which needs no data."""
    from ..trained_models import TRAINED

    reports = {}
    loaders = TRAINED if size == "full" else {"random weights": _random}
    for name, load in loaders.items():
        reports[name] = diagnose(*load(), progress=False)
        tick()
    return reports


def _random() -> tuple[torch.nn.Module, Mapping[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=6, n_head=2)
        model: torch.nn.Module = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
        return model.train(False), {"input_ids": torch.randint(16, (2, 8))}


def similarity(size: Size, tick: Callable[[], object]) -> Result:
    """Cosines of token pairs by layer (as appendix Figures 4 to 12, left)."""
    from uncollapse.report.similarity_violins import COARSER

    reports = diagnoses(size, tick)
    table = _layers(reports, COLUMNS)
    sentences = []
    for name, rows in table.groupby("model", sort=False):
        most = rows.loc[rows["cosine_aligned"].idxmax()]
        seen = "a group of aligned tokens" if most["cosine_aligned"] > GROUP else "no group of aligned tokens"
        sentences.append(
            f"{name}: {seen}; at most {most['cosine_aligned']:.1%} of the pairs of a layer have a cosine above 0.99 "
            f"(layer {most['layer']:.0f}), and the mean cosine ends at {rows['cosine_mean'].iloc[-1]:.2f}."
        )
    grouped = int((table.groupby("model")["cosine_aligned"].max() > GROUP).sum())
    sentences.append(
        f"Appendix H says that trained Transformers have a population of tokens with a cosine of 1: seen in {grouped} "
        f"of {len(reports)} models."
    )
    shapes = {name: r.histograms["cosine"].query("kind == 'raw'") for name, r in reports.items()}
    verdict = TREND if grouped == len(reports) else NOT_SEEN if not grouped else f"{TREND} in {grouped} models"
    words = ("Cosines of token pairs in trained models, by layer", "cosine")
    return _result(table, shapes, sentences, (COSINE_WIDTH, COARSER), words, size, verdict)


def entropy(size: Size, tick: Callable[[], object]) -> Result:
    """Entropies of attention rows by layer (as appendix Figures 13 to 20)."""
    reports = diagnoses(size, tick)
    table = _layers(reports, [name for name in ENTROPIES if all(name in r.layers for r in reports.values())])
    sentences = []
    for name, rows in table.groupby("model", sort=False):
        least = rows.loc[rows["entropy_normalised"].idxmin()]
        sentences.append(
            f"{name}: the mean entropy of a layer is between {least['entropy_normalised']:.2f} (layer "
            f"{least['layer']:.0f}) and {rows['entropy_normalised'].max():.2f} of the largest possible."
        )
    shapes = {
        name: r.histograms["entropy"].groupby(["layer", "low"], as_index=False)["count"].sum()
        for name, r in reports.items()
    }
    words = ("Entropies of attention rows in trained models, by layer", "entropy in nats")
    return _result(table, shapes, sentences, (ENTROPY_WIDTH, 1), words, size, OUT_OF_REACH)


def _layers(reports: Mapping[str, Diagnosis], columns: list[str]) -> pd.DataFrame:
    parts = [report.layers[["layer", *columns]].assign(model=name) for name, report in reports.items()]
    return pd.concat(parts, ignore_index=True)[["model", "layer", *columns]]


def _result(
    table: pd.DataFrame,
    shapes: Mapping[str, pd.DataFrame],
    sentences: list[str],
    bins: tuple[float, int],
    words: tuple[str, str],
    size: Size,
    verdict: str,
) -> Result:
    """Table, chart and words; `bins` are the width of a bin and how many are drawn as one, `words` title and unit."""
    from ..charts.violin_panels import violin_panels

    title = (words[0], "stock self-attention; green: the mean")
    last = table.groupby("model", sort=False).tail(1)
    limits = "None of these models inherits scores, so the papers' comparison cannot be made on them; they show what "
    return Result(
        table=table,
        chart=violin_panels(shapes, *bins, title, words[1]),
        sentences=[*sentences, f"{limits}trained attention looks like without it."],
        reading_aid="A violin shows all values of a layer. Cosines at 1: tokens that point the same way. Entropy at 0: "
        "rows that look at one key.",
        summary=last.map(lambda v: f"{v:.3g}" if isinstance(v, float) else v),
        settings={"models": list(shapes), "size": size},
        verdict=verdict,
    )

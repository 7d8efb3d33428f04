"""The page of the demo: what collapse is, what four ways of attending made of the same training, and how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

import pandas as pd

from . import depth_lines, depth_networks, entropy_violins, similarity_violins
from .chart import Chart
from .comparison_page import entropies_by_layer, similarities
from .page import Section, bullet_list, document, menu, named_rows, open_table, table_html
from .picture import picture
from .runs_page import RunsContent, TrainingCurve, words_html
from .training_curves import training_curve

TITLE = "What keeps tokens apart?"
PURPOSE = (
    "Stack enough attention layers and the tokens become alike: the network forgets which token is which (rank "
    "collapse). Its sibling is attention that stares at one token (entropy collapse). uncollapse finds both in any "
    "Hugging Face model, explains them, and lets you try what is said to help. This page does so on a small scale: "
    "attention-only networks at initialisation, then one small GPT trained four times, with four ways of attending."
)
MEASURES = ("residual_ratio", "cosine_mean", "entropy_normalised")
MOMENTS = ("before training", "after training")
CAUTION = (
    "A small model, a short training and one seed: this page shows how to look, not which way of attending is best. "
    "For that, train several seeds (uncollapse train --seeds 3) and compare them (uncollapse compare)."
)
SPECTRUM_AID = (
    "W = W_QᵀW_K of a head, means over all heads at each diagnosis. LocAteR pulls tr W towards 1 and holds tr(WᵀW), "
    "the size of W, down; the others are free."
)


@dataclass(frozen=True)
class DemoContent:
    """What the demo found, as tables and words; methods are numbered from 1 in the order of `runs.names`."""

    findings: Sequence[str]
    words: Sequence[str]  # what each method is
    depth: pd.DataFrame  # as `depth_networks` takes it
    depth_words: Sequence[str]  # a sentence a network
    networks: Sequence[str]  # names by the numbers of its column `report`
    layers: Sequence[pd.DataFrame]  # report, layer and MEASURES: before training, after it
    spectrum: Mapping[str, TrainingCurve]
    runs: RunsContent
    source: str


def demo_page(content: DemoContent) -> str:
    """The HTML."""
    runs = content.runs
    last = int(content.layers[-1]["layer"].max())
    sections = [section for section in _sections(content) if section.charts]
    rest = (
        open_table(runs.differences, "What differs between the recipes", "Everything else is equal, the seed too.")
        + open_table(
            runs.costs,
            "Time",
            "One run after the other in one process; what else the machine did meanwhile counts too.",
        )
        + table_html(runs.runs, f"The runs ({len(runs.runs)})")
    )
    return document(TITLE, _lead(content), sections, {"layer": last, "tokens": "raw"}, rest, content.source)


def demo_picture(content: DemoContent) -> bytes:
    """The main charts in one PNG: depth at initialisation, learning, and the layers of the trained models."""
    charts = [_depth(content), *_curves(content)[:1], _lines(content, "cosine_mean")[-1]]
    return picture(charts, [400, 300, 300][: len(charts)], 260)


def _lead(content: DemoContent) -> str:
    cards = "".join(
        f'<div><h2><span class="key" style="background: var(--series-{number})"></span>{escape(name)}</h2>'
        f'<p class="about">{escape(words)}</p></div>'
        for number, (name, words) in enumerate(zip(content.runs.names, content.words, strict=True), start=1)
    )
    notes = "".join(f'<div class="verdict noted"><p><b>○</b> {escape(n)}</p></div>' for n in content.runs.notes)
    return (
        f"<p>{escape(PURPOSE)}</p>\n"
        f'<section class="card"><h2>Five findings</h2>{words_html(content.findings)}'
        f'<p class="aid">{escape(CAUTION)}</p></section>\n{notes}\n'
        f'<div class="reports">{cards}</div>\n'
    )


def _sections(content: DemoContent) -> list[Section]:
    runs = content.runs
    return [
        Section(
            "How deep can attention go?",
            [_depth(content)],
            after=bullet_list(content.depth_words, "quiet") + table_html(_depth_table(content.depth), "The numbers"),
        ),
        Section(
            "Do they learn?",
            _curves(content),
            layout="pairs",
            aid="The same data in the same order, one seed each: no spread is known, and small gaps may be chance.",
            after=named_rows(runs.numbers),
        ),
        Section(
            "Collapse by layer, before and after training",
            [chart for measure in MEASURES for chart in _lines(content, measure)],
            layout="pairs",
        ),
        Section(
            "How alike are the tokens after training?",
            similarities([d for d in runs.diagnoses if len(d.cosines)]),
            menu("tokens", "tokens", similarity_violins.KINDS, "raw"),
            "pairs",
            similarity_violins.AID,
        ),
        Section(
            "How widely does attention look after training?",
            entropies_by_layer([d for d in runs.diagnoses if len(d.entropies)]),
            layout="pairs",
            aid=entropy_violins.AID,
        ),
        Section(
            "What LocAteR holds: the query-key matrix W of each head",
            _drawn(content, content.spectrum),
            layout="pairs",
            aid=SPECTRUM_AID,
        ),
    ]


def _depth(content: DemoContent) -> Chart:
    return depth_networks.depth_networks(content.depth, content.networks, solid=len(content.runs.names))


def _curves(content: DemoContent) -> list[Chart]:
    """Learning curves; the loss per token and its exponential say the same as bits per byte."""
    titles = {"curve-eval-bits-per-byte": "Held-out bits per byte", "curve-loss": "Training loss"}
    curves = content.runs.curves
    return _drawn(content, {name: replace(curves[name], title=t) for name, t in titles.items() if name in curves})


def _drawn(content: DemoContent, measures: Mapping[str, TrainingCurve]) -> list[Chart]:
    return [
        training_curve(m.table, name, m.title, content.runs.names, logarithmic=m.logarithmic)
        for name, m in measures.items()
        if len(m.table)
    ]


def _lines(content: DemoContent, measure: str) -> list[Chart]:
    """One measure before and after training, on one axis."""
    values = pd.concat(content.layers)[measure].dropna()
    room = 0.05 * float(values.max() - values.min())
    usual = depth_lines.MEASURES[measure][2]
    ends = usual or (float(values.min()) - room, float(values.max()) + room)
    pairs = zip(content.layers, MOMENTS, strict=True)
    return [depth_lines.depth_lines(table, measure, content.runs.names, moment, ends) for table, moment in pairs]


def _depth_table(depth: pd.DataFrame) -> pd.DataFrame:
    """A column a network, a row a depth."""
    wide = depth.pivot(index="depth", columns="attention", values="mean")[list(depth["attention"].unique())]
    wide = wide.map(lambda ratio: f"{ratio:.2g}")
    return wide.rename_axis(index="layers", columns=None).reset_index()

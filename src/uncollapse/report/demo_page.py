"""The page of the demo: rank collapse by depth, then four ways of attending trained on the same data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

import pandas as pd

from . import depth_lines, depth_networks
from .chart import Chart
from .comparison_page import entropy_section, similarity_section
from .page import (
    Section,
    about_html,
    bullet_list,
    document,
    named_rows,
    notes_html,
    open_table,
    series_cards,
    table_html,
)
from .picture import picture
from .runs_page import RunsContent, grouped_list
from .training_curves import TrainingCurve, training_charts

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
SPECTRUM_CAPTION = (
    "W = W_QᵀW_K of a head, means over all heads at each diagnosis. LocAteR pulls tr W towards 1 and holds tr(WᵀW), "
    "the size of W, down; the others are free."
)


@dataclass(frozen=True)
class DemoContent:
    """The results of the demo; methods are numbered from 1 in the order of `runs.names`."""

    findings: Sequence[str]
    descriptions: Sequence[str]  # one per method
    depth: pd.DataFrame  # as `depth_networks` takes it
    depth_findings: Sequence[str]  # one sentence per network
    networks: Sequence[str]  # names of the networks, in the order of the column `report` of `depth`
    layers: Sequence[pd.DataFrame]  # before and after training; report, layer and MEASURES
    spectrum: Mapping[str, TrainingCurve]
    runs: RunsContent
    source: str


def demo_page(content: DemoContent) -> str:
    """The HTML of the demo."""
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
    """PNG of the main charts: depth at initialisation, learning, and the layers of the trained models."""
    charts = [_depth(content), *_curves(content)[:1], _lines(content, "cosine_mean")[-1]]
    return picture(charts, [400, 300, 300][: len(charts)], 260)


def depth_picture(content: DemoContent) -> bytes:
    """PNG of the residual ratio by depth."""
    return picture([_depth(content)], [560], 360)


def _lead(content: DemoContent) -> str:
    return (
        f"<p>{escape(PURPOSE)}</p>\n"
        f'<section class="card"><h2>Five findings</h2>{grouped_list(content.findings)}'
        f'<p class="aid">{escape(CAUTION)}</p></section>\n{notes_html(content.runs.notes)}\n'
        f"{series_cards(content.runs.names, [about_html(text) for text in content.descriptions])}\n"
    )


def _sections(content: DemoContent) -> list[Section]:
    runs = content.runs
    return [
        Section(
            "How deep can attention go?",
            [_depth(content)],
            after=bullet_list(content.depth_findings, "quiet") + table_html(_depth_table(content.depth), "The numbers"),
        ),
        Section(
            "Do they learn?",
            _curves(content),
            layout="pairs",
            caption="The same data in the same order, one seed each: no spread is known, and small gaps may be chance.",
            after=named_rows(runs.numbers),
        ),
        Section(
            "Collapse by layer, before and after training",
            [chart for measure in MEASURES for chart in _lines(content, measure)],
            layout="pairs",
        ),
        similarity_section("How alike are the tokens after training?", runs.diagnoses),
        entropy_section("How widely does attention look after training?", runs.diagnoses),
        Section(
            "What LocAteR holds: the query-key matrix W of each head",
            training_charts(content.spectrum, runs.names),
            layout="pairs",
            caption=SPECTRUM_CAPTION,
        ),
    ]


def _depth(content: DemoContent) -> Chart:
    return depth_networks.depth_networks(content.depth, content.networks, solid=len(content.runs.names))


def _curves(content: DemoContent) -> list[Chart]:
    """Learning curves; loss and perplexity are left out, since bits per byte carry the same information."""
    titles = {"curve-eval-bits-per-byte": "Held-out bits per byte", "curve-loss": "Training loss"}
    curves = content.runs.curves
    shown = {name: replace(curves[name], title=title) for name, title in titles.items() if name in curves}
    return training_charts(shown, content.runs.names)


def _lines(content: DemoContent, measure: str) -> list[Chart]:
    """One measure before and after training, on a common axis."""
    values = pd.concat(content.layers)[measure].dropna()
    room = 0.05 * float(values.max() - values.min())
    usual = depth_lines.MEASURES[measure][2]
    ends = usual or (float(values.min()) - room, float(values.max()) + room)
    pairs = zip(content.layers, MOMENTS, strict=True)
    return [depth_lines.depth_lines(table, measure, content.runs.names, moment, ends) for table, moment in pairs]


def _depth_table(depth: pd.DataFrame) -> pd.DataFrame:
    """One column per network, one row per depth."""
    wide = depth.pivot(index="depth", columns="attention", values="mean")[list(depth["attention"].unique())]
    wide = wide.map(lambda ratio: f"{ratio:.2g}")
    return wide.rename_axis(index="layers", columns=None).reset_index()

"""The page of one diagnosis: verdicts, layers, tokens, attention, all heads and the selected head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Literal

import pandas as pd

from .chart import Chart
from .content import DiagnosisContent, Finding
from .depth_strip import depth_strip
from .eigenvalues import eigenvalue_plane
from .entropy_histogram import entropy_histogram
from .entropy_violins import HEAD_TABLE, axis_top, entropy_violins, head_violins
from .gap_points import gap_points
from .head_map import extents, head_map, metrics_of
from .page import Section, about_html, bullet_list, document, menu, open_table, table_html
from .picture import image_html
from .propagation import propagation_line
from .similarity_violins import KINDS, similarity_violins

USUAL = (
    "Usual: where 95 % of the heads or layers of healthy trained models are, 90 % in a range. A number outside is no "
    "fault by itself; the verdicts have thresholds of their own."
)
SIGNS = {"collapse": "▲", "healthy": "✓", "noted": "○"}  # so that colour is not the only cue


def diagnosis_page(content: DiagnosisContent, table: pd.DataFrame, footer: str) -> str:
    """The HTML; `table` is the table of layers with rounded numbers."""
    layer, head = content.first_choice()
    ends = extents([content.heads]) if not content.heads.empty else {}
    metric = next(iter(ends), "")
    sections = [
        _section("Depth at a glance", [strip(content)]),
        _section(
            "How alike are the tokens?",
            [
                similarity_violins(
                    content.cosines,
                    content.cosine_width,
                    content.layers,
                    content.depth,
                    aligned=content.limits.get("cosine"),
                )
            ]
            if len(content.cosines)
            else [],
            menu("tokens", "tokens", KINDS, "raw"),
        ),
        _section("How widely does attention look?", _entropy(content)),
        _section("Does the softmax saturate?", _gaps(content)),
        _section(
            "Every head",
            [head_map(content.heads, content.depth, content.head_count, ends)] if ends else [],
            metric_menu([content.heads], metric) if ends else "",
        ),
        _section("The chosen head", _head_charts(content), layout="columns"),
    ]
    lead = f"{about_html(content.about)}\n{findings_html(content.findings)}\n{gaps_html(content)}"
    if not content.usual.empty:
        lead += open_table(content.usual, "The main numbers, beside what is usual", USUAL)
    if not content.heads.empty:
        lead += choice_bar(content.depth, content.head_count, layer, head)
    choice = {"layer": layer, "head": head, "metric": metric, "tokens": "raw"}
    shown = [section for section in sections if section]
    return document(
        f"Diagnosis of {content.name}", lead, shown, choice, table_html(table, "The numbers by layer"), footer
    )


def strip(content: DiagnosisContent, name: str = "depth-strip", depth: int = 0) -> Chart | None:
    """The depth strip, marking layers that a verdict calls collapsed; None if no layer was measured.

    `depth` leaves room for the layers of deeper models on the same page.
    """
    if content.layers.empty:
        return None
    collapsed = {layer for finding in content.findings if finding.collapse for layer in finding.layers}
    return depth_strip(content.layers, collapsed, depth or content.depth, name)


def notebook_html(content: DiagnosisContent) -> str:
    """Summary and depth strip for a notebook, as text and a picture without scripts."""
    items = "".join(
        f"<li>{_sign(finding)} {escape(finding.sentence)} {escape(finding.remedy)}</li>" for finding in content.findings
    )
    return (
        f"<div><b>Diagnosis of {escape(content.name)}</b><br>{escape(content.about)}"
        f"<ul>{items}</ul>{strip_picture(content)}{gaps_html(content)}</div>"
    )


def strip_picture(content: DiagnosisContent) -> str:
    """The depth strip as an image that needs no script; empty if there is nothing to draw."""
    chart = strip(content)
    return "" if chart is None else image_html(chart, chart.caption)


def findings_html(findings: Sequence[Finding]) -> str:
    """One box per verdict with its remedy."""
    cards = []
    for finding in findings:
        remedy = f'<p class="remedy">{escape(finding.remedy)}</p>' if finding.remedy else ""
        clause = re.split(r" \(|; |, first", finding.sentence, maxsplit=1)[0]
        words = f"<p><b>{_sign(finding)} {escape(clause)}</b>{escape(finding.sentence[len(clause) :])}</p>"
        cards.append(f'<div class="verdict {_tone(finding)}">{words}{remedy}</div>')
    return "\n".join(cards)


def gaps_html(content: DiagnosisContent) -> str:
    """What was not measured and why, and further notes."""
    sentences = [f"Not measured: {what}, because {why}" for what, why in content.missing.items()]
    if content.heads.empty and "attention" not in content.missing:
        sentences.append("Not measured: attention; no queries and keys were seen.")
    elif content.eigenvalues.empty and "spectrum" not in content.missing:
        sentences.append("Not measured: eigenvalues; the query and key weights were not seen.")
    if content.cosines.empty:
        sentences.append("Not measured: tokens; no output of a layer was seen.")
    return bullet_list([*sentences, *(f"Note: {note}" for note in content.notes)], "quiet")


def choice_bar(depth: int, heads: int, layer: int, head: int) -> str:
    """Menus of layer and head that stay visible while the page scrolls."""
    layers = {n: (str(n), "") for n in range(1, depth + 1)}
    numbers = {n: (str(n), "") for n in range(1, heads + 1)}
    return (
        f'<nav class="choice" aria-label="Chosen head">{menu("layer", "Layer", layers, layer)}'
        f'{menu("head", "Head", numbers, head)}<span class="words">or choose in a chart</span></nav>'
    )


def metric_menu(heads: Sequence[pd.DataFrame], chosen: str) -> str:
    """The menu of the head map."""
    return menu("metric", "metric", metrics_of(pd.concat(list(heads), ignore_index=True)), chosen)


def _entropy(content: DiagnosisContent) -> list[Chart]:
    if content.entropies.empty:
        return []
    width = content.entropy_width
    top = axis_top(content.entropies, width)
    return [
        entropy_violins(content.entropies, width, content.depth, top),
        head_violins(content.entropies, width, content.head_count, top),
    ]


def _gaps(content: DiagnosisContent) -> list[Chart]:
    if "gap_mean" not in content.heads or "gap_mean" not in content.limits or content.heads["gap_mean"].isna().all():
        return []
    return [gap_points(content.heads, content.depth, content.limits)]


def _head_charts(content: DiagnosisContent) -> list[Chart]:
    charts = []
    if len(content.eigenvalues):
        charts.append(eigenvalue_plane(content.eigenvalues, [content.name]))
    if len(content.propagation):
        charts.append(propagation_line(content.propagation, [content.name]))
    if len(content.entropies):
        width = content.entropy_width
        top = axis_top(content.entropies, width)
        shapes = head_violins(content.entropies, width, content.head_count, top).tables[HEAD_TABLE]
        charts.append(entropy_histogram(shapes, width, top, [content.name], HEAD_TABLE))
    return charts


def _section(
    title: str, charts: Sequence[Chart | None], controls: str = "", layout: Literal["rows", "columns"] = "rows"
) -> Section | None:
    present = [chart for chart in charts if chart is not None]
    return Section(title, present, controls, layout) if present else None


def _tone(finding: Finding) -> str:
    red = finding.collapse or finding.kind == "unreadable sample"
    return "collapse" if red else "healthy" if finding.kind == "healthy" else "noted"


def _sign(finding: Finding) -> str:
    return SIGNS[_tone(finding)]

"""The page that compares diagnoses: overlaid lines, and violins and head maps side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

import pandas as pd

from . import depth_strip, entropy_violins, head_map, similarity_violins
from .chart import Chart
from .content import DiagnosisContent
from .depth_lines import MEASURES, depth_lines
from .diagnosis_page import choice_bar, findings_html, gaps_html, metric_menu, strip, strip_picture
from .differences import differences
from .eigenvalues import eigenvalue_plane
from .entropy_histogram import entropy_histogram
from .page import Section, about_html, bullet_list, document, menu, series_cards
from .propagation import propagation_line
from .violin import outlines


def comparison_page(contents: Sequence[DiagnosisContent], footer: str) -> str:
    """The HTML of a comparison."""
    names = [content.name for content in contents]
    collapsed = [content for content in contents if any(finding.collapse for finding in content.findings)]
    layer, head = (collapsed or contents)[0].first_choice()
    layer = min(layer, *(content.depth for content in contents))
    measured = [content.heads for content in contents if len(content.heads)]
    ends = head_map.extents(measured) if measured else {}
    metric = next(iter(ends), "")
    depth, heads = max(c.depth for c in contents), max(c.head_count for c in contents)
    sections = [
        Section(
            "Depth at a glance",
            _each(contents, lambda c, name: strip(c, name, depth), "depth-strip"),
            caption=depth_strip.CAPTION,
        ),
        Section("By layer", _lines(contents, names), layout="pairs"),
        similarity_section("How alike are the tokens?", contents),
        entropy_section("How widely does attention look?", contents),
        _head_entropies(contents),
        Section(
            "Every head",
            _each(_with_heads(contents), lambda c, name: head_map.head_map(c.heads, c.depth, c.head_count, ends, name)),
            metric_menu([c.heads for c in _with_heads(contents)], metric) if ends else "",
            "pairs",
            head_map.CAPTION,
        ),
        Section("The chosen head", _head_charts(contents, names), layout="columns"),
    ]
    choice = {"layer": layer, "head": head, "metric": metric, "tokens": "raw"}
    lead = _lead(contents) + (choice_bar(depth, heads, layer, head) if heads else "")
    shown = [section for section in sections if section.charts]
    return document(" against ".join(names), lead, shown, choice, footer=footer)


def comparison_notebook_html(contents: Sequence[DiagnosisContent]) -> str:
    """For a notebook: where they differ, and below each name its depth strip as a picture; no scripts."""
    strips = "".join(
        f"<p><b>{escape(content.name)}</b><br>{escape(content.about)}</p>{strip_picture(content)}"
        for content in contents
    )
    names = escape(" against ".join(content.name for content in contents))
    return f"<div><b>{names}</b>{bullet_list(differences(contents))}{strips}</div>"


def _lead(contents: Sequence[DiagnosisContent]) -> str:
    bodies = [f"{about_html(c.about)}{findings_html(c.findings)}{gaps_html(c)}" for c in contents]
    cards = series_cards([content.name for content in contents], bodies)
    return f'<section class="card"><h2>What differs</h2>{bullet_list(differences(contents))}</section>\n{cards}'


def _each(
    contents: Sequence[DiagnosisContent], draw: Callable[[DiagnosisContent, str], Chart | None], name: str = "head-map"
) -> list[Chart]:
    """One chart per report, titled with the name of the report; the caption is that of the section."""
    drawn = [(content, draw(content, f"{name}-{n}")) for n, content in enumerate(contents, start=1)]
    return [_titled(chart, content.name) for content, chart in drawn if chart is not None]


def _titled(chart: Chart, name: str) -> Chart:
    title = chart.spec["title"]
    title = title if isinstance(title, dict) else {"text": title}
    return replace(chart, caption="", spec=chart.spec | {"title": title | {"subtitle": name}})


def _lines(contents: Sequence[DiagnosisContent], names: Sequence[str]) -> list[Chart]:
    layers = _stacked([content.layers for content in contents])
    return [depth_lines(layers, column, names) for column in MEASURES if column in layers]


def similarity_section(title: str, contents: Sequence[DiagnosisContent]) -> Section:
    """Violins of token similarity by layer, one chart per report that has them."""

    def draw(content: DiagnosisContent, name: str) -> Chart:
        return similarity_violins.similarity_violins(
            content.cosines, content.cosine_width, content.layers, content.depth, name
        )

    charts = _each([content for content in contents if len(content.cosines)], draw, "similarity-violins")
    controls = menu("tokens", "tokens", similarity_violins.KINDS, "raw")
    return Section(title, charts, controls, "pairs", similarity_violins.CAPTION)


def entropy_section(title: str, contents: Sequence[DiagnosisContent]) -> Section:
    """Violins of entropies by layer, one chart per report that has them, on one axis."""
    measured, top = _with_entropies(contents)

    def draw(content: DiagnosisContent, name: str) -> Chart:
        return entropy_violins.entropy_violins(content.entropies, content.entropy_width, content.depth, top, name)

    return Section(title, _each(measured, draw, "entropy-violins"), layout="pairs", caption=entropy_violins.CAPTION)


def _head_entropies(contents: Sequence[DiagnosisContent]) -> Section:
    measured, top = _with_entropies(contents)

    def draw(content: DiagnosisContent, name: str) -> Chart:
        return entropy_violins.head_violins(content.entropies, content.entropy_width, content.head_count, top, name)

    charts = _each(measured, draw, "entropy-violins-of-heads")
    return Section("The heads of the chosen layer", charts, layout="pairs", caption=entropy_violins.HEADS_CAPTION)


def _with_entropies(contents: Sequence[DiagnosisContent]) -> tuple[list[DiagnosisContent], float]:
    """The reports that have entropies, and the end of their common axis."""
    measured = [content for content in contents if len(content.entropies)]
    tops = (entropy_violins.axis_top(content.entropies, content.entropy_width) for content in measured)
    return measured, max(tops, default=0.0)


def _with_heads(contents: Sequence[DiagnosisContent]) -> list[DiagnosisContent]:
    return [content for content in contents if len(content.heads)]


def _head_charts(contents: Sequence[DiagnosisContent], names: Sequence[str]) -> list[Chart]:
    """The charts of the selected head, each with all reports."""
    charts = []
    eigenvalues = _stacked([content.eigenvalues for content in contents])
    if len(eigenvalues):
        charts.append(eigenvalue_plane(eigenvalues, names))
    propagation = _stacked([content.propagation for content in contents])
    if len(propagation):
        charts.append(propagation_line(propagation, names))
    entropies = _stacked([content.entropies for content in contents])
    if len(entropies):
        width = contents[0].entropy_width
        shapes = outlines(entropies, ["report", "layer", "head"], width)
        top = entropy_violins.axis_top(entropies, width)
        charts.append(entropy_histogram(shapes[shapes["share"] > 0], width, top, names))
    return charts


def _stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All tables in one, numbered from 1 in the column `report`."""
    numbered = [table.assign(report=n) for n, table in enumerate(tables, start=1) if len(table)]
    return pd.concat(numbered, ignore_index=True) if numbered else pd.DataFrame()

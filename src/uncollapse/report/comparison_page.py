"""The page that sets reports side by side: lines overlaid, violins and head maps beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

import pandas as pd

from . import depth_strip, entropy_violins, head_map, similarity_violins
from .chart import Chart
from .content import Content
from .depth_lines import MEASURES, depth_lines
from .diagnosis_page import choice_bar, findings_html, gaps_html, metric_menu, strip
from .differences import differences
from .eigenvalues import eigenvalue_plane
from .entropy_histogram import entropy_histogram
from .page import Section, bullet_list, document, menu
from .propagation import propagation_line
from .similarity_violins import KINDS
from .violin import outlines


def comparison_page(contents: Sequence[Content], footer: str) -> str:
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
            aid=depth_strip.AID,
        ),
        Section("By layer", _lines(contents, names), layout="pairs"),
        Section(
            "How alike are the tokens?",
            similarities(_with_tokens(contents)),
            menu("tokens", "tokens", KINDS, "raw"),
            "pairs",
            similarity_violins.AID,
        ),
        *_entropies(contents),
        Section(
            "Every head",
            _each(_with_heads(contents), lambda c, name: head_map.head_map(c.heads, c.depth, c.head_count, ends, name)),
            metric_menu([c.heads for c in _with_heads(contents)], metric) if ends else "",
            "pairs",
            head_map.AID,
        ),
        Section("The chosen head", _companions(contents, names), layout="columns"),
    ]
    choice = {"layer": layer, "head": head, "metric": metric, "tokens": "raw"}
    lead = _lead(contents) + (choice_bar(depth, heads, layer, head) if heads else "")
    shown = [section for section in sections if section.charts]
    return document(" against ".join(names), lead, shown, choice, footer=footer)


def _lead(contents: Sequence[Content]) -> str:
    cards = "\n".join(
        f'<div><h2><span class="key" style="background: var(--series-{number})"></span>{escape(content.name)}</h2>'
        f'<p class="about">{escape(content.about)}</p>{findings_html(content.findings)}{gaps_html(content)}</div>'
        for number, content in enumerate(contents, start=1)
    )
    words = bullet_list(differences(contents))
    return f'<section class="card"><h2>What differs</h2>{words}</section>\n<div class="reports">{cards}</div>'


def _each(
    contents: Sequence[Content], draw: Callable[[Content, str], Chart | None], name: str = "head-map"
) -> list[Chart]:
    """One chart a report, with the report's name above it; the reading aid is the section's."""
    drawn = [(content, draw(content, f"{name}-{n}")) for n, content in enumerate(contents, start=1)]
    return [_titled(chart, content.name) for content, chart in drawn if chart is not None]


def _titled(chart: Chart, name: str) -> Chart:
    title = chart.spec["title"]
    title = title if isinstance(title, dict) else {"text": title}
    return replace(chart, aid="", spec=chart.spec | {"title": title | {"subtitle": name}})


def _lines(contents: Sequence[Content], names: Sequence[str]) -> list[Chart]:
    layers = _stacked([content.layers for content in contents])
    return [depth_lines(layers, column, names) for column in MEASURES if column in layers]


def similarities(contents: Sequence[Content]) -> list[Chart]:
    """Violins of token similarity, one chart a report."""

    def draw(content: Content, name: str) -> Chart:
        return similarity_violins.similarity_violins(content.cosines, content.layers, content.depth, name)

    return _each(contents, draw, "similarity-violins")


def entropies_by_layer(contents: Sequence[Content]) -> list[Chart]:
    """Violins of entropies by layer, one chart a report, on one axis."""
    top = max((entropy_violins.top_of(content.entropies) for content in contents), default=0.0)

    def draw(content: Content, name: str) -> Chart:
        return entropy_violins.entropy_violins(content.entropies, content.depth, top, name)

    return _each(contents, draw, "entropy-violins")


def _entropies(contents: Sequence[Content]) -> list[Section]:
    measured = [content for content in contents if len(content.entropies)]
    if not measured:
        return []
    top = max(entropy_violins.top_of(content.entropies) for content in measured)

    def by_head(content: Content, name: str) -> Chart:
        return entropy_violins.head_violins(content.entropies, content.head_count, top, name)

    layers = entropies_by_layer(measured)
    heads = _each(measured, by_head, "entropy-violins-of-heads")
    return [
        Section("How widely does attention look?", layers, layout="pairs", aid=entropy_violins.AID),
        Section("The heads of the chosen layer", heads, layout="pairs", aid=entropy_violins.HEADS_AID),
    ]


def _with_tokens(contents: Sequence[Content]) -> list[Content]:
    return [content for content in contents if len(content.cosines)]


def _with_heads(contents: Sequence[Content]) -> list[Content]:
    return [content for content in contents if len(content.heads)]


def _companions(contents: Sequence[Content], names: Sequence[str]) -> list[Chart]:
    """The chosen head of every report in one chart each."""
    charts = []
    eigenvalues = _stacked([content.eigenvalues for content in contents])
    if len(eigenvalues):
        charts.append(eigenvalue_plane(eigenvalues, names))
    propagation = _stacked([content.propagation for content in contents])
    if len(propagation):
        charts.append(propagation_line(propagation, names))
    entropies = _stacked([content.entropies for content in contents])
    if len(entropies):
        shapes = outlines(entropies, ["report", "layer", "head"], entropy_violins.WIDTH)
        charts.append(entropy_histogram(shapes[shapes["share"] > 0], entropy_violins.top_of(entropies), names))
    return charts


def _stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All tables in one, with a column `report` from 1."""
    numbered = [table.assign(report=n) for n, table in enumerate(tables, start=1) if len(table)]
    return pd.concat(numbered, ignore_index=True) if numbered else pd.DataFrame()

"""The page that compares runs: what differs, what came out, and how it went, over training and inside the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import pandas as pd

from . import entropy_violins, rho_map, similarity_violins, training_curves
from .chart import Chart
from .comparison_page import entropies_by_layer, similarities
from .content import Content
from .diagnosis_page import choice_bar
from .page import Section, bullet_list, document, menu, open_table, table_html
from .training_curves import training_curve


@dataclass(frozen=True)
class Measured:
    """One measure over training: its title and table, as `training_curve` takes them."""

    title: str
    table: pd.DataFrame
    logarithmic: bool = False
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class RunsContent:
    """A comparison of groups of runs, as tables and words; groups are numbered from 1 in the order of `names`."""

    names: Sequence[str]
    about: Sequence[str]  # a line a group
    findings: Sequence[str]
    notes: Sequence[str]
    differences: pd.DataFrame
    numbers: pd.DataFrame
    numbers_aid: str
    runs: pd.DataFrame
    curves: Mapping[str, Measured]
    layers: Mapping[str, Measured]  # with a column layer
    penalty: Mapping[str, Measured] = field(default_factory=dict)
    diagnoses: Sequence[Content] = ()  # of the models at the end, named after their groups
    rho: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by the group's name


def runs_page(content: RunsContent, footer: str) -> str:
    """The HTML of a comparison of runs."""
    depth, heads = _extent(content)
    sections = [
        Section("Over training", _curves(content, content.curves), layout="pairs", aid=training_curves.AID),
        Section("Collapse over training", _curves(content, content.layers), layout="pairs", aid=training_curves.AID),
        Section(
            "How alike are the tokens at the end?",
            similarities([d for d in content.diagnoses if len(d.cosines)]),
            menu("tokens", "tokens", similarity_violins.KINDS, "raw"),
            "pairs",
            similarity_violins.AID,
        ),
        Section(
            "How widely does attention look at the end?",
            entropies_by_layer([d for d in content.diagnoses if len(d.entropies)]),
            layout="pairs",
            aid=entropy_violins.AID,
        ),
        Section(
            "From where does a signal arrive?",
            _maps(content),
            menu("scope", "show", rho_map.SCOPES, "mean"),
            "pairs",
            rho_map.AID,
        ),
        Section("LocAteR", _curves(content, content.penalty), layout="pairs", aid=training_curves.AID),
    ]
    bar = choice_bar(depth, heads, depth, 1) if depth else ""
    choice = {"layer": depth or 1, "head": 1, "tokens": "raw", "scope": "mean"}
    names = content.names
    title = " against ".join(names) if len(names) < 4 else f"{len(names)} settings compared"
    shown = [section for section in sections if section.charts]
    rest = table_html(content.runs, f"The runs ({len(content.runs)})")
    return document(title, _lead(content) + bar, shown, choice, rest, footer)


def summary_html(content: RunsContent) -> str:
    """Words and tables without charts, as a notebook shows them."""
    tables = [t.to_html(escape=True, border=0, index=False) for t in (content.numbers, content.differences) if len(t)]
    words = bullet_list([*content.findings, *content.notes])
    return f"<div><b>{escape(' against '.join(content.names))}</b>{words}{''.join(tables)}</div>"


def _lead(content: RunsContent) -> str:
    cards = "".join(
        f'<div><h2><span class="key" style="background: var(--series-{number})"></span>{escape(name)}</h2>'
        f'<p class="about">{escape(about)}</p></div>'
        for number, (name, about) in enumerate(zip(content.names, content.about, strict=True), start=1)
    )
    notes = "".join(f'<div class="verdict noted"><p><b>○</b> {escape(note)}</p></div>' for note in content.notes)
    differences = (
        open_table(content.differences, "What differs between the recipes")
        if len(content.differences)
        else '<p class="about">The recipes are equal up to the seed.</p>'
    )
    return (
        f'<div class="reports">{cards}</div>\n'
        f'<section class="card"><h2>What the runs show</h2>{_words(content.findings)}</section>\n{notes}\n'
        f"{differences}\n"
        f"{open_table(content.numbers, 'Final numbers', content.numbers_aid) if len(content.numbers) else ''}\n"
    )


def _words(findings: Sequence[str]) -> str:
    """Sentences with what they are about set off: the words before the first colon."""
    items = []
    for sentence in findings:
        subject, colon, rest = sentence.partition(": ")
        items.append(
            f"<li><b>{escape(subject)}</b>{colon}{escape(rest)}</li>" if colon else f"<li>{escape(sentence)}</li>"
        )
    return f"<ul>{''.join(items)}</ul>"


def _curves(content: RunsContent, measures: Mapping[str, Measured]) -> list[Chart]:
    return [
        training_curve(m.table, name, m.title, content.names, logarithmic=m.logarithmic, ends=m.ends)
        for name, m in measures.items()
        if len(m.table)
    ]


def _maps(content: RunsContent) -> list[Chart]:
    charts = []
    for number, (name, rho) in enumerate(content.rho.items(), start=1):
        steps = sorted({int(step) for step in rho["step"]})
        chart = rho_map.rho_map(rho, f"rho-map-{number}", steps)
        title = chart.spec["title"] | {"subtitle": name}
        charts.append(Chart(chart.name, chart.spec | {"title": title}, "", chart.tables))
    return charts


def _extent(content: RunsContent) -> tuple[int, int]:
    """The number of layers and of heads that can be chosen."""
    layers = [int(measure.table["layer"].max()) for measure in content.layers.values() if len(measure.table)]
    depth = max([*layers, *(diagnosis.depth for diagnosis in content.diagnoses)], default=0)
    return depth, max((diagnosis.head_count for diagnosis in content.diagnoses), default=1)

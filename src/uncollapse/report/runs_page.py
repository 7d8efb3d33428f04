"""The page that compares runs: their recipes, final values, curves over training and the models at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

import pandas as pd

from . import final_strip, rho_map, training_curves
from .chart import Chart
from .comparison_page import entropy_section, similarity_section
from .content import DiagnosisContent
from .diagnosis_page import choice_bar
from .final_strip import FinalValues
from .page import (
    Section,
    about_html,
    bullet_list,
    document,
    menu,
    named_rows,
    notes_html,
    open_table,
    series_cards,
    table_html,
)
from .training_curves import TrainingCurve, training_charts

LONGEST_TITLE = 90  # characters


@dataclass(frozen=True)
class RunsContent:
    """A comparison of groups of runs; groups are numbered from 1 in the order of `names`."""

    names: Sequence[str]
    about: Sequence[str]  # one line per group
    findings: Sequence[str]
    notes: Sequence[str]
    differences: pd.DataFrame
    numbers: pd.DataFrame
    costs: pd.DataFrame
    numbers_caption: str
    runs: pd.DataFrame
    final: Mapping[str, FinalValues]
    curves: Mapping[str, TrainingCurve]
    layers: Mapping[str, TrainingCurve]  # with a column layer
    penalty: Mapping[str, TrainingCurve] = field(default_factory=dict)
    diagnoses: Sequence[DiagnosisContent] = ()  # at the end, one per group
    rho: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by the name of the group


def runs_page(content: RunsContent, footer: str) -> str:
    """The HTML of a comparison of runs."""
    depth, heads = _extent(content)
    bar = choice_bar(depth, heads, depth, 1) if depth else ""
    choice = {"layer": depth or 1, "head": 1, "tokens": "raw", "scope": "mean"}
    names = content.names
    title = " against ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
    if len(title) > LONGEST_TITLE:
        title = f"{len(names)} settings compared"
    shown = [section for section in _sections(content) if section.charts]
    costs = open_table(content.costs, "Time and memory", content.numbers_caption) if len(content.costs) else ""
    rest = costs + table_html(content.runs, f"The runs ({len(content.runs)})")
    return document(title, _lead(content) + bar, shown, choice, rest, footer)


def _sections(content: RunsContent) -> list[Section]:
    """All sections, also those without charts."""
    finals = _finals(content)
    return [
        Section(
            "At the end of training",
            finals,
            layout=_columns(finals),
            caption=final_strip.CAPTION,
            after=named_rows(content.numbers, content.numbers_caption) if len(content.numbers) else "",
        ),
        _over_training("Over training", content, content.curves),
        _over_training("Collapse over training", content, content.layers),
        similarity_section("How alike are the tokens at the end?", content.diagnoses),
        entropy_section("How widely does attention look at the end?", content.diagnoses),
        Section(
            "From where does a signal arrive?",
            _maps(content),
            menu("scope", "show", rho_map.SCOPES, "mean"),
            "pairs",
            rho_map.CAPTION,
        ),
        _over_training("LocAteR", content, content.penalty),
    ]


def summary_html(content: RunsContent) -> str:
    """Findings and tables without charts, for a notebook."""
    tables = [t.to_html(escape=True, border=0, index=False) for t in (content.numbers, content.differences) if len(t)]
    words = bullet_list([*content.findings, *content.notes])
    return f"<div><b>{escape(' against '.join(content.names))}</b>{words}{''.join(tables)}</div>"


def _lead(content: RunsContent) -> str:
    differences = (
        open_table(content.differences, "What differs between the recipes")
        if len(content.differences)
        else about_html("The recipes are equal up to the seed.")
    )
    return (
        f"{series_cards(content.names, [about_html(about) for about in content.about])}\n"
        f'<section class="card"><h2>What the runs show</h2>{grouped_list(content.findings)}</section>\n'
        f"{notes_html(content.notes)}\n"
        f"{differences}\n"
    )


def grouped_list(findings: Sequence[str]) -> str:
    """Sentences as a list, grouped by their subject, which is the text before the first colon."""
    subjects: dict[str, list[str]] = {}
    for sentence in findings:
        subject, colon, rest = sentence.partition(": ")
        subjects.setdefault(subject if colon else "", []).append(rest if colon else sentence)
    items = []
    for subject, sentences in subjects.items():
        if not subject:
            items += [f"<li>{escape(sentence)}</li>" for sentence in sentences]
        elif len(sentences) == 1:
            items.append(f"<li><b>{escape(subject)}:</b> {escape(sentences[0])}</li>")
        else:
            items.append(f"<li><b>{escape(subject)}:</b>{bullet_list(sentences)}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _finals(content: RunsContent) -> list[Chart]:
    return [final_strip.final_strip(values, name, content.names) for name, values in content.final.items()]


def _over_training(title: str, content: RunsContent, curves: Mapping[str, TrainingCurve]) -> Section:
    charts = training_charts(curves, content.names)
    return Section(title, charts, layout=_columns(charts), caption=training_curves.CAPTION)


def _columns(charts: Sequence[Chart]) -> Literal["columns", "pairs"]:
    return "columns" if len(charts) == 3 else "pairs"


def _maps(content: RunsContent) -> list[Chart]:
    charts = []
    for number, (name, rho) in enumerate(content.rho.items(), start=1):
        steps = sorted({int(step) for step in rho["step"]})
        chart = rho_map.rho_map(rho, f"rho-map-{number}", steps)
        title = chart.spec["title"] | {"subtitle": name}
        charts.append(Chart(chart.name, chart.spec | {"title": title}, "", chart.tables))
    return charts


def _extent(content: RunsContent) -> tuple[int, int]:
    """The number of layers and of heads that can be selected."""
    layers = [int(measure.table["layer"].max()) for measure in content.layers.values() if len(measure.table)]
    depth = max([*layers, *(diagnosis.depth for diagnosis in content.diagnoses)], default=0)
    return depth, max((diagnosis.head_count for diagnosis in content.diagnoses), default=1)

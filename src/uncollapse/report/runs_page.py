"""The page that compares runs: what differs, what came out, and how it went, over training and inside the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

import pandas as pd

from . import entropy_violins, final_strip, rho_map, similarity_violins, training_curves
from .chart import Chart
from .comparison_page import entropies_by_layer, similarities
from .content import Content
from .diagnosis_page import choice_bar
from .page import Section, bullet_list, document, menu, named_rows, open_table, table_html
from .training_curves import training_curve

LONGEST_TITLE = 90  # characters


@dataclass(frozen=True)
class TrainingCurve:
    """One measure over training: its title and table, as `training_curve` takes them."""

    title: str
    table: pd.DataFrame
    logarithmic: bool = False
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class FinalNumbers:
    """One measure at the end: its title, the numbers of seeds and their means, as `final_strip` takes them."""

    title: str
    seeds: pd.DataFrame
    means: pd.DataFrame


@dataclass(frozen=True)
class RunsContent:
    """A comparison of groups of runs, as tables and words; groups are numbered from 1 in the order of `names`."""

    names: Sequence[str]
    about: Sequence[str]  # a line a group
    findings: Sequence[str]
    notes: Sequence[str]
    differences: pd.DataFrame
    numbers: pd.DataFrame
    costs: pd.DataFrame
    numbers_aid: str
    runs: pd.DataFrame
    final: Mapping[str, FinalNumbers]
    curves: Mapping[str, TrainingCurve]
    layers: Mapping[str, TrainingCurve]  # with a column layer
    penalty: Mapping[str, TrainingCurve] = field(default_factory=dict)
    diagnoses: Sequence[Content] = ()  # of the models at the end, named after their groups
    rho: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by the group's name


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
    costs = open_table(content.costs, "Time and memory", content.numbers_aid) if len(content.costs) else ""
    rest = costs + table_html(content.runs, f"The runs ({len(content.runs)})")
    return document(title, _lead(content) + bar, shown, choice, rest, footer)


def _sections(content: RunsContent) -> list[Section]:
    """All sections; those without charts are not shown."""
    finals = _finals(content)
    return [
        Section(
            "At the end of training",
            finals,
            layout=_columns(finals),
            aid=final_strip.AID,
            after=named_rows(content.numbers, content.numbers_aid) if len(content.numbers) else "",
        ),
        _over_training("Over training", content, content.curves),
        _over_training("Collapse over training", content, content.layers),
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
        _over_training("LocAteR", content, content.penalty),
    ]


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
        f'<section class="card"><h2>What the runs show</h2>{words_html(content.findings)}</section>\n{notes}\n'
        f"{differences}\n"
    )


def words_html(findings: Sequence[str]) -> str:
    """Sentences; those about one thing, named before the first colon, stand under its name."""
    subjects: dict[str, list[str]] = {}
    for sentence in findings:
        subject, colon, rest = sentence.partition(": ")
        subjects.setdefault(subject if colon else "", []).append(rest if colon else sentence)
    items = []
    for subject, said in subjects.items():
        if not subject:
            items += [f"<li>{escape(sentence)}</li>" for sentence in said]
        elif len(said) == 1:
            items.append(f"<li><b>{escape(subject)}:</b> {escape(said[0])}</li>")
        else:
            items.append(f"<li><b>{escape(subject)}:</b>{bullet_list(said)}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _finals(content: RunsContent) -> list[Chart]:
    return [
        final_strip.final_strip(final.seeds, final.means, name, final.title, content.names)
        for name, final in content.final.items()
    ]


def _over_training(title: str, content: RunsContent, measures: Mapping[str, TrainingCurve]) -> Section:
    charts = [
        training_curve(m.table, name, m.title, content.names, logarithmic=m.logarithmic, ends=m.ends)
        for name, m in measures.items()
        if len(m.table)
    ]
    return Section(title, charts, layout=_columns(charts), aid=training_curves.AID)


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
    """The number of layers and of heads that can be chosen."""
    layers = [int(measure.table["layer"].max()) for measure in content.layers.values() if len(measure.table)]
    depth = max([*layers, *(diagnosis.depth for diagnosis in content.diagnoses)], default=0)
    return depth, max((diagnosis.head_count for diagnosis in content.diagnoses), default=1)

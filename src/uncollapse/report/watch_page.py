"""The page over training: heads over steps, the chosen head with its forecast, loss and gradients, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd

from .chart import Chart
from .diagnosis_page import choice_bar, metric_menu
from .head_map import extents
from .page import Section, about_html, bullet_list, document, notes_html, series_cards, table_html
from .picture import image_html
from .step_lines import HEAD, head_line, measured, update_line
from .step_map import step_maps, thinned

SHOWN = ("logit_max", "gap_mean", "entropy_normalised", "sink_strongest", "sink", "gap_max", "qk_trace", "qk_scale")
HEAD_TITLES = {"logit_max": "Largest score", "gap_mean": "Mean gap", "entropy_normalised": "Entropy, normalised"}
UPDATE_TITLES = {"loss": "Loss", "gradient_norm": "Gradient norm"}


@dataclass(frozen=True)
class WatchContent:
    """One or more watched runs; runs are numbered from 1 in the order of `names`."""

    names: Sequence[str]
    about: Sequence[str]  # a line for each run
    heads: Sequence[pd.DataFrame]  # of each run, with a column step
    updates: Sequence[pd.DataFrame]
    warnings: Sequence[pd.DataFrame]
    forecasts: pd.DataFrame  # report, column, layer, head, step, value: ends of dashed lines
    limits: Mapping[str, float]
    notes: Sequence[str] = ()


def watch_page(content: WatchContent, footer: str) -> str:
    """The HTML."""
    shown = [thinned(_columns(heads)) for heads in content.heads]
    everything = pd.concat(shown, ignore_index=True)
    ends = extents([everything.drop(columns="step")])
    metric = next((name for name in SHOWN if name in ends), next(iter(ends)))
    ends = {metric: ends[metric], **ends}
    layer, head = _first_choice(everything, metric)
    several = len(content.names) > 1
    maps = [
        chart
        for number, (name, heads) in enumerate(zip(content.names, shown, strict=True), start=1)
        for chart in step_maps(heads, ends, number, name if several else "")
    ]
    chosen = [everything.drop(columns="step")[["layer", "head", *ends]]]
    sections = [
        Section("Every head over training", maps, metric_menu(chosen, metric), layout="pairs"),
        Section("The chosen head", _head_lines(content, shown), layout="columns", caption=HEAD),
        Section("Every update", _update_lines(content), layout="pairs"),
    ]
    title = f"{content.names[0]}, watched" if not several else " against ".join(content.names)
    depth, heads_count = int(everything["layer"].max()), int(everything["head"].max())
    lead = f"{_lead(content)}{notes_html(content.notes)}{choice_bar(depth, heads_count, layer, head)}"
    choice = {"layer": layer, "head": head, "metric": metric}
    told = pd.concat([w.assign(run=n) for n, w in zip(content.names, content.warnings, strict=True)], ignore_index=True)
    rest = table_html(told, "The warnings") if len(told) else ""
    return document(title, lead, [section for section in sections if section.charts], choice, rest, footer)


def watch_notebook_html(content: WatchContent) -> str:
    """For a notebook: what was told, the heads over training and the loss, as pictures without scripts."""
    heads = thinned(_columns(content.heads[0]))
    ends = extents([heads.drop(columns="step")])
    metric = next((name for name in SHOWN if name in ends), "")
    told = [str(sentence).partition(" What helps:")[0] for sentence in content.warnings[0]["sentence"]]
    words = bullet_list([f"▲ {sentence}" for sentence in told] or ["✓ No warning."])
    charts = step_maps(heads, {metric: ends[metric]}, 1, "")[:1] if metric else []
    charts += _update_lines(content)[:1]
    pictures = "".join(f"<div>{image_html(chart, chart.caption)}</div>" for chart in charts)
    return f"<div><b>{escape(content.names[0])}, watched</b><br>{escape(content.about[0])}{words}{pictures}</div>"


def _columns(heads: pd.DataFrame) -> pd.DataFrame:
    return heads[["step", "layer", "head", *(name for name in SHOWN if name in heads)]]


def _first_choice(heads: pd.DataFrame, metric: str) -> tuple[int, int]:
    """The head with the largest value at the end."""
    last = heads[heads["step"] == heads["step"].max()]
    if last[metric].isna().all():
        return int(last["layer"].iloc[0]), int(last["head"].iloc[0])
    row = last.loc[last[metric].idxmax()]
    return int(row["layer"]), int(row["head"])


def _lead(content: WatchContent) -> str:
    bodies = [
        about_html(about) + _warning_boxes(told) for about, told in zip(content.about, content.warnings, strict=True)
    ]
    return series_cards(content.names, bodies) if len(content.names) > 1 else bodies[0]


def _warning_boxes(told: pd.DataFrame) -> str:
    if told.empty:
        return '<div class="verdict healthy"><p><b>✓ No warning.</b></p></div>'
    boxes = []
    for row in told.itertuples():
        sentence, dot, rest = str(row.sentence).partition(" What helps:")
        tone, sign = ("noted", "○") if "recovered from" in sentence else ("collapse", "▲")
        remedy = f'<p class="remedy">{escape(dot + rest).strip()}</p>' if dot else ""
        boxes.append(f'<div class="verdict {tone}"><p><b>{sign}</b> {escape(sentence)}</p>{remedy}</div>')
    return "\n".join(boxes)


def _head_lines(content: WatchContent, shown: Sequence[pd.DataFrame]) -> list[Chart]:
    charts = []
    for column, title in HEAD_TITLES.items():
        table = measured(shown, column)
        if len(table):
            ahead = content.forecasts[content.forecasts["column"] == column].drop(columns="column")
            whole = pd.concat([table, ahead.assign(part="forecast")], ignore_index=True) if len(ahead) else table
            charts.append(head_line(whole, column, title, content.names, content.limits.get(column)))
    return charts


def _update_lines(content: WatchContent) -> list[Chart]:
    tables = {column: measured(content.updates, column) for column in UPDATE_TITLES}
    return [
        update_line(table, column, UPDATE_TITLES[column], content.names)
        for column, table in tables.items()
        if len(table)
    ]

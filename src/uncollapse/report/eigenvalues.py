"""Eigenvalues of the selected head's query-key matrix in the complex plane."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .chart import SCHEMA, Chart, Spec, parameters, series_colour, series_names, series_tooltip, tooltip

CAPTION = "A dot is an eigenvalue of the query-key matrix; in theory attention localises where they crowd away from 0."
NAME = "eigenvalues"
SIDE = 216  # pixels; the plot is square, so that angles are not distorted


def eigenvalue_plane(eigenvalues: pd.DataFrame, names: Sequence[str]) -> Chart:
    """One dot per eigenvalue of the selected head; `eigenvalues` has report, layer, head, real and imag."""
    axis = {"format": ".3~g", "tickCount": 4, "labelFlush": False}
    real = {"type": "quantitative", "title": "real part", "axis": axis}
    imag = {"type": "quantitative", "title": "imaginary part", "axis": axis}
    # Invisible points in the corners give both axes the same range, centred at 0.
    reach = {"op": "max", "field": "reach", "as": "reach"}
    corners = [
        {
            "transform": [{"aggregate": [reach]}, {"calculate": f"{sign} * datum.reach", "as": "corner"}],
            "mark": {"type": "point", "opacity": 0, "tooltip": None},
            "encoding": {"x": {"field": "corner", **real}, "y": {"field": "corner", **imag}},
        }
        for sign in ("-1.08", "1.08")
    ]
    zero: list[Spec] = [
        {"mark": {"type": "rule", "style": "zero", "tooltip": None}, "encoding": {way: {"datum": 0, **along}}}
        for way, along in (("x", real), ("y", imag))
    ]
    dots = {
        "mark": {"type": "point", "style": "series", "filled": True, "opacity": 0.75, "size": 36},
        "encoding": {
            "x": {"field": "real", **real},
            "y": {"field": "imag", **imag},
            "tooltip": [*series_tooltip(names), *tooltip(real="real part", imag="imaginary part")],
            **series_colour(names),
        },
    }
    spec = {
        "$schema": SCHEMA,
        "width": SIDE,
        "height": SIDE,
        "title": {"text": {"expr": "'Eigenvalues, layer ' + layer + ', head ' + head"}},
        "data": {"table": NAME},
        "params": parameters(layer=1, head=1, names=list(names)),
        "transform": [
            {"filter": "datum.layer == layer && datum.head == head"},
            {"calculate": "max(abs(datum.real), abs(datum.imag))", "as": "reach"},
            *series_names(names),
        ],
        "layer": [*corners, *zero, dots],
    }
    return Chart(NAME, spec, CAPTION, {NAME: eigenvalues})

"""Updates that go on in one direction: along the top singular vectors of W_QK, with the same sign each time."""

from __future__ import annotations

from uncollapse.diagnosis.advice import advice
from uncollapse.diagnosis.verdicts import layer_ranges

from ..alarm import Alarm
from ..recent import Recent

MEASUREMENTS = 8  # in a row with a positive sign: by chance once in 256
ALIGNED = 0.3  # mean cosine with the top direction: a tenth of the update's energy goes there


def sign_alignment(recent: Recent) -> list[Alarm]:
    """Layers in which every one of the last updates made the top singular value of the largest head larger."""
    table = recent.optimizer
    if "update_alignment" not in table:
        return []
    wide = table.pivot_table(index="step", columns="layer", values="update_alignment").iloc[-MEASUREMENTS:]
    if len(wide) < MEASUREMENTS:
        return []
    steady = wide.columns[(wide > 0).all() & (wide.mean() > ALIGNED)]
    if not len(steady):
        return []
    means = wide[steady].mean()
    layers = tuple(int(n) for n in sorted(steady))
    sentence = (
        f"{layer_ranges(layers)}: the last {MEASUREMENTS} measured updates all push the query-key matrix along its top "
        f"singular vectors; most in layer {means.idxmax():.0f}, with a mean cosine of {means.max():.2f}."
    )
    remedy = advice("entropy collapse", recent.diagnosis.info.get("settings", {}))
    return [Alarm("aligned updates", sentence, layers, (), remedy)]

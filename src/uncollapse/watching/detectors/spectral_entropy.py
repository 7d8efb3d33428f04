"""Updates of W_QK that have lost their directions: they pile up in a few, as before logits run away."""

from __future__ import annotations

from uncollapse.diagnosis.advice import advice
from uncollapse.diagnosis.verdicts import layer_ranges

from ..alarm import Alarm
from ..course import PERSISTENCE
from ..recent import Recent

LOW = 0.25  # of the entropy that an update of full rank could have; an update of rank one has 0


def spectral_entropy(recent: Recent) -> list[Alarm]:
    """Layers whose last update of W_QK, in the head where that is largest, went in next to no direction but a few."""
    table = recent.optimizer
    if "spectral_entropy" not in table:
        return []
    last = table[table["step"] == recent.step]
    low = last[(last["spectral_entropy"] < LOW) & (last["update_ratio_query"] > 0)]
    if low.empty:
        return []
    worst = low.loc[low["spectral_entropy"].idxmin()]
    layers = tuple(int(n) for n in sorted(low["layer"]))
    sentence = (
        f"{layer_ranges(layers)}: the update of the query-key matrix has few directions left; lowest in layer "
        f"{worst['layer']:.0f}, head {worst['decomposed_head']:.0f}: spectral entropy {worst['spectral_entropy']:.2f} "
        "of what it could have."
    )
    heads = tuple((int(n), int(h)) for n, h in zip(low["layer"], low["decomposed_head"], strict=True))
    remedy = advice("entropy collapse", recent.diagnosis.info.get("settings", {}))
    return [Alarm("low-rank update", sentence, layers, heads, remedy, PERSISTENCE)]

"""The table and the sentences of the study, and what the remedies' table of contents says of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from uncollapse.statistics import FEWEST, Estimate

from ..rescue.judging import RESCUED
from .findings import ROUNDING, RetrofitCourse, RetrofitFindings
from .plan import CONTROL, HOSTS, RATE, RETROFITS, SMALL, STORIES

VERDICTS = {"lower": "better", "higher": "worse", "undecided": "undecided"}
NEVER = "never"


def summary(found: RetrofitFindings) -> pd.DataFrame:
    """One row for each model and way."""
    rows = []
    for host in found.hosts:
        for label in found.labels(host):
            own, final, gap = found.of(host, label), found.final(host, label), found.against.get((host, label))
            spread = "" if final is None or math.isnan(final.spread) else f" ± {final.spread:.4f}"
            rows.append(
                {
                    "model": host,
                    "put in": label,
                    "jump": "" if label == CONTROL else jump_text(found.jump(host, label)),
                    "recovered after": "" if label == CONTROL else recovery(found.recovered(host, label)),
                    "final loss": "diverged" if final is None else f"{final.mean:.4f}{spread}",
                    "against the control": "" if gap is None else f"{gap}, {VERDICTS[gap.verdict]}",
                    "its parameters moved by at most": _moved(own),
                    "seeds": len(own),
                }
            )
    return pd.DataFrame(rows)


def jump_text(jump: float) -> str:
    """A jump; one that rounding alone makes is 0.

    >>> jump_text(0.51234), jump_text(1e-7)
    ('+0.512', '0')
    """
    return "0" if abs(jump) <= ROUNDING else f"{jump:+.3g}"


def recovery(after: Sequence[int | None]) -> str:
    """When the runs have recovered, from the first to the last of them.

    >>> recovery([30, 20, None])
    '20 to 30, never in 1 of 3'
    """
    known = sorted(step for step in after if step is not None)
    if not known:
        return NEVER
    some = f", {NEVER} in {len(after) - len(known)} of {len(after)}" if len(known) < len(after) else ""
    return (f"{known[0]}" if known[0] == known[-1] else f"{known[0]} to {known[-1]}") + some


def _moved(own: Sequence[RetrofitCourse]) -> str:
    """How far training has moved a parameter of the remedy's own at most, in all runs; empty if it has none."""
    most = max(course.moved for course in own)
    return "" if math.isnan(most) else f"{most:.2g}"


def sentences(found: RetrofitFindings) -> list[str]:
    """What it comes to, model by model, and then the setting."""
    told = []
    for host in found.hosts:
        told += [_jumps(found, host), _recoveries(found, host), _ends(found, host)]
    return [*filter(None, told), *_starts(found), *_setting(found)]


def _jumps(found: RetrofitFindings, host: str) -> str:
    jumps = {label: found.jump(host, label) for label in found.labels(host) if label != CONTROL}
    moved = sorted((label for label in jumps if abs(jumps[label]) > ROUNDING), key=lambda label: -jumps[label])
    still = [label for label in jumps if label not in moved]
    parts = [f"{label} {jumps[label]:+.3g}" for label in moved]
    same = f" Nothing changes with {', '.join(still)}: less than {ROUNDING:g}." if still else ""
    stock = found.of(host, CONTROL)[0].stock
    return f"{host}, held-out loss {stock:.3f}: what is put in changes it at once by {_listed(parts)}.{same}"


def _recoveries(found: RetrofitFindings, host: str) -> str:
    """Which are back at the control's loss, and when."""
    texts = {label: recovery(found.recovered(host, label)) for label in found.labels(host) if label != CONTROL}
    never = [label for label, text in texts.items() if text == NEVER]
    close = [label for label, text in texts.items() if text == "0"]
    back = [f"{label} {text}" for label, text in texts.items() if text not in (NEVER, "0")]
    updates, near = found.of(host, CONTROL)[0].steps[-1], f"{RESCUED - 1:.0%}".replace("%", " %")
    return (
        f"{host}, back for good within {near} of the control after how many updates: {_listed(back)}. Never further "
        f"from it: {_listed(close)}. Not within {updates} updates: {_listed(never)}."
    )


def _ends(found: RetrofitFindings, host: str) -> str:
    """How each ends against the control, and what could have been seen of those that are undecided."""
    control = found.final(host, CONTROL)
    gaps = {label: found.against.get((host, label)) for label in found.labels(host)}
    if control is None:
        return f"{host}: the control diverged, so nothing can be said of how the others end."
    start, updates = found.of(host, CONTROL)[0].stock, found.of(host, CONTROL)[0].steps[-1]
    said: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for label, gap in gaps.items():
        if gap is not None:
            said[gap.verdict].append(f"{label} {_seen(gap) if gap.verdict == 'undecided' else gap}")
    diverged = [label for label in gaps if found.final(host, label) is None]
    return (
        f"{host} after {updates} updates, against the control ({control.mean:.3f}, {control.mean - start:+.3f} since "
        f"update 0): worse {_listed(said['higher'], '; ')}. Better: {_listed(said['lower'], '; ')}. Undecided: "
        f"{_listed(said['undecided'], '; ')}." + (f" Diverged: {_listed(diverged)}." if diverged else "")
    )


def _seen(gap: Estimate) -> str:
    if gap.seeds < FEWEST:
        return f"{gap.value:+.2g} (one seed decides nothing)"
    return f"{gap.value:+.2g} (a difference of {gap.detectable:.2g} could have been seen)"


def _starts(found: RetrofitFindings) -> list[str]:
    """What a gentler start is worth: fitted gains beside gains of 1, alpha that rises beside alpha at once."""
    told = []
    for host in found.hosts:
        labels = set(found.labels(host))
        fitted = [label for label in found.labels(host) if label.startswith("qk_norm ")]
        if "qk_norm" in labels and fitted and found.jump(host, "qk_norm") > ROUNDING:
            plain = found.jump(host, "qk_norm")
            shares = [f"{label} {found.jump(host, label) / plain:.0%}".replace("%", " %") for label in fitted]
            told.append(f"{host}: of the jump of plain qk_norm a fitted start leaves: {', '.join(shares)}.")
        if {"sink", "sink from -30"} <= labels:
            far, near = (_moved(found.of(host, label)) for label in ("sink from -30", "sink"))
            told.append(f"{host}: sinks that start at -30 moved by {far} at most, those that start at 0 by {near}.")
        gaps = [found.against.get((host, label)) for label in ("hopfield", "hopfield warmed up")]
        if None not in gaps:
            highest = max(float(course.changes.max()) for course in found.of(host, "hopfield warmed up"))
            told.append(
                f"{host}: hopfield ends {gaps[0]} from the control, with a warm-up {gaps[1]}; on its way the loss of "
                f"the latter is up to {highest:+.2g} from that of update 0."
            )
    return told


def _setting(found: RetrofitFindings) -> list[str]:
    stories, small = (host for host in HOSTS)
    assert small.teaching is not None
    count = len({(course.host, course.label, course.seed) for course in found.courses})
    return [
        f"{count} runs. AdamW with a new state, constant rate {RATE:g} (from a pilot with the control), gradients "
        f"clipped at 1, remedies with their default strength; {stories.size.updates} updates, measured every "
        f"{stories.size.every}; alpha and alpha_hidden rise over {RETROFITS[-1].warmup:.0%} of them where they are "
        "warmed up. Seeds are orders of batches: model and held-out text are one, so intervals do not speak of other "
        "models.".replace("%", " %"),
        f"{STORIES}, a LLaMA that others trained, is trained on with {stories.texts} sequences of "
        f"{stories.size.length} tokens that it writes itself at temperature 1, batches of {stories.size.batch}, "
        f"{stories.size.held_out} held out. On such text no model is better than itself but by chance: the control "
        "can only get worse, and what has jumped can come back to where it was, and no further.",
        f"{SMALL} ({small.size.layers} layers of width {small.size.width}) is trained for {small.taught} updates of "
        f"{small.size.batch} x {small.size.length} half-bytes of tinyshakespeare at rate {small.teaching.rate:g}, "
        f"and then trained on with more of it, {small.size.held_out} sequences held out. It still learns, so that it "
        "can be below its loss of update 0 and behind the control.",
    ]


def evidence_of(found: RetrofitFindings) -> dict[str, str]:
    """One sentence for each remedy: its jump and its end, with every start and in every model."""
    told = {}
    for remedy in dict.fromkeys(way.name for way in RETROFITS if way.name):
        parts, seeds = [], []
        for host in found.hosts:
            for way in RETROFITS:
                gap = found.against.get((host, way.label)) if way.name == remedy else None
                if gap is not None and gap.seeds >= FEWEST:
                    jump = jump_text(found.jump(host, way.label))
                    parts.append(f"{way.label} in {host} {jump}, {gap.value:+.2g} ({VERDICTS[gap.verdict]})")
                    seeds.append(gap.seeds)
        if parts:
            updates = max(course.steps[-1] for course in found.courses)
            told[remedy] = (
                f"put into a trained model, change of the held-out loss at once, and against the stock model after "
                f"{updates} updates: {'; '.join(parts)}; {min(seeds)} seeds"
            )
    return told


def _listed(parts: Sequence[str], mark: str = ", ") -> str:
    return mark.join(parts) or "none"

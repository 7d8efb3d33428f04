"""The study of learning rates: its runs, and the table, picture and sentences made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from uncollapse.statistics import FEWEST, Estimate

from ..figure import Result
from ..short_runs.network import RunSize
from ..short_runs.store import RunStore
from ..study import ShortRun, missing
from .plan import METHODS, PLAIN, RATES, SEEDS, SIZE, TEXTS, WARMUP, plan, short_run
from .rates import PAIRED, RateFinding, best_pairs, compared, run_table, sentences, summary

ID = "remedies-rates"
NORM, AIM = "qk_norm", 0.5  # of its sensitivity: what a pair is held to


def runs(results: Path, size: RunSize | None) -> list[ShortRun]:
    """Every method at every rate; once those of the first text are made, the pairs that look best there."""
    if size is not None:
        trial = plan(list(METHODS)[:2], RATES[:2], TEXTS[:1], range(FEWEST))
        return [short_run(run, size) for run in trial]
    singles = [short_run(run, SIZE) for run in plan()]
    store = RunStore(results / ID)
    if missing([short_run(run, SIZE) for run in plan(texts=TEXTS[:1])], store):
        return singles
    return singles + [short_run(run, SIZE) for run in plan(best_pairs(_findings(store)[TEXTS[0]]))]


def _findings(store: RunStore) -> dict[str, dict[str, RateFinding]]:
    """Text, method -> what was found."""
    table = run_table(store.records.values())
    return {text: compared(table[table["text"] == text]) for text in TEXTS if (table["text"] == text).any()}


def result(results: Path) -> Result:
    """From the runs that are kept."""
    from ..charts.sensitivity_chart import sensitivity_chart

    store = RunStore(results / ID)
    found, table = _findings(store), run_table(store.records.values())
    told = [sentence for text, own in found.items() for sentence in sentences(own, text)]
    tables = [summary(own).assign(text=text) for text, own in found.items() if own]
    main = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"text": []})
    return Result(
        table=table,
        chart=sensitivity_chart(table, found),
        sentences=[*told, *_pair_sentences(found), *_setting(len(store.records))],
        reading_aid="Sensitivity: the mean over the seven rates of the held-out loss, or of a guess where that is "
        "lower, less the best of them; 0 is a network to which the rate does not matter. The lowest entropy is of a "
        "head, as a share of what even attention has.",
        summary=main[["text", *(name for name in main.columns if name != "text")]],
        settings={"seeds": SEEDS, "updates": SIZE.updates, "rates": list(RATES)},
        finding=" ".join(told[:1]),
    )


def _pair_sentences(found: Mapping[str, Mapping[str, RateFinding]]) -> list[str]:
    """Whether a pair is twice as good as QK-norm, and costs nothing at its best rate."""
    told = []
    for text, own in found.items():
        pairs = {name: one for name, one in own.items() if name not in METHODS}
        if not pairs or NORM not in own:
            continue
        best = min(pairs, key=lambda name: pairs[name].sensitivity.mean)
        one, norm = pairs[best], own[NORM].sensitivity.mean
        reached = one.sensitivity.mean < AIM * norm and not _is(one.loss_against, "higher")
        told.append(
            f"{text}: the best pair is {best}, with a sensitivity of {one.sensitivity.mean:.2f} against {norm:.2f} of "
            f"{NORM} alone and a loss of {one.loss.mean:.3f} at its best rate against {own[PLAIN].loss.mean:.3f} "
            f"without a remedy. The aim, less than half of {NORM}'s sensitivity at no cost there, is "
            f"{'reached' if reached else 'not reached'}."
        )
    return told


def _setting(kept: int) -> list[str]:
    strengths = ", ".join(remedy for remedy in METHODS.values() if "(" in remedy)
    return [
        f"{kept} runs. LLaMA, {SIZE.layers} layers of width {SIZE.width}, half-bytes of each text, {SIZE.updates} "
        f"updates of {SIZE.batch} x {SIZE.length}, AdamW, clipped at 1, {WARMUP:.0%} warm-up, then cosine. Seeds set "
        "weights and batches, and are the same for all methods. Strengths that are not the library's defaults: "
        f"{strengths}. Pairs are made of the {PAIRED} least sensitive remedies on {TEXTS[0]}.".replace("%", " %")
    ]


def evidence(results: Path) -> dict[str, str]:
    """One sentence for each remedy, for the table of contents of the remedies: first what counts, then the rest."""
    found = {text: own for text, own in _findings(RunStore(results / ID)).items() if PLAIN in own}
    lines = {}
    for name in METHODS:
        known = {t: own for t, own in found.items() if name in own and own[name].sensitivity.seeds >= FEWEST}
        if name == PLAIN or not known:
            continue
        seeds = min(own[name].sensitivity.seeds for own in known.values())
        lines[name] = (
            f"{_plainly(known, name)}; sensitivity to it {_beside(known, name, 'sensitivity')}; loss at its best rate "
            f"{_beside(known, name, 'loss')}; LLaMA, {SIZE.layers} layers of width {SIZE.width}, {seeds} seeds"
        )
    return lines


def _plainly(found: Mapping[str, Mapping[str, RateFinding]], name: str) -> str:
    """In a few words, what a verdict of a diagnosis quotes."""
    texts: dict[str, list[str]] = {"lower": [], "higher": [], "undecided": []}
    for text, own in found.items():
        gap = own[name].against
        texts["undecided" if gap is None else gap.verdict].append(text)
    less, more, open_ = (" and ".join(own) for own in texts.values())
    if not less and not more:
        return f"whether the learning rate matters less is undecided on {open_}"
    told = [f"the learning rate matters {word} on {on}" for word, on in (("less", less), ("more", more)) if on]
    return ", ".join([*told, *([f"undecided on {open_}"] if open_ else [])])


def _beside(found: Mapping[str, Mapping[str, RateFinding]], name: str, number: str) -> str:
    """A number of a method beside the plain network's, text by text."""
    parts = []
    for text, own in found.items():
        ours, plain = getattr(own[name], number).mean, getattr(own[PLAIN], number).mean
        gap = own[name].against if number == "sensitivity" else own[name].loss_against
        parts.append(f"{ours:.2f} instead of {plain:.2f} on {text} ({_judged(gap)})")
    return ", ".join(parts)


def sensitivities(results: Path) -> dict[str, dict[str, str]]:
    """Text -> method -> its sensitivity, with the verdict against the plain network; where seeds are enough for one."""
    found = _findings(RunStore(results / ID))
    return {
        text: {
            name: f"{one.sensitivity.mean:.2f}" + ("" if name == PLAIN else f" ({_judged(one.against)})")
            for name, one in found.get(text, {}).items()
            if one.sensitivity.seeds >= FEWEST
        }
        for text in TEXTS
    }


def _judged(gap: Estimate | None) -> str:
    return "better" if _is(gap, "lower") else "worse" if _is(gap, "higher") else "undecided"


def _is(gap: Estimate | None, verdict: str) -> bool:
    return gap is not None and gap.verdict == verdict

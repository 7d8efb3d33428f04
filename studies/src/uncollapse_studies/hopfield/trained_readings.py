"""The fair comparison: every reading of the visible skip against self-attention, each at its own learning rate."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

import pandas as pd

from uncollapse.statistics import Estimate, SeedSummary, differences, summarise
from uncollapse.training.compare.measures import shown

from ..artefact import ENDS, PENDING, ArtefactCells
from ..cells.measured import LATE
from ..cells.readings import COMPARISONS, ID, MOST_SEEDS, PLAIN, READINGS, chosen, comparison_of, search_rates
from ..figure import Result
from ..printed import PRINTED
from ..trained import MEASURES, agreement, better, in_all, main_number, scaled_down, settings, smallest_that_counts

OURS = "hopfield"


def result(found_cells: ArtefactCells) -> Result:
    """Table, chart and words."""
    from ..charts.trained_charts import rates_chart

    number = main_number(found_cells)
    tried = pd.DataFrame(
        [
            (cell.method, cell.seed, float(cell.resolved().learning_rate), record["numbers"].get(number))
            for cell, record in found_cells.finished
        ],
        columns=["label", "seed", "rate", "value"],
    ).dropna()
    verdict, sentences = _verdict(found_cells, number)
    names = list(dict.fromkeys(cell.method for cell, _ in found_cells.records))
    return Result(
        table=found_cells.long_table(),
        chart=rates_chart(tried, names, found_cells.artefact.title, MEASURES[number].words),
        sentences=[
            found_cells.progress(),
            *sentences,
            *_longer(found_cells),
            *_over_training(found_cells),
            *found_cells.training(),
            scaled_down(found_cells),
            f"Every method has the rate at which its own seed 0 ends best, {_tried(found_cells)}, chosen by the same "
            "held-out data that the table reports; the rate is constant after the warm-up." + _second_look(found_cells),
        ],
        reading_aid="A dot is a trained network, a line is seed 0 over the rates. stream, normed and replace are what "
        "alpha multiplies: the tokens before the norm, after it, or before it in place of the block's residual.",
        summary=_summary(found_cells, number),
        settings=settings(found_cells),
        verdict=verdict,
        finding=" ".join(sentences[:1]),
    )


def at_best_rate(found_cells: ArtefactCells, number: str) -> dict[str, list[float]]:
    """The number of each method at its best rate, over seeds; methods whose rate is still sought are left out."""
    found = found_cells.numbers(number)
    labels = {name: f"{name}-rate-{rate:g}" for name, rate in best_rates(found_cells).items()}
    return {name: found[label] for name, label in labels.items() if label in found}


def best_rates(found_cells: ArtefactCells) -> dict[str, float]:
    """The best rate of each method for which it is known."""
    cell = found_cells.cells[0]
    rates = {
        name: search_rates(cell.artefact, name, cell.budget, found_cells.store)[1]
        for name in chosen(cell.artefact, cell.budget)
    }
    return {name: rate for name, rate in rates.items() if rate is not None}


def levels_and_gaps(found_cells: ArtefactCells, number: str) -> tuple[dict[str, SeedSummary], dict[str, Estimate]]:
    """Every method, and its difference from self-attention, with Holm's correction over all methods of the table."""
    levels = {name: summarise(values) for name, values in at_best_rate(found_cells, number).items()}
    if PLAIN not in levels:
        return levels, {}
    return levels, differences(levels[PLAIN], {name: own for name, own in levels.items() if name != PLAIN})


def _verdict(found_cells: ArtefactCells, number: str) -> tuple[str, list[str]]:
    """Whether hopfield stands to self-attention as claimed, in each reading."""
    levels, gaps = levels_and_gaps(found_cells, number)
    readings = [name for name in gaps if name.startswith(OURS)]
    if not readings:
        return PENDING, []
    printed = PRINTED[found_cells.artefact.id]
    smallest = smallest_that_counts(number, levels[PLAIN].mean)
    verdicts = {name: agreement(gaps[name], printed.claimed, smallest) for name in readings}
    told = "; ".join(f"{name.removeprefix(f'{OURS}-')} {gaps[name]}, {verdicts[name]}" for name in readings)
    claim = "higher" if printed.claimed > 0 else "lower"
    theirs = printed.values[OURS] - printed.values[PLAIN]
    sentences = [
        f"Claim: {number} is {claim} with inherited scores and a visible skip. Here, against self-attention at "
        f"{levels[PLAIN].mean:.4g}, by what alpha multiplies: {told}.",
        f"Printed ({printed.place}; {printed.setting}): {printed.values[PLAIN]:g} with self-attention, "
        f"{printed.values[OURS]:g} with hopfield, a difference of {theirs:+.3g}.{printed.note}",
        *_detectable(gaps, number, theirs),
    ]
    others = "; ".join(f"{name} {better(number, gap)}" for name, gap in gaps.items() if name not in readings)
    if others:
        sentences.append(f"The parts, and relatives that the paper does not compare with: {others}.")
    return in_all(list(verdicts.values()), "readings"), sentences


def _detectable(gaps: Mapping[str, Estimate], number: str, theirs: float) -> list[str]:
    """What could have been seen."""
    widths = [gap.detectable for gap in gaps.values() if math.isfinite(gap.detectable)]
    if not widths:
        return []
    low, high = f"{min(widths):.2g}", f"{max(widths):.2g}"
    seen = sum(width < abs(theirs) for width in widths)
    which = "could" if seen == len(widths) else "could not" if seen == 0 else "could with some methods only"
    return [
        f"What could have been seen: a difference in {number} of {low}{f' to {high}, by method' * (low != high)} "
        f"(half the width of the interval). One as small as the printed {abs(theirs):.2g} {which}."
    ]


def _longer(found_cells: ArtefactCells) -> list[str]:
    """Where the same networks are trained longer: that decides."""
    own = found_cells.artefact.id.removeprefix(ID)
    return [
        f"These networks are trained longer in {ID}{name}, which decides about the claim; what is seen here is seen "
        "early in training. The longer comparison was added after this result was known."
        for name, known in COMPARISONS.items()
        if known.shorter == own
    ]


def _over_training(found_cells: ArtefactCells) -> list[str]:
    """How the differences came about: at the first evaluation, halfway and at the last, over the seeds of both."""
    names = {f"{name}-rate-{rate:g}": name for name, rate in best_rates(found_cells).items()}
    curves = found_cells.curves("eval_step", ["eval_loss"])
    losses = curves[curves["label"].isin(names)].pivot(index=["seed", "step"], columns="label", values="value")
    losses = losses.rename(columns=names)[[name for label, name in names.items() if label in losses]]
    if PLAIN not in losses or len(losses.columns) == 1:
        return []
    gaps = losses.drop(columns=PLAIN).sub(losses[PLAIN], axis=0).groupby("step").mean()
    gaps = gaps.iloc[[0, (len(gaps) - 1) // 2, -1]]
    early, half, late = (f"{step:,.0f}" for step in gaps.index)
    told = "; ".join(f"{name} {', '.join(f'{gap:+.3f}' for gap in own)}" for name, own in gaps.items())
    last_fifth = losses[losses.index.get_level_values("step") >= LATE * losses.index.get_level_values("step").max()]
    changes = [own.iloc[-1] / own.iloc[0] - 1.0 for _, seed in last_fifth.groupby("seed") for own in _columns(seed)]
    return [
        f"Held-out loss less that of {PLAIN} after {early}, {half} and {late} updates: {told}. At these rates it "
        f"changed by {100 * min(changes):+.1f} to {100 * max(changes):+.1f} % over the last fifth of the updates."
    ]


def _second_look(found_cells: ArtefactCells) -> str:
    """Where undecided methods were given more seeds than others."""
    first = found_cells.artefact.seeds
    more = MOST_SEEDS - first
    if more <= 0:
        return ""
    return (
        f" Methods that {first} seeds left undecided were given {more} more: a second look, which the intervals do not "
        "allow for."
    )


def _tried(found_cells: ArtefactCells) -> str:
    """Of which rates the best was chosen."""
    shorter = comparison_of(found_cells.artefact.id).shorter
    if shorter is None:
        return "of five or more a factor of 2 apart"
    return f"of the best one of {ID}{shorter}, half of it, and more until the best is not at an end"


def _columns(table: pd.DataFrame) -> list[pd.Series]:
    return [own.dropna() for _, own in table.items() if own.notna().any()]


def _as_printed(name: str) -> str:
    """The paper's name of a method: it does not say which reading it means."""
    return OURS if name in [f"{OURS}-{skip}" for skip in READINGS] else name


def _summary(found_cells: ArtefactCells, number: str) -> pd.DataFrame:
    """One row per method."""
    levels, gaps = levels_and_gaps(found_cells, number)
    rates, printed = best_rates(found_cells), PRINTED[found_cells.artefact.id]
    ends = {
        cell.method: record["held_out_loss"]
        for cell, record in found_cells.finished
        if cell.seed == 0 and cell.resolved().learning_rate == rates.get(cell.method)
    }
    rows = []
    for name, own in levels.items():
        number_row: dict[Hashable, float] = {"mean": own.mean, "spread": own.spread}
        spread = "" if math.isnan(own.spread) else f" ± {shown(number_row, own.spread)}"
        gap = gaps.get(name)
        value = printed.values.get(_as_printed(name))
        rows.append(
            {
                "method": name,
                "best rate": f"{rates[name]:g}",
                number: f"{shown(number_row)}{spread}",
                f"against {PLAIN}": "" if gap is None else str(gap),
                "could be seen": "" if gap is None or math.isinf(gap.detectable) else f"{gap.detectable:.2g}",
                "loss at the end": ENDS[ends.get(name, "unknown")],
                "seeds": own.seeds,
                f"printed {printed.number} ({printed.setting})": "" if value is None else f"{value:g}",
            }
        )
    return pd.DataFrame(rows)

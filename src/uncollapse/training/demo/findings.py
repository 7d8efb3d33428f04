"""The five findings of the demo, computed from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from uncollapse.report.differences import number

from ..compare import RunComparison
from ..compare.measures import BITS, final_value, head_means, layer_history
from ..compare.reading import RecordedRun
from .depth import which_knob

ALIKE = 0.02  # bits per byte; smaller gaps may be due to the seed
BeforeAfter = tuple[float, float]  # value before and after training


@dataclass(frozen=True)
class Outcome:
    """Results of one method; None where a run did not get that far."""

    name: str
    steps: int
    bits: float | None  # held-out bits per byte
    residual: BeforeAfter | None  # residual ratio of the last layer
    entropy: BeforeAfter | None  # normalised entropy, mean over layers
    trace: BeforeAfter | None  # tr W, mean over heads
    scale: BeforeAfter | None  # tr W'W, mean over heads
    collapses: tuple[str, ...] = ()  # kinds of collapse in the last diagnosis
    state: str = "finished"


def five_findings(depth: pd.DataFrame, outcomes: Sequence[Outcome]) -> list[str]:
    """One sentence each on depth at initialisation, learning, tokens, attention and LocAteR."""
    deepest = depth[depth["depth"] == depth["depth"].max()]
    knob = which_knob(deepest)
    return [
        f"Depth, at initialisation: {knob[0].lower()}{knob[1:]}",
        learning(outcomes),
        tokens(outcomes),
        attention(outcomes),
        locater(outcomes),
    ]


def learning(outcomes: Sequence[Outcome]) -> str:
    """Held-out bits per byte of each method, and how far apart they are."""
    known = [(o.name, o.bits) for o in outcomes if o.bits is not None]
    lost = "".join(f" {o.name} {o.state}." for o in outcomes if o.bits is None)
    if not known:
        return f"Learning: no run has held-out numbers.{lost}"
    listed = ", ".join(f"{name} {bits:.3f}" for name, bits in known)
    return (
        f"Learning, {max(o.steps for o in outcomes)} steps: held-out bits per byte {listed}; {_order(known)}; "
        f"one seed each, so no spread is known.{lost}"
    )


def _order(known: Sequence[tuple[str, float]]) -> str:
    """Which method is lowest and which is highest; `known` has names and bits per byte."""
    values = [bits for _, bits in known]
    near = [(name, bits) for name, bits in known if bits - min(values) < ALIKE]
    width = max(bits for _, bits in near) - min(values)
    if len(near) == len(known):
        return f"all within {width:.3f}, which may be chance"
    last = f"highest with {max(known, key=lambda pair: pair[1])[0]}, {max(values) - min(values):.3f} above the lowest"
    if len(near) == 1:
        return f"lowest with {near[0][0]}, {last}"
    names = [name for name, _ in near]
    return f"{', '.join(names[:-1])} and {names[-1]} within {width:.3f} of each other, {last}"


def tokens(outcomes: Sequence[Outcome]) -> str:
    """Residual ratio of the last layer before and after training."""
    return (
        f"Tokens: residual ratio of the last layer before and after training {_changes(outcomes, _residual)}; "
        f"{_verdict(outcomes, 'rank collapse')}."
    )


def attention(outcomes: Sequence[Outcome]) -> str:
    """Normalised entropy of attention before and after training."""
    return (
        f"Attention: normalised entropy (1: even) before and after training {_changes(outcomes, _entropy)}; "
        f"{_verdict(outcomes, 'entropy collapse')}."
    )


def locater(outcomes: Sequence[Outcome], name: str = "LocAteR", plain: str = "self-attention") -> str:
    """Whether the penalty changed the query-key matrices as intended, and its cost in bits per byte."""
    found = {outcome.name: outcome for outcome in outcomes}
    held, free = found[name], found[plain]
    if held.trace is None or free.trace is None or held.scale is None or free.scale is None:
        return f"LocAteR: cannot be judged, since a diagnosis of {name} or {plain} is missing."
    nearer = abs(held.trace[1] - 1) < abs(free.trace[1] - 1)
    smaller = held.scale[1] < free.scale[1]
    said = (
        f"LocAteR: mean tr W ends at {number(held.trace[1])}, {'nearer to' if nearer else 'no nearer to'} 1 than "
        f"self-attention's {number(free.trace[1])}, and tr WᵀW at {number(held.scale[1])}, "
        f"{'below' if smaller else 'not below'} its {number(free.scale[1])}"
    )
    if held.bits is None or free.bits is None:
        return f"{said}; what that does to learning is not known."
    gap = held.bits - free.bits
    return f"{said}; bits per byte {_price(gap)} (one seed)."


def _price(gap: float) -> str:
    size = f"{abs(gap):.3f}"
    return "equal to three decimals" if size == "0.000" else f"{size} {'higher' if gap > 0 else 'lower'}"


def _residual(outcome: Outcome) -> BeforeAfter | None:
    return outcome.residual


def _entropy(outcome: Outcome) -> BeforeAfter | None:
    return outcome.entropy


def _changes(outcomes: Sequence[Outcome], of: Callable[[Outcome], BeforeAfter | None]) -> str:
    parts = []
    for outcome in outcomes:
        change = of(outcome)
        values = "not measured" if change is None else " → ".join(map(_three, change))
        parts.append(f"{outcome.name} {values}")
    return ", ".join(parts)


def _three(value: float) -> str:
    """Three decimals, so that 0.998 is not shown as 1; scientific notation for small values."""
    return f"{value:.3f}" if value >= 0.01 else number(value)


def _verdict(outcomes: Sequence[Outcome], kind: str) -> str:
    collapsed = [outcome.name for outcome in outcomes if kind in outcome.collapses]
    return f"{kind} in {' and '.join(collapsed)}" if collapsed else f"no {kind} in any of them"


def outcomes_of(comparison: RunComparison) -> list[Outcome]:
    """The results of each method, read from its run."""
    return [_outcome(group.name, group.runs[0]) for group in comparison.groups]


def _outcome(name: str, run: RecordedRun) -> Outcome:
    verdicts = [] if run.last_diagnosis is None else run.last_diagnosis.verdicts
    layers = layer_history(run)
    residual, entropy = (layers[layers["measure"] == key] for key in ("residual_ratio", "entropy_normalised"))
    return Outcome(
        name=name,
        steps=run.last_step,
        bits=final_value(run, BITS) if run.finished else None,
        residual=_change(residual[residual["layer"] == residual["layer"].max()]),
        entropy=_change(entropy.groupby("step", as_index=False)["value"].mean()),
        trace=_change(head_means(run, "qk_trace")),
        scale=_change(head_means(run, "qk_scale")),
        collapses=tuple({verdict.kind: None for verdict in verdicts if verdict.is_collapse}),
        state=run.state,
    )


def _change(table: pd.DataFrame) -> BeforeAfter | None:
    """First and last value of a table with step and value; None if it has fewer than two rows."""
    values = table.dropna(subset="value").sort_values("step")["value"]
    return (float(values.iloc[0]), float(values.iloc[-1])) if len(values) > 1 else None

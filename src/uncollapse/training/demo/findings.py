"""What the demo says of its numbers: sentences for a reader who meets all of this for the first time."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from .depth import BOTH, HIDDEN_ONLY, PLAIN, SKIP_ONLY, collapse_depth
from .runs import TrainedRun

ALIKE = 0.03  # bits per byte; a smaller difference may be due to the seed
VISIBLE = 0.05  # of a number between 0 and 1; a smaller difference is not worth a sentence of its own
FORECAST = "forecast"


@dataclass(frozen=True)
class Warned:
    """The first warning of a run: the forecast if there is one."""

    step: int
    sentence: str
    ahead: bool


def first_warning(warnings: pd.DataFrame) -> Warned | None:
    """The first forecast, or else the first warning of any kind; None without one."""
    forecasts = warnings[warnings["kind"] == FORECAST]
    told = forecasts if len(forecasts) else warnings
    if told.empty:
        return None
    first = told.iloc[0]
    return Warned(int(first["step"]), str(first["sentence"]), bool(len(forecasts)))


def depth_findings(depth: pd.DataFrame) -> list[str]:
    """On attention alone, at initialisation."""
    last = int(depth["depth"].max())
    plain, inherited, skip, both = (collapse_depth(depth, name) for name in (PLAIN, HIDDEN_ONLY, SKIP_ONLY, BOTH))
    sentences = [
        f"With attention alone the tokens are as good as equal after {plain} layer{'s' if plain > 1 else ''}."
        if plain
        else "With attention alone the tokens stay apart at this depth."
    ]
    if inherited is None:
        sentences.append("With scores inherited from layer to layer they stay apart.")
    elif plain is None or inherited > plain:
        sentences.append(f"Scores that are inherited from layer to layer put this off to layer {inherited}.")
    else:
        sentences.append("Scores that are inherited from layer to layer hardly change that.")
    if skip is None and both is None:
        sentences.append(
            f"A skip, which hands each token a part of itself, slows this down: they still differ after {last} layers."
        )
    elif skip is not None:
        sentences.append(f"A skip, which hands each token a part of itself, puts it off to layer {skip}.")
    return sentences


def wrong_findings(plain: TrainedRun, helped: TrainedRun, healthy: TrainedRun, remedy: str) -> list[str]:
    """On the run at too high a rate, on the same run with a remedy, and on the warning in a healthy run."""
    warned, bad = first_warning(plain.warnings), plain.went_bad
    growth = plain.heads["logit_max"].max()
    sentences = [f"At this learning rate the largest attention score grows to {growth:,.0f}."]
    if warned is None:
        sentences.append("The watch did not warn.")
    elif warned.ahead:
        sentences.append(f"The watch saw it coming and warned at update {warned.step}.")
    else:
        sentences.append(f"The watch warned at update {warned.step}.")
    sentences.append(_lead(warned, bad))
    if warned is not None and warned.ahead:
        false = (healthy.warnings["kind"] == FORECAST).any()
        sentences.append(
            "The same forecast comes in a healthy run as well (below), so it is not always right."
            if false
            else "In a healthy run of the same network (below) there is no such forecast."
        )
    held = helped.heads["logit_max"].max()
    sentences.append(f"With {remedy}, at the same rate, the largest score is {held:,.0f}.")
    if helped.went_bad is not None:
        sentences.append(f"But the loss went bad here as well, at update {helped.went_bad}.")
    elif bad is not None:
        sentences.append("And the loss does not go bad.")
    return sentences


def _lead(warned: Warned | None, bad: int | None) -> str:
    """How long before the loss the warning came."""
    if bad is None:
        return "The loss did not go bad within this run."
    if warned is None or warned.step == bad:
        return f"The loss went bad at update {bad}."
    gap = abs(bad - warned.step)
    return f"The loss went bad {gap} update{'s' if gap > 1 else ''} {'later' if warned.step < bad else 'earlier'}."


def inherited_findings(plain: TrainedRun, inherited: TrainedRun) -> list[str]:
    """On inherited scores at a rate that suits the network."""
    gap = inherited.held_out - plain.held_out
    if abs(gap) < ALIKE:
        learning = (
            f"Both learn equally well: held-out text differs by {abs(gap):.3f} bits per byte, which may be chance."
        )
    else:
        learning = (
            f"Held-out text costs {abs(gap):.3f} bits per byte {'fewer' if gap < 0 else 'more'} with inherited scores; "
            "of a single seed, this may be chance."
        )
    return [
        learning,
        _change(
            _mean(inherited, "cosine_mean") - _mean(plain, "cosine_mean"),
            "Tokens are {} than with plain attention: their mean cosine, over all layers, is {} by {:.2f}.",
            ("more alike", "higher", "more different", "lower"),
            "Tokens are about as different as with plain attention.",
        ),
        _change(
            _mean(inherited, "entropy_normalised") - _mean(plain, "entropy_normalised"),
            "Attention looks {}: its entropy is {} by {:.2f} of what it could be.",
            ("more widely", "higher", "more narrowly", "lower"),
            "Attention looks about as widely as before.",
        ),
    ]


def _change(gap: float, words: str, kinds: tuple[str, str, str, str], none: str) -> str:
    if not abs(gap) >= VISIBLE:
        return none
    what, way = kinds[:2] if gap > 0 else kinds[2:]
    return words.format(what, way, abs(gap))


def _mean(run: TrainedRun, column: str) -> float:
    """Over the layers, at the last measurement."""
    return float(run.layers.loc[run.layers["step"] == run.layers["step"].max(), column].mean())

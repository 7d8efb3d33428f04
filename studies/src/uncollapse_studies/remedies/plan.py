"""The runs of the study of learning rates: a small LLaMA, plain and with each remedy, at seven rates, on two texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import uncollapse as uc
from uncollapse.training.schedule import RateSchedule

from ..short_runs.network import RunSize, held_out_batch
from ..short_runs.store import RunRecord, definition_of
from ..short_runs.training import RunSettings, train
from ..study import ShortRun

PLAIN = "plain"
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
TEXTS = ("tinyshakespeare", "wikitext-2")
SEEDS = 3
WARMUP = 0.1  # of the updates
SIZE = RunSize(updates=500, every=50, layers=4, held_out=128)
METHODS = {  # as recipes name them; each at the strength that its authors give, or that the library comes with
    PLAIN: "",
    "qk_norm": "qk_norm",
    "qk_clip": "qk_clip(threshold=100)",
    "sigma_reparam": "sigma_reparam",
    "qk_rate": "qk_rate(factor=0.1)",
    "soft_cap": "soft_cap(cap=50)",
    "sink": "sink",
    "output_gate": "output_gate",
    "value_mixing": "value_mixing(attended=0.5, attended_first=0.5)",  # value residual
    "hopfield": "hopfield(alpha=0.5, alpha_hidden=0.5)",
    "locater": "locater",
}


@dataclass(frozen=True)
class RateRun:
    """One training: a text, a method, a rate and a seed."""

    text: str
    method: str  # as tables name it
    remedy: str  # as recipes name it
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """What it is kept under."""
        return f"{self.text} {self.method} rate {self.rate:g} seed {self.seed}"


def plan(
    methods: Iterable[str] = METHODS,
    rates: Sequence[float] = RATES,
    texts: Sequence[str] = TEXTS,
    seeds: Sequence[int] = range(SEEDS),
) -> list[RateRun]:
    """Every method at every rate; seed after seed, so that what is made first can be compared.

    A method may be several remedies joined by " + ".

    >>> runs = plan()
    >>> len(runs), runs[1].name
    (462, 'tinyshakespeare plain rate 0.003 seed 0')
    """
    remedies = {name: " + ".join(filter(None, (METHODS[one] for one in name.split(" + ")))) for name in methods}
    return [
        RateRun(text, name, remedy, rate, seed)
        for seed in seeds
        for text in texts
        for name, remedy in remedies.items()
        for rate in rates
    ]


def short_run(run: RateRun, size: RunSize) -> ShortRun:
    """The run as a study has it."""
    return ShortRun(run.name, definition_of(run, size), partial(made, run, size))


def made(run: RateRun, size: RunSize) -> RunRecord:
    """Train with warm-up and cosine decay, and keep the held-out losses and what a diagnosis finds at the end."""
    warmup = round(WARMUP * size.updates)
    # one step more, so that the last update has a rate above 0
    schedule = RateSchedule(peak=run.rate, steps=size.updates + 1, warmup=warmup, floor=0.0, start=0.0)
    settings = RunSettings(run.seed, run.rate, warmup)
    course = train(settings, size, watched=False, remedy=run.remedy, text=run.text, rates=schedule.rate)
    heads = uc.diagnose(course.model, {"input_ids": held_out_batch(size, run.text)}, progress=False).heads
    return {
        **{"text": run.text, "method": run.method, "rate": run.rate, "seed": run.seed},
        "finished": len(course.losses) == size.updates and math.isfinite(course.losses[-1]),
        "held_out": course.held_out,
        "largest_logit": float(heads["logit_max"].max()),
        "lowest_entropy": float(heads["entropy_normalised"].min()),
        "seconds": course.seconds,
    }

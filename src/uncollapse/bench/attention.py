"""The attention stacks of every contestant raced against SDPA, shape after shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from .contestants import CANDIDATES, SDPA, Candidate
from .estimate import memory
from .measurement import FORWARD, TRAINING, Measurement, figures
from .memory import peak_added, settle, too_large
from .shapes import Layers, StackShape
from .timing import Run, Timings, race, timed

SEED = 0
LONG = 30.0  # seconds of a pass that is timed on its first run, and only then


def run_of(contestant: Candidate, layers: Layers, causal: bool, training: bool) -> Run:
    """One pass through a stack: forward without gradients, or forward and backward to every input."""

    def forward() -> None:
        with torch.no_grad():
            for _ in contestant.stack(layers, causal):
                pass

    def forward_backward() -> None:
        leaves = [tensor for layer in layers for tensor in layer]
        outs = list(contestant.stack(layers, causal))
        torch.autograd.grad(outs, leaves, [gradient] * len(outs))

    if not training:
        return forward
    layers = [(q.requires_grad_(), k.requires_grad_(), v.requires_grad_()) for q, k, v in layers]
    gradient = torch.ones_like(layers[0][0])
    return forward_backward


def attention_cells(
    shapes: Sequence[StackShape],
    rounds: int,
    budget: float,
    limit: float,
    contestants: Sequence[Candidate] = CANDIDATES,
) -> Iterator[Measurement]:
    """Yield one cell a contestant, shape and pass; `budget` seconds a race, `limit` seconds a run.

    SDPA is raced too, against itself: how far its ratio is from 1 is the noise of the machine.
    """
    known: dict[tuple[str, bool, bool], tuple[int, float]] = {}  # the longest length so far, and its seconds
    for shape in shapes:
        for training in (False, True):
            sdpa_peak: float | None = None
            for contestant in contestants:
                key = (contestant.name, training, shape.causal)
                note = too_large(memory(contestant.name, shape, training)) or too_long(known.get(key), shape, limit)
                cell = blank(contestant, shape, training)
                if note is None:
                    cell = _measure(cell, contestant, shape, training, rounds, budget, sdpa_peak)
                else:
                    cell = replace(cell, note=note)
                if cell.seconds is not None:
                    known[key] = (shape.length, cell.seconds)
                sdpa_peak = cell.peak_mb if contestant is SDPA else sdpa_peak
                yield cell
    settle()


def blank(contestant: Candidate, shape: StackShape, training: bool) -> Measurement:
    """A cell with nothing measured yet."""
    work = TRAINING if training else FORWARD
    return Measurement("attention", contestant.name, SDPA.name, shape.name, shape.length, shape.causal, work)


def too_long(known: tuple[int, float] | None, shape: StackShape, limit: float) -> str | None:
    """Why a run is not started: a shorter one says that it would take more than `limit` seconds.

    >>> too_long((1024, 10.0), StackShape(length=4096), limit=100)
    'not run: would take about 160 s a run by what 1024 tokens took, and the limit is 100 s'
    """
    if known is None:
        return None
    length, seconds = known
    expected = seconds * (shape.length / length) ** 2
    if expected <= limit:
        return None
    return (
        f"not run: would take about {expected:.0f} s a run by what {length} tokens took, and the limit is {limit:g} s"
    )


def _measure(
    cell: Measurement,
    contestant: Candidate,
    shape: StackShape,
    training: bool,
    rounds: int,
    budget: float,
    sdpa_peak: float | None,
) -> Measurement:
    layers = shape.inputs(SEED)
    missing = contestant.missing(layers)
    if missing is not None:
        return replace(cell, note=f"not run: {missing}")
    against = run_of(SDPA, layers, shape.causal, training)
    run = run_of(contestant, layers, shape.causal, training)
    settle()  # the two first passes start alike
    first_against = timed(against)
    first: list[float] = []
    peak = peak_added(lambda: first.append(timed(run)))
    # First passes warm up. In one this long there is little of that, and it counts.
    laps = Timings((first[0],), (first_against,)) if first[0] > LONG else race(run, against, rounds, budget)
    return figures(cell, laps, peak, sdpa_peak)

"""Time and peak memory of a stack of attention layers, for every implementation against SDPA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from .estimate import memory
from .implementations import IMPLEMENTATIONS, SDPA, Implementation
from .measurement import FORWARD, TRAINING, Measurement, with_timings
from .memory import peak_added, settle, too_large
from .stack_shape import LayerInputs, StackShape
from .timing import Timings, Workload, time_alternately, timed

SEED = 0
LONG = 30.0  # seconds; a pass that takes longer is timed once, on its first run


def stack_workload(implementation: Implementation, layers: LayerInputs, causal: bool, training: bool) -> Workload:
    """One pass through a stack: forward without gradients, or forward and backward to every input."""

    def forward() -> None:
        with torch.no_grad():
            for _ in implementation.stack(layers, causal):
                pass

    def forward_backward() -> None:
        leaves = [tensor for layer in layers for tensor in layer]
        outs = list(implementation.stack(layers, causal))
        torch.autograd.grad(outs, leaves, [gradient] * len(outs))

    if not training:
        return forward
    layers = [(q.requires_grad_(), k.requires_grad_(), v.requires_grad_()) for q, k, v in layers]
    gradient = torch.ones_like(layers[0][0])
    return forward_backward


def measure_attention(
    shapes: Sequence[StackShape],
    rounds: int,
    budget: float,
    limit: float,
    implementations: Sequence[Implementation] = IMPLEMENTATIONS,
) -> Iterator[Measurement]:
    """Yield one measurement per shape, pass and implementation.

    No new round starts after `budget` seconds, and a single run may take at most `limit` seconds. SDPA is also timed
    against itself: the distance of that ratio from 1 is the noise of the machine.
    """
    known: dict[tuple[str, bool, bool], tuple[int, float]] = {}  # length and seconds of the last run
    for shape in shapes:
        for training in (False, True):
            sdpa_peak: float | None = None
            for implementation in implementations:
                key = (implementation.name, training, shape.causal)
                note = too_large(memory(implementation.name, shape, training)) or too_long(known.get(key), shape, limit)
                measurement = not_yet_measured(implementation, shape, training)
                if note is None:
                    measurement = _measure(measurement, implementation, shape, training, rounds, budget, sdpa_peak)
                else:
                    measurement = replace(measurement, note=note)
                if measurement.seconds is not None:
                    known[key] = (shape.length, measurement.seconds)
                sdpa_peak = measurement.peak_mb if implementation is SDPA else sdpa_peak
                yield measurement
    settle()


def measure_one(
    implementation: Implementation, shape: StackShape, training: bool, rounds: int, budget: float, limit: float
) -> Measurement:
    """One implementation at one shape, against SDPA; not run where it would not fit or take longer than `limit`."""
    measurement = not_yet_measured(implementation, shape, training)
    note = too_large(memory(implementation.name, shape, training))
    if note is not None:
        return replace(measurement, note=note)
    found = _measure(measurement, implementation, shape, training, rounds, budget, None, limit)
    settle()
    return found


def not_yet_measured(implementation: Implementation, shape: StackShape, training: bool) -> Measurement:
    """A measurement without numbers."""
    work = TRAINING if training else FORWARD
    return Measurement("attention", implementation.name, SDPA.name, shape.name, shape.length, shape.causal, work)


def too_long(known: tuple[int, float] | None, shape: StackShape, limit: float) -> str | None:
    """Why a run is skipped: extrapolated from a shorter length, it would take more than `limit` seconds.

    >>> too_long((1024, 10.0), StackShape(length=4096), limit=100)
    'not run: 1024 tokens took 10 s, so a run would take about 160 s, and the limit is 100 s'
    """
    if known is None:
        return None
    length, seconds = known
    expected = seconds * (shape.length / length) ** 2
    if expected <= limit:
        return None
    return (
        f"not run: {length} tokens took {seconds:.3g} s, so a run would take about {expected:.3g} s, "
        f"and the limit is {limit:g} s"
    )


def _measure(
    measurement: Measurement,
    implementation: Implementation,
    shape: StackShape,
    training: bool,
    rounds: int,
    budget: float,
    sdpa_peak: float | None,
    limit: float = float("inf"),
) -> Measurement:
    layers = shape.inputs(SEED)
    missing = implementation.missing(layers)
    if missing is not None:
        return replace(measurement, note=f"not run: {missing}")
    against = stack_workload(SDPA, layers, shape.causal, training)
    run = stack_workload(implementation, layers, shape.causal, training)
    settle()  # both first passes start from the same state
    first_against = timed(against)
    if first_against > limit:
        return replace(
            measurement, note=f"not run: SDPA alone took {first_against:.3g} s, and the limit is {limit:g} s"
        )
    first: list[float] = []
    peak = peak_added(lambda: first.append(timed(run)))
    if first[0] > LONG:  # warm-up is a negligible part of a pass this long
        timings = Timings((first[0],), (first_against,))
    else:
        timings = time_alternately(run, against, rounds, budget)
    return with_timings(measurement, timings, peak, sdpa_peak)

"""Times of attention on GPUs from counted bytes and arithmetic: a model, never a measurement.

A kernel takes as long as its arithmetic or its traffic, whichever is longer, at a share of the peak that good kernels
reach. Nothing else is modelled: no launches (but for torch operations), no caches, no pipelining.

Shapes: B batch, H query heads, D head size, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from uncollapse.attention.memory import FREE_SHARE, scores_per_head

from .stack_shape import StackShape

NOTICE = "a model from counted bytes and arithmetic, not a measurement"
INPUT = 2  # bytes of a number of q, k, v: bfloat16
FORWARD_SHARE, BACKWARD_SHARE = 0.60, 0.50  # of peak arithmetic, assumed for kernels that are bound by it
BANDWIDTH_SHARE = 0.85
REST_SHARE = 0.55  # of peak, for the other products of a layer
LAUNCH = 5e-6  # seconds
SEGMENT = 8  # layers of `reversible` between two kept score matrices


@dataclass(frozen=True)
class Gpu:
    """What the makers state, without sparsity."""

    name: str
    arithmetic: float  # 16-bit products with float32 sums, operations a second
    float32: float  # without tensor cores
    bandwidth: float  # bytes a second
    memory: float  # bytes
    forward_share: float = FORWARD_SHARE

    def seconds(self, operations: float, traffic: float, share: float) -> float:
        """The longer of arithmetic and traffic."""
        return max(operations / (self.arithmetic * share), traffic / (self.bandwidth * BANDWIDTH_SHARE))


GPUS = {
    "a100": Gpu("A100", 312e12, 19.5e12, 2.0e12, 80e9),
    "h100": Gpu("H100", 989e12, 67e12, 3.35e12, 80e9, forward_share=0.65),
    "b200": Gpu("B200", 2250e12, 75e12, 8.0e12, 180e9),
    "4090": Gpu("RTX 4090", 165e12, 82.6e12, 1.01e12, 24e9),
    "mi300": Gpu("MI300X", 1307e12, 163e12, 5.3e12, 192e9),
}


@dataclass(frozen=True)
class Layer:
    """One head of one layer: how many scores, and the bytes of a matrix (T, D)."""

    scores: float
    tokens: int
    size: int

    @property
    def product(self) -> float:
        """Operations of one product over the scores."""
        return 2 * self.scores * self.size

    @property
    def matrix(self) -> float:
        return INPUT * self.tokens * self.size


Pair = tuple[float, float]  # seconds of the forward and of the backward pass


def flash(layer: Layer, gpu: Gpu) -> Pair:
    """Torch's own attention: two products forward, five backward, no scores in memory."""
    forward = gpu.seconds(2 * layer.product, 4 * layer.matrix, gpu.forward_share)
    return forward, gpu.seconds(5 * layer.product, 8 * layer.matrix, BACKWARD_SHARE)


def carried(number: int) -> Callable[[Layer, Gpu], Pair]:
    """`carried`, with scores of `number` bytes: one matrix is read and one written forward, four passes backward."""

    def seconds(layer: Layer, gpu: Gpu) -> Pair:
        scores = number * layer.scores
        forward = gpu.seconds(2 * layer.product, 2 * scores + 4 * layer.matrix, gpu.forward_share)
        keys = gpu.seconds(3 * layer.product, 3 * scores + 6 * layer.matrix, BACKWARD_SHARE)
        return forward, keys + gpu.seconds(layer.product, scores + 2 * layer.matrix, BACKWARD_SHARE)

    return seconds


def reversible(layer: Layer, gpu: Gpu) -> Pair:
    """`reversible`: as `carried` in float32; backward, H_{n-1} is made of H_n, one product and one pass more.

    The kernels do not have this backward pass yet: torch operations run it, slower than this.
    """
    scores = 4 * layer.scores
    forward = gpu.seconds(2 * layer.product, 2 * scores + 4 * layer.matrix, gpu.forward_share)
    keys = gpu.seconds(4 * layer.product, 4 * scores + 6 * layer.matrix, BACKWARD_SHARE)
    return forward, keys + gpu.seconds(layer.product, scores + 2 * layer.matrix, BACKWARD_SHARE)


def stacked(terms: int) -> Callable[[Layer, Gpu], Pair]:
    """`stacked` over `terms` layers; the score gradient goes through a scratch of 16 bits."""

    def seconds(layer: Layer, gpu: Gpu) -> Pair:
        forward = gpu.seconds((terms + 1) * layer.product, (2 * terms + 2) * layer.matrix, gpu.forward_share)
        scratch = INPUT * layer.scores
        values = gpu.seconds((terms + 2) * layer.product, scratch + 4 * terms * layer.matrix, BACKWARD_SHARE)
        return forward, values + gpu.seconds(2 * terms * layer.product, 2 * scratch, BACKWARD_SHARE)

    return seconds


def torch_operations(layer: Layer, gpu: Gpu) -> Pair:
    """`carried` in torch operations: float32 products, 6 and 14 passes over the scores; launches are left out."""
    traffic = 4 * layer.scores / (gpu.bandwidth * BANDWIDTH_SHARE)
    product = layer.product / (0.7 * gpu.float32)
    return 2 * product + 6 * traffic, 4 * product + 14 * traffic


@dataclass(frozen=True)
class ModelledForm:
    """One way to compute attention, its times, and the score matrices it keeps in a training step."""

    name: str
    seconds: Callable[[Layer, Gpu], Pair]
    kept: Callable[[int], float]  # layers -> matrices, in float32 numbers
    exact: bool = True


FORMS = (
    ModelledForm("flash attention, nothing inherited", flash, lambda layers: 0),
    ModelledForm("carried", carried(4), lambda layers: layers),
    ModelledForm("carried, scores_dtype=float16", carried(2), lambda layers: layers / 2),
    ModelledForm("reversible, if it had kernels", reversible, lambda layers: math.ceil(layers / SEGMENT) + 1),
    ModelledForm("stacked, window=4", stacked(4), lambda layers: 0, exact=False),
    ModelledForm("stacked, window=8", stacked(8), lambda layers: 0, exact=False),
    ModelledForm("carried in torch operations", torch_operations, lambda layers: layers),
)
FLASH, INHERITING = FORMS[0], FORMS[1:6]


def layer_seconds(form: ModelledForm, shape: StackShape, gpu: Gpu) -> Pair:
    """Seconds of one layer, all samples and heads, forward and backward; from the second layer on."""
    heads = shape.batch * shape.heads
    per_head = Layer(scores_per_head(shape.length, shape.length, shape.causal), shape.length, shape.size)
    forward, backward = form.seconds(per_head, gpu)
    return heads * forward, heads * backward


def score_bytes(form: ModelledForm, shape: StackShape) -> float:
    """Scores kept for the backward pass of all layers."""
    per_head = scores_per_head(shape.length, shape.length, shape.causal)
    return 4 * form.kept(shape.layers) * shape.batch * shape.heads * per_head


def ratio(form: ModelledForm, shape: StackShape, gpu: Gpu) -> float:
    """Forward and backward of the attention, in units of flash attention's."""
    return sum(layer_seconds(form, shape, gpu)) / sum(layer_seconds(FLASH, shape, gpu))


def step_ratio(form: ModelledForm, shape: StackShape, gpu: Gpu) -> float:
    """A training step of whole layers, in units of one with flash attention.

    The rest of a layer is taken to be 12 M^2 weights, M = H D: 72 M^2 operations a token, forward and backward.
    """
    width = shape.heads * shape.size
    rest = 72 * width**2 * shape.batch * shape.length / (REST_SHARE * gpu.arithmetic)
    return (rest + sum(layer_seconds(form, shape, gpu))) / (rest + sum(layer_seconds(FLASH, shape, gpu)))


def gpu_table(shape: StackShape, gpu: Gpu) -> pd.DataFrame:
    """One row per form: microseconds of a layer, ratios to flash attention, gigabytes of scores."""
    rows = []
    for form in FORMS:
        forward, backward = layer_seconds(form, shape, gpu)
        rows.append(
            {
                "attention": form.name,
                "forward µs": f"{1e6 * forward:,.0f}",
                "fwd+bwd µs": f"{1e6 * (forward + backward):,.0f}",
                "of flash": f"{ratio(form, shape, gpu):.1f}",
                "of a step": f"{step_ratio(form, shape, gpu):.2f}",
                "scores GB": f"{score_bytes(form, shape) / 1e9:.1f}",
            }
        )
    return pd.DataFrame(rows)


def advice(shape: StackShape, gpu: Gpu) -> list[str]:
    """What binds `carried`, and which form to take: the fastest exact one whose scores fit."""
    usable = FREE_SHARE * gpu.memory
    intensity = 2 * 2 * shape.size / (2 * 4)
    ridge = gpu.arithmetic / gpu.bandwidth
    bound = "memory" if intensity < ridge else "arithmetic"
    first = (
        f"carried does {intensity:.0f} operations a byte of float32 scores; {gpu.name} can do {ridge:.0f} while it "
        f"moves a byte. So it is bound by {bound}."
    )
    fitting = [form for form in INHERITING if form.exact and score_bytes(form, shape) <= usable]
    window = FORMS[4]
    approximate = (
        f"With {window.name} there are no scores to keep, and it takes {ratio(window, shape, gpu):.1f} of flash "
        "attention's time, but older layers are left out: an approximation"
    )
    room = f"{100 * FREE_SHARE:.0f} % of {gpu.memory / 1e9:.0f} GB"
    if not fitting:
        return [first, f"No exact form has scores that fit into {room}. {approximate}."]
    best = min(fitting, key=lambda form: sum(layer_seconds(form, shape, gpu)))
    name, _, condition = best.name.partition(", if")
    slower = " Its backward pass runs in torch operations for now, slower than modelled." if condition else ""
    return [first, f"Take {name}: the fastest exact form whose scores fit into {room}.{slower} {approximate}."]

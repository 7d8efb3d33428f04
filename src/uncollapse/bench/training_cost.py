"""Memory and time of a training on one GPU from counted bytes and arithmetic: a model, never a measurement.

Beside the attention (gpu_model.py) an update has the other matrix products, six operations for each weight and token;
the traffic of AdamW; and the launches of small kernels, which bind small models. Data loading, evaluation and
checkpoints are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .gpu_model import FLASH, INHERITING, LAUNCH, REST_SHARE, Gpu, ModelledForm, layer_seconds, score_bytes
from .stack_shape import StackShape

STATE = 16  # bytes of a weight: itself, its gradient and Adam's two averages, in float32
OPTIMIZER_TRAFFIC = 28  # bytes of a weight in an update: four numbers read, three written
ACTIVATION = 34  # bytes kept for each token and unit of width in a layer, in 16 bits (Korthikanti et al., 2022, Eq. 2)
LOGIT = 12  # bytes: itself, its copy in float32 and the gradient
KERNELS = 60  # launches of a layer, forward and backward
FLOAT32_SHARE = 0.7  # of the peak without tensor cores


@dataclass(frozen=True)
class TrainingWork:
    """What one update has to do."""

    parameters: int
    product_weights: int  # those in matrix products
    stack: StackShape  # the attention of one micro-batch
    micro_batches: int
    outputs: int  # logits of a sequence
    inherits: bool  # scores from the layer before
    bfloat16: bool


@dataclass(frozen=True)
class TrainingCost:
    """What a model of the GPU gives for it."""

    seconds: float  # of an update
    bytes: float  # at the peak
    form: ModelledForm  # of the attention


def training_cost(work: TrainingWork, gpu: Gpu) -> TrainingCost:
    """Seconds and bytes of an update.

    >>> from .gpu_model import GPUS
    >>> work = TrainingWork(124_000_000, 124_000_000, StackShape(1024, batch=12), 1, 1024 * 50_257, False, True)
    >>> 0.05 < training_cost(work, GPUS["a100"]).seconds < 0.1
    True
    """
    if not work.bfloat16:  # torch keeps float32 products off the tensor cores unless it is told otherwise
        gpu = replace(gpu, arithmetic=gpu.float32 * FLOAT32_SHARE / REST_SHARE)
    form = _form(work, gpu)
    stack = work.stack
    products = 6 * work.product_weights * stack.batch * stack.length / (REST_SHARE * gpu.arithmetic)
    attention = stack.layers * sum(layer_seconds(form, stack, gpu))
    launches = KERNELS * stack.layers * LAUNCH
    optimizer = OPTIMIZER_TRAFFIC * work.parameters / gpu.bandwidth
    seconds = work.micro_batches * max(products + attention, launches) + optimizer
    return TrainingCost(seconds, _bytes(work, form), form)


def _bytes(work: TrainingWork, form: ModelledForm) -> float:
    stack = work.stack
    width = stack.heads * stack.size
    activations = (1 if work.bfloat16 else 2) * ACTIVATION * stack.layers * stack.batch * stack.length * width
    logits = LOGIT * stack.batch * work.outputs
    return STATE * work.parameters + activations + logits + score_bytes(form, stack)


def _form(work: TrainingWork, gpu: Gpu) -> ModelledForm:
    """The attention: flash, or the first exact form that fits; the smallest where none does."""
    if not work.inherits:
        return FLASH
    exact = [form for form in INHERITING if form.exact]  # in the order in which `auto` would take them
    return next((form for form in exact if _bytes(work, form) <= gpu.memory), min(exact, key=lambda f: _bytes(work, f)))

"""Time and peak memory of whole models: training steps, decoding and diagnosis, each against a baseline."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from uncollapse.diagnosis import diagnose
from uncollapse.metrics import cosine_pairs, entropy
from uncollapse.models.convert import convert
from uncollapse.remedies.locater import add_gradient

from .attention import SEED
from .measurement import Measurement, megabytes, with_timings
from .memory import settle, smallest_peak, too_large
from .timing import Workload, time_alternately
from .watching import DIAGNOSED, MEASURED, NEVER, OTHER, WATCHED, watched_step

ADAM_COPIES = 5  # weights, gradients, two moments, and one for the optimizer's own temporaries
COMPILE = """
import time, torch
from uncollapse.attention import tile_engine
start = time.perf_counter()
assert tile_engine(torch.zeros(1, 1, 1, 1)) == "cpp"
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class WorkloadSizes:
    """Sizes of the models and of their inputs."""

    tokens: int = 1024
    images: int = 8
    prompt: int = 512
    new_tokens: int = 128
    layers: int = 12
    batches: int = 8  # per diagnosis
    vocabulary: int = 50257


FULL = WorkloadSizes()
QUICK = WorkloadSizes(tokens=128, images=2, prompt=32, new_tokens=8, layers=3, batches=2, vocabulary=4096)


@dataclass(frozen=True)
class WorkloadPair:
    """A workload and its baseline, built just before they are measured."""

    measurement: Measurement
    make: Callable[[WorkloadSizes], tuple[Workload, Workload]]  # workload and baseline
    parameters: float  # of one model, approximately, to check that it fits in memory


def measure_models(size: WorkloadSizes, rounds: int, budget: float, compile_time: bool = True) -> Iterator[Measurement]:
    """Yield one measurement per pair of `workload_pairs`, then the compilation time of the C++ tiles."""
    for pair in workload_pairs(size):
        yield measure_pair(pair, size, rounds, budget)
        settle()
    if compile_time:
        yield measure_compilation()


def measure_watching(size: WorkloadSizes, rounds: int, budget: float) -> Iterator[Measurement]:
    """A training step that is measured, one that is not, and a diagnosis."""
    for pair in workload_pairs(size):
        if pair.measurement.name in WATCHED:
            yield measure_pair(pair, size, rounds, budget)
            settle()


def workload_pairs(size: WorkloadSizes) -> Iterator[WorkloadPair]:
    """Everything that is compared."""
    step = "training step"
    gpt2 = f"{size.layers} layers, B1 T{size.tokens}"
    yield WorkloadPair(_row("GPT-2, converted", "stock", gpt2, size.tokens, True, step), gpt2_step, 124e6)
    yield WorkloadPair(_row("GPT-2, LocAteR", "stock", gpt2, size.tokens, True, step), gpt2_locater, 124e6)
    for name, every in ((MEASURED, 1), (OTHER, NEVER)):
        row = _row(name, "stock", gpt2, size.tokens, True, step)
        yield WorkloadPair(row, partial(gpt2_watched, every=every), 124e6)
    images = f"{size.layers} layers, B{size.images}, 224 x 224 pixels"
    yield WorkloadPair(_row("ViT, converted", "stock", images, 197, False, step), vit_step, 6e6)
    length = size.prompt + size.new_tokens
    decode = f"{size.layers} layers, {size.new_tokens} tokens after a prompt of {size.prompt}"
    yield WorkloadPair(_row("GPT-2, converted", "stock", decode, length, True, "generate"), gpt2_decode, 124e6)
    seen = f"{size.layers} layers, {size.batches} x B1 T{size.tokens}"
    yield WorkloadPair(_row(DIAGNOSED, "plain forwards", seen, size.tokens, True, "diagnose"), gpt2_diagnose, 124e6)
    row = _row("GPT-2, output_attentions", "plain forwards", seen, size.tokens, True, "entropy and cosine only")
    yield WorkloadPair(row, gpt2_collected, 124e6)
    row = _row("x-transformers, residual_attn", "its flash attention", gpt2, size.tokens, True, step)
    yield WorkloadPair(row, x_transformers_step, 124e6)


def _row(name: str, against: str, shape: str, length: int, causal: bool, work: str) -> Measurement:
    return Measurement("model", name, against, shape, length, causal, work)


def measure_pair(pair: WorkloadPair, size: WorkloadSizes, rounds: int, budget: float) -> Measurement:
    """Time and memory of a workload against its baseline, or why it was not run."""
    note = too_large(2 * ADAM_COPIES * 4 * pair.parameters)
    if note is not None:
        return replace(pair.measurement, note=note)
    torch.manual_seed(SEED)
    try:
        run, against = pair.make(size)
    except ImportError as error:
        return replace(pair.measurement, note=f"not run: {error.name} is not installed")
    run(), against()  # allocates the optimizers' moments
    peak, against_peak = smallest_peak(run), smallest_peak(against)
    return with_timings(pair.measurement, time_alternately(run, against, rounds, budget), peak, megabytes(against_peak))


def training_step(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    before_step: Workload = lambda: None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Workload:
    """Forward, backward and an AdamW step; `before_step` runs just before the step, as a callback would."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters())

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        before_step()
        optimizer.step()

    return run


def gpt2_step(size: WorkloadSizes) -> tuple[Workload, Workload]:
    """GPT-2 of small's width, without dropout, because CPU SDPA leaves its fast path with dropout."""
    stock, converted = _stock_and_converted(gpt2(size).train())
    ids = torch.randint(0, size.vocabulary, (1, size.tokens))

    def step(model: nn.Module) -> Workload:
        return training_step(model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss)

    return step(converted), step(stock)


def gpt2_locater(size: WorkloadSizes) -> tuple[Workload, Workload]:
    """The same model with the penalty's gradient added before each step, as LocaterCallback does."""
    stock = gpt2(size).train()
    regularised = copy.deepcopy(stock)
    ids = torch.randint(0, size.vocabulary, (1, size.tokens))

    def step(model: Any, before_step: Workload) -> Workload:
        return training_step(model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss, before_step)

    return step(regularised, lambda: add_gradient(regularised, 0.01, 0.1)), step(stock, lambda: None)


def gpt2_watched(size: WorkloadSizes, every: int) -> tuple[Workload, Workload]:
    """The same model, watched: with `every=1` each update is measured."""

    def step(model: nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[Workload, torch.optim.Optimizer]:
        optimizer = torch.optim.AdamW(model.parameters())
        return training_step(model, loss, optimizer=optimizer), optimizer

    return watched_step(gpt2(size).train(), torch.randint(0, size.vocabulary, (1, size.tokens)), every, step)


def vit_step(size: WorkloadSizes) -> tuple[Workload, Workload]:
    """ViT of Tiny's width on images of 224 x 224 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    heads, width = 3, 192
    config = ViTConfig(
        hidden_size=width, intermediate_size=4 * width, num_attention_heads=heads, num_hidden_layers=size.layers
    )
    config.num_labels = 1000
    stock, converted = _stock_and_converted(ViTForImageClassification(config).train())
    pixels, labels = torch.randn(size.images, 3, 224, 224), torch.randint(0, 1000, (size.images,))

    def step(model: nn.Module) -> Workload:
        return training_step(model, lambda: model(pixel_values=pixels, labels=labels).loss)

    return step(converted), step(stock)


def gpt2_decode(size: WorkloadSizes) -> tuple[Workload, Workload]:
    """Greedy decoding with a cache through generate(), including the prefill."""
    stock, converted = _stock_and_converted(gpt2(size).eval())
    prompt = torch.randint(0, size.vocabulary - 1, (1, size.prompt))

    def decode(model: Any) -> Workload:
        def run() -> None:
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=size.new_tokens,
                min_new_tokens=size.new_tokens,
                do_sample=False,
                pad_token_id=0,
            )

        return run

    return decode(converted), decode(stock)


def gpt2_diagnose(size: WorkloadSizes) -> tuple[Workload, Workload]:
    """One streaming pass with all metrics against plain forward passes."""
    model = gpt2(size).eval()
    batches = [{"input_ids": torch.randint(0, size.vocabulary, (1, size.tokens))} for _ in range(size.batches)]
    return lambda: diagnose(model, batches, progress=False), lambda: _forwards(model, batches)


def gpt2_collected(size: WorkloadSizes) -> tuple[Workload, Workload]:
    """The alternative to a streaming pass: keep all attention maps and hidden states, then compute two metrics."""
    model = gpt2(size).eval()
    model.set_attn_implementation("eager")
    batches = [{"input_ids": torch.randint(0, size.vocabulary, (1, size.tokens))} for _ in range(size.batches)]

    def collect() -> None:
        for batch in batches:
            with torch.no_grad():
                out = model(**batch, output_attentions=True, output_hidden_states=True)
                _ = [entropy(weights).mean() for weights in out.attentions]
                _ = [cosine_pairs(tokens[0]).mean() for tokens in out.hidden_states[1:]]

    def plain() -> None:
        model.set_attn_implementation("sdpa")
        _forwards(model, batches)
        model.set_attn_implementation("eager")

    return collect, plain


def _forwards(model: nn.Module, batches: list[dict[str, torch.Tensor]]) -> None:
    with torch.no_grad():
        for batch in batches:
            model(**batch)


def x_transformers_step(size: WorkloadSizes) -> tuple[Workload, Workload]:
    """A decoder of GPT-2 small's size in x-transformers: residual_attn against flash attention, which excludes it."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    ids = torch.randint(0, size.vocabulary, (1, size.tokens))

    def step(**options: bool) -> Workload:
        torch.manual_seed(SEED)
        layers = Decoder(dim=768, depth=size.layers, heads=12, attn_dim_head=64, **options)
        model = AutoregressiveWrapper(
            TransformerWrapper(num_tokens=size.vocabulary, max_seq_len=size.tokens, attn_layers=layers)
        ).train()
        return training_step(model, lambda: model(ids))

    return step(residual_attn=True), step(attn_flash=True)


def measure_compilation() -> Measurement:
    """Seconds until the C++ tiles are compiled and loaded, in a fresh process with an empty cache."""
    measurement = Measurement("model", "C++ tiles", "", "first use", 0, False, "compilation")
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"UNCOLLAPSE_CACHE": cache}
        done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    if done.returncode:
        return replace(measurement, note="not run: the C++ tiles could not be compiled")
    return replace(measurement, seconds=float(done.stdout), rounds=1)


def gpt2(size: WorkloadSizes) -> Any:
    """GPT-2 of small's width, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_layer=size.layers,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    model.loss_type = "ForCausalLM"  # transformers warns if it has to guess
    return model


def _stock_and_converted(model: Any) -> tuple[nn.Module, nn.Module]:
    assert model.config._attn_implementation == "sdpa"  # the default of transformers, and our baseline
    return model, convert(copy.deepcopy(model))

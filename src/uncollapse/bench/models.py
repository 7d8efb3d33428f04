"""Whole models: training steps and decoding, stock against converted."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from uncollapse.diagnosis import diagnose
from uncollapse.metrics import cosine_pairs, entropy
from uncollapse.models.convert import convert
from uncollapse.remedies.locater import add_gradient

from .attention import SEED
from .measurement import Measurement, figures, megabytes
from .memory import peak_added, settle, too_large
from .timing import Run, race

ADAM_COPIES = 5  # weights, gradients, two moments, and one for the optimizer's own temporaries
COMPILE = """
import time, uncollapse.attention._native as native
start = time.perf_counter()
assert native.operators() is not None
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class InputSizes:
    """How large the models' inputs are."""

    tokens: int = 1024
    images: int = 8
    prompt: int = 512
    new_tokens: int = 128
    layers: int = 12
    batches: int = 8  # of a diagnosis
    vocabulary: int = 50257


FULL = InputSizes()
QUICK = InputSizes(tokens=128, images=2, prompt=32, new_tokens=8, layers=3, batches=2, vocabulary=4096)


@dataclass(frozen=True)
class Pairing:
    """A run and the one it is compared with, made when it is their turn and dropped after it."""

    cell: Measurement
    make: Callable[[InputSizes], tuple[Run, Run]]  # the run, and against what
    parameters: float  # of one model, roughly, for the memory guard


def model_cells(size: InputSizes, rounds: int, budget: float, compile_time: bool = True) -> Iterator[Measurement]:
    """Yield one cell a model: training steps, decoding, x-transformers, and the compilation on first use."""
    for duel in pairings(size):
        yield _measure(duel, size, rounds, budget)
        settle()
    if compile_time:
        yield compile_cell()


def pairings(size: InputSizes) -> Iterator[Pairing]:
    """What is compared."""
    step = "training step"
    gpt2 = f"{size.layers} layers, B1 T{size.tokens}"
    yield Pairing(_cell("GPT-2, converted", "stock", gpt2, size.tokens, True, step), gpt2_step, 124e6)
    yield Pairing(_cell("GPT-2, LocAteR", "stock", gpt2, size.tokens, True, step), gpt2_locater, 124e6)
    images = f"{size.layers} layers, B{size.images}, 224 x 224 pixels"
    yield Pairing(_cell("ViT, converted", "stock", images, 197, False, step), vit_step, 6e6)
    length = size.prompt + size.new_tokens
    decode = f"{size.layers} layers, {size.new_tokens} tokens after a prompt of {size.prompt}"
    yield Pairing(_cell("GPT-2, converted", "stock", decode, length, True, "generate"), gpt2_decode, 124e6)
    seen = f"{size.layers} layers, {size.batches} x B1 T{size.tokens}"
    yield Pairing(
        _cell("GPT-2, diagnosed", "plain forwards", seen, size.tokens, True, "diagnose"), gpt2_diagnose, 124e6
    )
    cell = _cell("GPT-2, output_attentions", "plain forwards", seen, size.tokens, True, "entropy and cosine only")
    yield Pairing(cell, gpt2_collected, 124e6)
    cell = _cell("x-transformers, residual_attn", "its flash attention", gpt2, size.tokens, True, step)
    yield Pairing(cell, x_transformers_step, 124e6)


def _cell(name: str, against: str, shape: str, length: int, causal: bool, work: str) -> Measurement:
    return Measurement("model", name, against, shape, length, causal, work)


def _measure(duel: Pairing, size: InputSizes, rounds: int, budget: float) -> Measurement:
    note = too_large(2 * ADAM_COPIES * 4 * duel.parameters)
    if note is not None:
        return replace(duel.cell, note=note)
    torch.manual_seed(SEED)
    try:
        run, against = duel.make(size)
    except ImportError as error:
        return replace(duel.cell, note=f"not run: {error.name} is not installed")
    run(), against()  # so that the optimizers' moments are there
    peak, against_peak = peak_added(run), peak_added(against)
    return figures(duel.cell, race(run, against, rounds, budget), peak, megabytes(against_peak))


def training_step(model: nn.Module, loss: Callable[[], torch.Tensor], before_step: Run = lambda: None) -> Run:
    """Forward, backward, AdamW; `before_step` is what a callback does between the last two."""
    optimizer = torch.optim.AdamW(model.parameters())

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        before_step()
        optimizer.step()

    return run


def gpt2_step(size: InputSizes) -> tuple[Run, Run]:
    """GPT-2 of small's width, without dropout: with it CPU SDPA leaves its fast path."""
    stock, converted = _stock_and_converted(_gpt2(size).train())
    ids = torch.randint(0, size.vocabulary, (1, size.tokens))

    def step(model: nn.Module) -> Run:
        return training_step(model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss)

    return step(converted), step(stock)


def gpt2_locater(size: InputSizes) -> tuple[Run, Run]:
    """The same model with the penalty's gradient added before each step, as LocaterCallback does."""
    stock = _gpt2(size).train()
    regularised = copy.deepcopy(stock)
    ids = torch.randint(0, size.vocabulary, (1, size.tokens))

    def step(model: Any, before_step: Run) -> Run:
        return training_step(model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss, before_step)

    return step(regularised, lambda: add_gradient(regularised, 0.01, 0.1)), step(stock, lambda: None)


def vit_step(size: InputSizes) -> tuple[Run, Run]:
    """ViT of Tiny's width on images of 224 x 224 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    heads, width = 3, 192
    config = ViTConfig(
        hidden_size=width, intermediate_size=4 * width, num_attention_heads=heads, num_hidden_layers=size.layers
    )
    config.num_labels = 1000
    stock, converted = _stock_and_converted(ViTForImageClassification(config).train())
    pixels, labels = torch.randn(size.images, 3, 224, 224), torch.randint(0, 1000, (size.images,))

    def step(model: nn.Module) -> Run:
        return training_step(model, lambda: model(pixel_values=pixels, labels=labels).loss)

    return step(converted), step(stock)


def gpt2_decode(size: InputSizes) -> tuple[Run, Run]:
    """Greedy decoding with a cache, through generate(); the prompt's own pass is part of it."""
    stock, converted = _stock_and_converted(_gpt2(size).eval())
    prompt = torch.randint(0, size.vocabulary - 1, (1, size.prompt))

    def decode(model: Any) -> Run:
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


def gpt2_diagnose(size: InputSizes) -> tuple[Run, Run]:
    """One streaming pass with all metrics, against forwards that measure nothing."""
    model = _gpt2(size).eval()
    batches = [{"input_ids": torch.randint(0, size.vocabulary, (1, size.tokens))} for _ in range(size.batches)]
    return lambda: diagnose(model, batches, progress=False), lambda: _forwards(model, batches)


def gpt2_collected(size: InputSizes) -> tuple[Run, Run]:
    """What is done without a streaming pass: keep the attention maps and hidden states, then two metrics of them."""
    model = _gpt2(size).eval()
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


def x_transformers_step(size: InputSizes) -> tuple[Run, Run]:
    """A decoder of GPT-2 small's size in x-transformers: residual_attn against its fast path, which excludes it."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    ids = torch.randint(0, size.vocabulary, (1, size.tokens))

    def step(**options: bool) -> Run:
        torch.manual_seed(SEED)
        layers = Decoder(dim=768, depth=size.layers, heads=12, attn_dim_head=64, **options)
        model = AutoregressiveWrapper(
            TransformerWrapper(num_tokens=size.vocabulary, max_seq_len=size.tokens, attn_layers=layers)
        ).train()
        return training_step(model, lambda: model(ids))

    return step(residual_attn=True), step(attn_flash=True)


def compile_cell() -> Measurement:
    """Seconds that the first use of the C++ tiles takes, in a fresh process with an empty cache."""
    cell = Measurement("model", "C++ tiles", "", "first use", 0, False, "compilation")
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"UNCOLLAPSE_CACHE": cache}
        done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    if done.returncode:
        return replace(cell, note="not run: the C++ tiles could not be compiled")
    return replace(cell, seconds=float(done.stdout), rounds=1)


def _gpt2(size: InputSizes) -> Any:
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
    assert model.config._attn_implementation == "sdpa"  # transformers' own choice, and what we compare with
    return model, convert(copy.deepcopy(model))

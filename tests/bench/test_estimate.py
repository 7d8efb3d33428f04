"""Arithmetic and memory against numbers worked out by hand."""

import json

import pytest
from transformers import BertConfig, GPT2Config, LlamaConfig, ViTConfig

from tests.processes import printed_alone
from uncollapse.bench.auto import auto_choice
from uncollapse.bench.estimate import COST_MODELS, arithmetic, held, memory, summed
from uncollapse.bench.implementations import IMPLEMENTATIONS
from uncollapse.bench.model_shape import KNOWN, model_shape
from uncollapse.bench.stack_shape import StackShape

# Two layers, one head of size 64, 128 tokens: two strips of 64 rows, 3 of the 4 tiles of 64 x 64 are causal.
SHAPE = StackShape(length=128, layers=2, heads=1)
PRODUCT = 2 * 64 * 3 * 64 * 64  # one product over the causal tiles
FULL = 2 * 64 * 128 * 128  # one over the whole matrix
TOKENS = 4 * 128 * 64  # bytes of one layer's queries


def test_every_implementation_has_a_form():
    assert set(COST_MODELS) == {implementation.name for implementation in IMPLEMENTATIONS}


@pytest.mark.parametrize(
    ("name", "forward", "training"),
    [
        ("SDPA", 2 * 2 * PRODUCT, 2 * 7 * PRODUCT),  # backward: scores again, and four gradients
        ("plain attention", 2 * 2 * FULL, 2 * 6 * FULL),
        ("carried, C++", 2 * 2 * PRODUCT, 2 * 6 * PRODUCT),  # backward has the scores
        ("stacked", (2 + 3) * PRODUCT, (2 + 5 + 3 + 8) * PRODUCT),  # layer 2 makes the scores of both layers
    ],
)
def test_arithmetic(name, forward, training):
    assert arithmetic(name, SHAPE, training=False) == forward
    assert arithmetic(name, SHAPE, training=True) == training


@pytest.mark.parametrize(
    ("name", "forward", "training"),
    [
        ("SDPA", 2 * TOKENS, 2 * 4 * TOKENS),  # outputs and three gradients a layer
        ("carried, C++", 4 * 3 * 64 * 64 + 2 * TOKENS, 2 * 4 * 3 * 64 * 64 + 2 * 4 * TOKENS),
        ("plain attention", 3 * 4 * 128 * 128 + 2 * TOKENS, 5 * 4 * 128 * 128 + 2 * 4 * TOKENS),
        ("stacked", 2 * TOKENS, 2 * 4 * TOKENS + 2 * 2 * TOKENS),  # and gradients of two layers' queries and keys
    ],
)
def test_memory(name, forward, training):
    assert memory(name, SHAPE, training=False) == forward
    assert memory(name, SHAPE, training=True) == training


def test_stacked_holds_past_queries_and_keys_the_others_one_layer():
    assert held("SDPA", SHAPE, training=False) == 3 * TOKENS
    assert held("stacked", SHAPE, training=False) == 5 * TOKENS
    assert held("SDPA", SHAPE, training=True) == held("stacked", SHAPE, training=True) == 6 * TOKENS


def test_grouped_heads_need_less_memory_for_keys():
    grouped = StackShape(length=128, layers=1, heads=4, groups=1)
    assert held("SDPA", grouped, training=True) == (4 + 1 + 1) * TOKENS


def test_stacked_stops_growing_with_depth():
    assert [summed(n) for n in (1, 2, 23, 24, 96)] == [1, 2, 23, 23, 23]  # 0.5^23 is float32's rounding


COMPARED = ["plain hopfield", "SDPA + mask", "carried, C++", "stacked"]
MEASURED = f"""
import json
from uncollapse.bench.attention import stack_workload
from uncollapse.bench.implementations import IMPLEMENTATIONS
from uncollapse.bench.memory import peak_added
from uncollapse.bench.stack_shape import StackShape

shape, peaks = StackShape(length=1024, layers=2), dict()
for implementation in IMPLEMENTATIONS:
    layers = shape.inputs()
    if implementation.name in {COMPARED} and not implementation.missing(layers):
        run = stack_workload(implementation, layers, shape.causal, training=True)
        run()
        peaks[implementation.name] = peak_added(run)
print(json.dumps(peaks))
"""


@pytest.fixture(scope="module")
def peaks():
    return json.loads(printed_alone(MEASURED))


@pytest.mark.parametrize("name", COMPARED)
def test_the_estimate_is_near_what_is_measured(name, peaks):
    """Within a third: the measure also counts the working memory of the products."""
    if name not in peaks:
        pytest.skip("no compiler for the C++ tiles")
    if peaks[name] is None:
        pytest.skip("this system has no /proc/self/clear_refs")
    assert peaks[name] == pytest.approx(memory(name, StackShape(length=1024, layers=2), training=True), rel=0.34)


def test_a_known_model_and_a_folder_give_the_same_shape(tmp_path):
    GPT2Config(architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path)
    assert model_shape(str(tmp_path), 64, batch=3) == model_shape("gpt2", 64, batch=3)
    assert model_shape("gpt2", 64).name == "12 layers, B1 H12 T64 D64, causal"


@pytest.mark.parametrize(
    ("config", "causal", "groups"),
    [
        (GPT2Config(), True, 12),
        (BertConfig(), False, 12),
        (ViTConfig(), False, 12),
        (LlamaConfig(num_attention_heads=32, num_key_value_heads=8), True, 8),
    ],
    ids=["gpt2", "bert", "vit", "llama"],
)
def test_a_config_without_architecture_is_read_by_its_tasks(config, causal, groups, tmp_path):
    config.architectures = None
    config.save_pretrained(tmp_path)
    shape = model_shape(str(tmp_path), 16)
    assert (shape.causal, shape.groups) == (causal, groups)


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_model_has_an_estimate(name):
    shape = model_shape(name, 197)
    assert all(memory(form, shape, True) > 0 for form in COST_MODELS)


def test_auto_takes_stacked_where_the_scores_do_not_fit(free_memory):
    free_memory(4e9)
    training, forward = auto_choice(model_shape("gpt2", 8192))
    assert "auto chooses stacked for training: the scores of carried would need 19.5 GB, 2.0 GB" in training
    assert "auto chooses carried for a forward pass without gradients: its scores need 1.6 GB" in forward

"""The cost model of GPUs: its arithmetic by hand, what it says, and that it is marked as a model."""

import pytest

from uncollapse.bench.gpu_model import FORMS, GPUS, NOTICE, advice, gpu_table, layer_seconds, ratio, step_ratio
from uncollapse.bench.model_shape import model_shape
from uncollapse.cli import main

FLASH, CARRIED, TWO_BYTES, REVERSIBLE, WINDOW, *_ = FORMS


def medium(length, batch):
    return model_shape("gpt2-medium", length, batch)


def test_carried_takes_as_long_as_its_traffic():
    """One head of T tokens in tiles of 64: T^2 / 2 + 32 T scores, read and written in float32, and q, k, v, out."""
    forward, _ = layer_seconds(CARRIED, medium(1024, 8), GPUS["a100"])
    traffic = 8 * 16 * (8 * (1024**2 / 2 + 32 * 1024) + 4 * 2 * 1024 * 64)
    assert forward == pytest.approx(traffic / (0.85 * 2.0e12))


def test_flash_attention_takes_as_long_as_its_arithmetic():
    forward, backward = layer_seconds(FLASH, medium(4096, 2), GPUS["h100"])
    product = 2 * 16 * 2 * 64 * (4096**2 / 2 + 32 * 4096)
    assert forward == pytest.approx(2 * product / (0.65 * 989e12))
    assert backward == pytest.approx(5 * product / (0.50 * 989e12))


def test_the_ratios_that_the_documentation_states():
    shapes = [medium(1024, 8), medium(4096, 2)]
    wide = [ratio(CARRIED, shape, GPUS[gpu]) for gpu in ("a100", "h100") for shape in shapes]
    narrow = [ratio(TWO_BYTES, shape, GPUS[gpu]) for gpu in ("a100", "h100") for shape in shapes]
    assert (round(min(wide), 1), round(max(wide), 1)) == (2.7, 5.6)
    assert (round(min(narrow), 1), round(max(narrow), 1)) == (1.4, 3.1)
    steps = {gpu: round(step_ratio(TWO_BYTES, medium(1024, 8), GPUS[gpu]), 2) for gpu in ("a100", "h100")}
    assert steps == {"a100": 1.06, "h100": 1.20}


def test_longer_matrices_and_more_passes_never_take_less():
    for gpu in GPUS.values():
        for form in FORMS:
            assert sum(layer_seconds(form, medium(2048, 1), gpu)) >= sum(layer_seconds(form, medium(1024, 1), gpu))
        for shape in (medium(1024, 8), medium(4096, 2)):
            assert ratio(REVERSIBLE, shape, gpu) >= ratio(CARRIED, shape, gpu) >= ratio(TWO_BYTES, shape, gpu) > 1


@pytest.mark.parametrize(
    ("model", "length", "batch", "gpu", "taken"),
    [
        ("gpt2-medium", 1024, 8, "a100", "Take carried, scores_dtype=float16"),
        ("llama-7b", 4096, 2, "a100", "Take carried, scores_dtype=float16"),
        ("llama-7b", 4096, 4, "a100", "Take reversible"),
        ("llama-7b", 8192, 4, "4090", "No exact form"),
    ],
)
def test_the_advice_is_what_fits(model, length, batch, gpu, taken):
    assert taken in advice(model_shape(model, length, batch), GPUS[gpu])[1]


@pytest.mark.parametrize("gpu", GPUS)
def test_the_command_marks_it_as_a_model(gpu, capsys):
    assert main(["bench", "--estimate", "gpt2-medium", "--length", "1024", "--batch", "8", "--gpu", gpu]) == 0
    said = capsys.readouterr().out
    assert said.count(NOTICE) == 2
    assert "bound by memory" in said
    assert all(form.name in said for form in FORMS)
    assert len(gpu_table(medium(1024, 8), GPUS[gpu])) == len(FORMS)


def test_a_gpu_without_an_estimate_is_refused(capsys):
    assert main(["bench", "--gpu", "a100"]) == 2
    assert "--gpu goes with --estimate" in capsys.readouterr().err
    assert main(["bench", "--estimate", "gpt2", "--length", "64", "--gpu", "v100"]) == 2
    assert "must be one of a100, h100, b200, 4090, mi300" in capsys.readouterr().err

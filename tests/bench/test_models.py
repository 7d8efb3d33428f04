"""Whole models at their smallest: every pair runs, or says why not."""

import sys

import pytest

from uncollapse.bench.models import (
    WorkloadSizes,
    gpt2_decode,
    measure_compilation,
    measure_models,
    measure_pair,
    workload_pairs,
)

PLENTY = 1e12  # bytes: the guard looks at the full models' size whatever the inputs


@pytest.fixture(autouse=True)
def _plenty_of_memory(free_memory):
    free_memory(PLENTY)


TINY = WorkloadSizes(tokens=8, images=1, prompt=4, new_tokens=2, layers=1, batches=1, vocabulary=64)


def test_every_model_gets_a_ratio():
    cells = list(measure_models(TINY, rounds=1, budget=1.0, compile_time=False))
    step = "training step"
    works = [step, step, step, step, step, "generate", "diagnose", "entropy and cosine only", step]
    assert [cell.work for cell in cells] == works
    for cell in cells:
        assert cell.ratio > 0 or "is not installed" in cell.note


def test_x_transformers_is_left_out_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    *_, pair = workload_pairs(TINY)
    cell = measure_pair(pair, TINY, rounds=1, budget=1.0)
    assert cell.note == "not run: x_transformers is not installed"
    assert cell.ratio is None


def test_stock_and_converted_models_differ_in_attention_alone():
    converted, stock = gpt2_decode(TINY)
    models = [run.__closure__[run.__code__.co_freevars.index("model")].cell_contents for run in (converted, stock)]
    assert [hasattr(model.config, "uncollapse") for model in models] == [True, False]
    assert all(a.equal(b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_a_failed_compilation_is_a_note(monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    cell = measure_compilation()
    assert cell.note == "not run: the C++ tiles could not be compiled"
    assert cell.seconds is None


@pytest.mark.parametrize("size", [TINY, WorkloadSizes()])
def test_names_say_what_was_run(size):
    assert f"{size.layers} layers, B1 T{size.tokens}" in next(workload_pairs(size)).measurement.shape

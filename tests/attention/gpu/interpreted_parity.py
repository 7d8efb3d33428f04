"""The kernels under Triton's interpreter, guarded: run by test_interpreted.py in a process of its own."""

import logging

import pytest
import torch
import triton
import triton.language as tl

import uncollapse as uc
from tests.attention.gpu import guard
from tests.attention.gpu.cases import TOLERANCE, Case, error, relative_error
from tests.attention.parity import MASKS, RULES
from uncollapse.attention import gpu_test
from uncollapse.attention._gpu import configs, launch
from uncollapse.attention._gpu.tile_functions import at_head

GROUPED = {"heads": 4, "groups": 2, "size": 20, "value_size": 24}
MASK_CASES = [
    Case(**GROUPED),
    *(Case(mask=mask, queries=40, keys=100, dtype=torch.bfloat16) for mask in MASKS if mask != "causal"),
    Case(mask="bool", queries=20, keys=70, **GROUPED),
    Case(mask="additive", queries=65, keys=33),
    Case(mask="padding", queries=20, keys=40, batch=2, heads=2, groups=2),
]
LENGTH_CASES = [Case(queries=n, keys=n, dtype=torch.float16) for n in (1, 16, 63, 64, 65, 128, 130)]
RULE_CASES = [Case(rule=rule, queries=20, keys=20, depth=3) for rule in RULES]
DROPOUT_CASES = [
    Case(more={"dropout_p": 0.3}, heads=2, groups=2),
    Case(mask="bool", queries=20, keys=40, more={"dropout_p": 1.0}, depth=1),
    Case(mask="none", queries=20, keys=40, more={"dropout_p": 0.2}, backend="stacked"),
]
STACKED_CASES = [
    Case(backend="stacked", **GROUPED),
    *(Case(mask, backend="stacked", queries=20, keys=100) for mask in ("none", "additive", "bool")),
    Case(backend="stacked", dtype=torch.bfloat16, queries=65, keys=65),
    Case(backend="stacked", dtype=torch.float16, queries=128, keys=128, size=64, value_size=64),
    Case(backend="stacked", rule="realformer", queries=20, keys=20, depth=3),
]
LARGE_HEADS = [Case(size=128, value_size=128, queries=64, keys=64, dtype=dtype) for dtype in TOLERANCE]
IN_TWO_BYTES = {"scores_dtype": torch.float16}
TWO_BYTE_CASES = [
    Case(dtype=torch.bfloat16, more=IN_TWO_BYTES),
    Case(mask="bool", queries=20, keys=40, dtype=torch.float16, more=IN_TWO_BYTES, heads=2),
]
ALL = [*MASK_CASES, *LENGTH_CASES, *RULE_CASES, *DROPOUT_CASES, *STACKED_CASES, *TWO_BYTE_CASES, *LARGE_HEADS]


@pytest.fixture(scope="module", autouse=True)
def watch():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # new memory is NaN
    return guard.install()


@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_stack_is_the_definition(case):
    assert error(case) < case.tolerance


ROWS = sorted(set(configs.TABLE.values()))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"row {ROWS.index(row)}")
def test_every_row_of_the_table_is_the_definition(row, monkeypatch):
    monkeypatch.setattr(launch, "config", lambda *about: row)
    for backend in ("carried", "stacked"):
        assert error(Case(backend=backend)) < TOLERANCE[torch.float32]


def test_the_scratch_of_stacked_may_hold_one_group_at_a_time(monkeypatch):
    monkeypatch.setattr(launch, "SCRATCH_BYTES", 1)
    assert error(Case(backend="stacked", heads=4, groups=2, batch=2, depth=2, queries=20, keys=20)) < 1e-5


def test_a_causal_layer_continues_from_a_full_one():
    results = []
    for backend, dtype in (("carried", torch.float32), ("reference", torch.float64)):
        stack = Case(queries=70, keys=70, depth=2).stack()
        layers = stack.inputs(dtype)
        first, state = uc.hopfield_attention(*layers[0], backend=backend)
        second, state = uc.hopfield_attention(*layers[1], state, is_causal=True)
        assert backend == "reference" or state.engine == "triton"
        stack.loss([first, second]).backward()
        results.append([first, second, *(t.grad for layer in layers for t in layer)])
    assert max(map(relative_error, *results)) < 1e-5


@pytest.mark.parametrize("backend", ["carried", "stacked"])
@pytest.mark.parametrize("groups", [1, 2])
def test_learned_coefficients_get_their_gradient(backend, groups):
    results = []
    for name, dtype in ((backend, torch.float32), ("reference", torch.float64)):
        stack = Case(depth=3, heads=2, groups=groups, queries=20, keys=20).stack()
        alpha = torch.tensor([0.3, 0.6], dtype=dtype, requires_grad=True)
        layers, outs, state = stack.inputs(dtype), [], None
        for layer in layers:
            out, state = uc.hopfield_attention(
                *layer, state, alpha_hidden=alpha, is_causal=True, enable_gqa=True, backend=name
            )
            outs.append(out)
        assert name == "reference" or state.engine == "triton"
        stack.loss(outs).backward()
        results.append([*outs, alpha.grad, *(t.grad for layer in layers for t in layer)])
    assert max(map(relative_error, *results)) < 1e-5


def test_the_recursion_run_backwards_continues_from_the_kernels():
    """Each step backwards divides by keep and loses a digit or so of float32."""
    assert error(Case(backend="reversible", rule="hopfield-raw", depth=4, heads=1, groups=1)) < 1e-4


@pytest.mark.parametrize("backend", ["carried", "stacked"])
def test_torch_compile_runs_the_same_kernels(backend):
    """There every coefficient is a tensor, and no buffer is written over."""
    stack = Case(backend=backend, depth=2, heads=2, groups=1, queries=20, keys=20).stack()
    results = []
    for compiler in (lambda run: run, lambda run: torch.compile(run, fullgraph=True, backend="aot_eager")):
        layers = stack.inputs()
        outs, engine = compiler(lambda layers: engine_of(stack.run(layers, backend)))(layers)
        assert engine == "triton"
        stack.loss(outs).backward()
        results.append([*outs, *(t.grad for layer in layers for t in layer)])
    assert max(map(relative_error, *results)) < 1e-5


def engine_of(result):
    outs, state = result
    return outs, state.engine


@triton.jit
def offsets(to, per_head):
    head = tl.program_id(0)
    tl.store(to + head, at_head(head * 0, head, per_head))


def test_heads_may_lie_further_apart_than_32_bits():
    """The arithmetic alone: no machine has the memory for the buffers."""
    found, apart = torch.empty(8, dtype=torch.int64), (1 << 30) + 48
    offsets[(8,)](found, apart)
    assert found.tolist() == [head * apart for head in range(8)]


def test_with_gradients_off_a_layer_writes_over_the_state_it_continues_from():
    q, k, v = torch.randn(3, 1, 2, 70, 16)
    results = []
    for backend in ("carried", "reference"):
        state = None
        with torch.no_grad():
            for _ in range(3):
                out, state = uc.hopfield_attention(q, k, v, state, is_causal=True, backend=backend)
        results.append(out)
    assert relative_error(*results) < 1e-5


@pytest.mark.parametrize(
    ("q", "options", "reason"),
    [
        (torch.randn(1, 1, 4, 16, dtype=torch.float64), {}, "float64"),
        (torch.randn(1, 1, 4, 8), {}, "head size of 8"),
        (torch.randn(1, 1, 4, 256), {}, "head size of 256"),
        (torch.randn(1, 1, 4, 16), {"attn_mask": torch.zeros(4, 4, requires_grad=True)}, "needs a gradient"),
    ],
    ids=["float64", "small heads", "large heads", "learned mask"],
)
def test_what_is_not_served_falls_back_and_says_so(q, options, reason, caplog):
    with caplog.at_level(logging.DEBUG, logger="uncollapse"):
        _, state = uc.hopfield_attention(q, q, q, backend="carried", **options)
    assert state.engine != "triton"
    assert reason in caplog.text


def test_a_value_size_that_is_not_served_falls_back():
    q, v = torch.randn(1, 1, 4, 16), torch.randn(1, 1, 4, 200)
    assert uc.hopfield_attention(q, q, v)[1].engine != "triton"


def test_the_switch(monkeypatch):
    q = torch.randn(1, 1, 4, 16)
    for value, engine in (("1", True), ("0", False)):
        monkeypatch.setenv("UNCOLLAPSE_TRITON", value)
        assert (uc.hopfield_attention(q, q, q)[1].engine == "triton") is engine
    monkeypatch.delenv("UNCOLLAPSE_TRITON")
    assert uc.hopfield_attention(q, q, q)[1].engine != "triton"


def test_gpu_test_passes_what_is_right():
    """As the command runs it on a GPU, smaller."""
    small = {"heads": 2, "groups": 1, "queries": 20, "keys": 20, "size": 16}
    for case in (gpu_test.GpuCase(torch.bfloat16, **small), gpu_test.GpuCase(torch.float32, learned=True, **small)):
        outcome = gpu_test.run_case(case, torch.device("cpu"))
        assert outcome.passed, str(outcome)
    assert "not the kernels" in gpu_test.run_case(gpu_test.GpuCase(torch.float32, size=8), torch.device("cpu")).fault


def test_the_guard_has_watched(watch):
    assert watch.launches > 0
    assert watch.accesses > watch.launches

"""The compiled tiles: built once, refused politely, known to torch.compile."""

import contextlib
import io
import warnings

import pytest
import torch
from torch.library import opcheck

from tests.attention.parity import Stack, assert_same, evaluate
from tests.processes import process
from uncollapse.attention import _native as native
from uncollapse.attention import tile_engine
from uncollapse.attention._carried_operators import carried_forward
from uncollapse.attention._stacked_operators import stacked_forward

BACKENDS = pytest.mark.parametrize("backend", ["carried", "stacked"])
ENGINES = pytest.mark.parametrize("engine", ["cpp", "torch"])

SMALL_RUN = """
import torch, uncollapse as uc
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 70, 8)
out, state = uc.hopfield_attention(q, k, v, is_causal=True)
out, state = uc.hopfield_attention(q, k, v, state, is_causal=True)
out2, _ = uc.hopfield_attention(q, k, v, is_causal=True, backend="stacked")
print(out.double().sum().item() + out2.double().sum().item())
"""


def test_the_tiles_are_compiled_here():
    assert tile_engine(torch.zeros(1, 1, 1, 1)) == "cpp"
    assert tile_engine(torch.zeros(1, 1, 1, 1, dtype=torch.float64)) == "torch"
    assert tile_engine(torch.zeros(1, 1, 1, 1, device="meta")) == "torch"


def torch_tiles(monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", "0")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(SMALL_RUN, {})
    return pytest.approx(float(printed.getvalue()), abs=1e-3)  # sums of 2,000 float32 numbers of order 1


def test_two_processes_that_start_at_once_build_once_and_agree_with_torch_tiles(tmp_path, monkeypatch):
    pair = [process(SMALL_RUN, tmp_path) for _ in range(2)]
    (one, said_one), (two, said_two) = (p.communicate() for p in pair)
    assert float(one) == float(two) == torch_tiles(monkeypatch)
    assert sorted(said.count("compiling the attention tiles") for said in (said_one, said_two)) == [0, 1]
    assert (said_one + said_two).count("uncollapse") == 1
    built = [path.suffix for path in (tmp_path / "native").iterdir()]
    assert sorted(built) == [".lock", ".sha256", ".so"]


def test_a_compiler_that_fails_costs_one_warning_and_no_result(tmp_path, monkeypatch):
    out, said = process(SMALL_RUN, tmp_path, CXX="/bin/false").communicate()
    assert float(out) == torch_tiles(monkeypatch)
    assert said.count("could not be built") == 1


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_switched_off_it_gives_the_same(backend, dtype, monkeypatch):
    stack = Stack(queries=70, keys=70, dtype=dtype, heads=4, arguments={"is_causal": True})
    on = evaluate(stack, backend)
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        off = evaluate(stack, backend)
    rounding = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    assert_same(on, off, rounding)


def tensors(count, *shape):
    maker = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=maker).requires_grad_() for _ in range(count)]


@ENGINES
@pytest.mark.parametrize("with_old", [True, False])
def test_carried_passes_opcheck(engine, with_old):
    q, k, v = tensors(3, 1, 2, 5, 4)
    old = torch.randn(50).requires_grad_() if with_old else None
    mask = torch.ones(5, 5, dtype=torch.bool).tril(2)
    keep, gain = torch.tensor([0.5, 0.3]).requires_grad_(), torch.full((2,), 0.25)
    settings = {"old_causal": False, "is_causal": False, "dropout_p": 0.0, "stored": torch.float32}
    opcheck(carried_forward, (q, k, v, old, keep, gain, mask, None), {**settings, "engine": engine})
    settings = {"old_causal": True, "is_causal": True, "dropout_p": 0.3, "stored": torch.float16}
    opcheck(
        carried_forward, (q, k, v, None, keep.detach(), gain, None, torch.tensor(7)), {**settings, "engine": engine}
    )


@ENGINES
def test_stacked_passes_opcheck(engine):
    q, k, v, q2, k2 = tensors(5, 1, 2, 5, 4)
    weights = torch.tensor([[0.5, 0.2], [0.25, 0.1]]).requires_grad_()
    settings = {"is_causal": True, "dropout_p": 0.0, "engine": engine}
    opcheck(stacked_forward, ([q, q2], [k, k2], v, weights, None, None), settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learned_mask_passes_opcheck(dtype):
    """A mask that needs a gradient runs in torch operations, inside torch.compile too."""
    q, k, v, q2, k2 = (t.detach().to(dtype).requires_grad_() for t in tensors(5, 1, 2, 5, 4))
    mask = torch.zeros(5, 5, dtype=dtype).requires_grad_()
    shared = {"is_causal": False, "dropout_p": 0.0, "engine": "torch"}
    keep, gain = torch.zeros(2, dtype=dtype), torch.full((2,), 0.25, dtype=dtype)
    opcheck(carried_forward, (q, k, v, None, keep, gain, mask, None), {"old_causal": False, "stored": dtype, **shared})
    opcheck(stacked_forward, ([q, q2], [k, k2], v, torch.stack([gain, gain]), mask, None), shared)


def test_the_compiled_operators_pass_opcheck():
    ops = native.operators("tiles")
    q, k, v, out = (t.detach() for t in tensors(4, 1, 2, 5, 4))
    old, hidden, carried = torch.randn(3, 50)
    rows = torch.randn(1, 2, 5)
    softmax = {"attn_mask": None, "is_causal": False, "dropout_p": 0.0, "seed": 0, "tile": 64}
    settings = {"keep": [0.5], "gain": [0.25], "old_causal": False, **softmax}
    fakes_and_schema = ("test_schema", "test_faketensor")
    opcheck(ops.carried_forward.default, (q, k, v, old, hidden), settings, test_utils=fakes_and_schema)
    arguments = (out, carried, q, k, v, out, hidden, rows, old, None)
    for reverse in (False, True):
        more = {**settings, "reverse": reverse}
        opcheck(ops.carried_backward.default, arguments, more, test_utils=fakes_and_schema)
    settings = {"weights": [0.5, 0.5, 0.3, 0.3], "cap": 5.0, **softmax}
    opcheck(ops.stacked_forward.default, ([q, out], [k, v], v), settings, test_utils=fakes_and_schema)
    arguments = (out, [q, out], [k, v], v, out, rows)
    opcheck(ops.stacked_backward.default, arguments, settings, test_utils=fakes_and_schema)


@BACKENDS
@pytest.mark.parametrize("native_on", ["1", "0"])
@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"dropout_p": 0.3}, {"attn_mask": torch.ones(70, 70).tril() > 0}]
)
def test_torch_compile_of_the_whole_gives_the_same(backend, native_on, options, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", native_on)
    compare_compiled(
        Stack(queries=70, keys=70, heads=4, dtype=torch.float32, depth=3, arguments=options), backend, "aot_eager"
    )


@BACKENDS
def test_torch_compile_with_inductor(backend):
    stack = Stack(queries=70, keys=70, dtype=torch.float32, depth=2, arguments={"is_causal": True})
    compare_compiled(stack, backend, "inductor")


def compare_compiled(stack, backend, compiler):
    torch._dynamo.reset()

    def forward(layers):
        outs, state = stack.run(layers, backend)
        return outs, state.layer

    results = []
    for run in (torch.compile(forward, fullgraph=True, backend=compiler), forward):
        torch.manual_seed(0)
        layers = stack.inputs()
        outs, depth = run(layers)
        stack.loss(outs).backward()
        assert depth == stack.depth
        results.append([o.detach() for o in outs] + [t.grad for layer in layers for t in layer])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

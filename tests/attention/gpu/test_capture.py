"""Graphs are captured for a GPU that is not here: the operators trace on fake CUDA tensors, the kernels inside them.

A fake CUDA tensor that requires a gradient aborts a process without CUDA, so gradients are traced on the CPU.
"""

import pytest
import torch
from torch._functorch.aot_autograd import aot_function, make_boxed_compiler
from torch._subclasses.fake_tensor import FakeTensorMode

import uncollapse as uc

BACKENDS = pytest.mark.parametrize("backend", ["carried", "stacked"])


@pytest.fixture
def a100(monkeypatch):
    """A machine that says it has an A100, on which the kernels are wanted."""
    pytest.importorskip("triton", reason="Triton is not installed: its engine is never chosen")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setenv("UNCOLLAPSE_TRITON", "1")
    torch._dynamo.reset()


class TwoLayers(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.backend = backend

    def forward(self, q, k, v):
        out, state = uc.hopfield_attention(q, k, v, is_causal=True, backend=self.backend)
        assert state.engine == ("triton" if q.is_cuda else state.engine)
        out, _ = uc.hopfield_attention(q + out, k, v, state, is_causal=True)
        return out


def engines(graph):
    """The engine of each of our operators in a graph."""
    ours = [node for node in graph.nodes if "uncollapse" in str(node.target)]
    return [node.kwargs["engine"] for node in ours]


def fake_inputs(**options):
    return [torch.empty(2, 4, 70, 64, device="cuda", **options) for _ in range(3)]


@BACKENDS
def test_one_graph_is_captured_by_torch_compile(backend, a100):
    seen = []

    def keep(graph, inputs):
        seen.append(graph.graph)
        return graph.forward

    with FakeTensorMode(allow_non_fake_inputs=True):
        out = torch.compile(TwoLayers(backend), fullgraph=True, backend=keep)(*fake_inputs(dtype=torch.bfloat16))
    assert (out.device.type, out.shape, out.dtype) == ("cuda", (2, 4, 70, 64), torch.bfloat16)
    assert [engines(graph) for graph in seen] == [["triton", "triton"]]


@BACKENDS
def test_export(backend, a100):
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = tuple(fake_inputs())
        program = torch.export.export(TwoLayers(backend), inputs, strict=False)
    assert engines(program.graph) == ["triton", "triton"]


@BACKENDS
def test_gradients_are_traced_on_the_cpu(backend):
    """The backward operators are the same ones, with another engine."""
    graphs = []

    @make_boxed_compiler
    def keep(graph, inputs):
        graphs.append(graph.graph)
        return graph.forward

    def step(q, k, v):
        return TwoLayers(backend)(q, k, v).sum()

    torch._dynamo.reset()
    inputs = [torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(3)]

    def both(graph, given):
        return aot_function(graph, fw_compiler=keep, bw_compiler=keep)

    compiled = torch.compile(step, fullgraph=True, backend=both)
    compiled(*inputs).backward()
    names = [str(node.target) for graph in graphs for node in graph.nodes if "uncollapse" in str(node.target)]
    assert [f"{backend}_backward" in name for name in names] == [False, False, True, True]

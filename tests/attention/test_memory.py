"""Peak memory: gradient checkpointing lowers it, and `stacked` stays linear in the sequence."""

import sys

import pytest

from tests.processes import process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
BACKENDS = pytest.mark.parametrize("backend", ["carried", "stacked"])


@BACKENDS
def test_checkpointing_lowers_the_peak(backend):
    with_checkpoints, without = growth(CHECKPOINTED.replace("BACKEND", backend))
    assert without > 1.25 * with_checkpoints  # 1.7 to 2 measured; the allocator's slack counts on both sides


@pytest.mark.parametrize("native", ["1", "0"])
def test_stacked_needs_no_score_matrix_forward_or_backward(native):
    (added,) = growth(LENGTH, UNCOLLAPSE_NATIVE=native)
    score_matrix = 2 * 6000 * 6000 * 4  # of one layer: 288 MB; 3 layers of inputs, outputs and gradients are 50 MB
    assert added < score_matrix / 2


def growth(code, **environment):
    """Kilobytes printed by `code`, in bytes."""
    run = process(code, **environment)
    printed, said = run.communicate()
    assert run.returncode == 0, said
    return [1024.0 * float(word) for word in printed.split()]


CHECKPOINTED = """
import torch, uncollapse as uc
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.up, self.down = nn.Linear(256, 768), nn.Linear(256, 1024), nn.Linear(1024, 256)
    def forward(self, x, state):
        q, k, v = (t.unflatten(-1, (4, 64)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        out, state = uc.hopfield_attention(q, k, v, state, is_causal=True, backend="BACKEND")
        x = x + out.transpose(1, 2).flatten(2)
        return x + self.down(nn.functional.gelu(self.up(x))), state

def peak():  # unlike ru_maxrss, not inherited from the process that started this one
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

def step(saving, blocks, x):
    state = None
    for block in blocks:
        x, state = checkpoint(block, x, state, use_reentrant=False) if saving else block(x, state)
    x.square().mean().backward()

torch.set_num_threads(1)
blocks, x = [Block() for _ in range(20)], torch.randn(1, 512, 256)
step(False, blocks[:1], x)
start = peak()
step(True, blocks, x)
middle = peak()
step(False, blocks, x)
print(middle - start, peak() - start)
"""

LENGTH = """
import torch, uncollapse as uc

def peak():  # unlike ru_maxrss, not inherited from the process that started this one
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

def run(tokens):
    state, total = None, 0.0
    for _ in range(3):
        q, k, v = (torch.randn(1, 2, tokens, 32).requires_grad_() for _ in range(3))
        out, state = uc.hopfield_attention(q, k, v, state, is_causal=True, backend="stacked")
        total = total + out.square().mean()
    total.backward()

torch.set_num_threads(1)
run(70)
start = peak()
run(6000)
print(peak() - start)
"""

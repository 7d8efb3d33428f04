"""A first call of `hopfield_attention` loads no more than it needs."""

import subprocess
import sys

HEAVY = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "transformers", "pandas", "triton")
FIRST_CALL = f"""
import sys
import torch
before = set(sys.modules)
import uncollapse as uc
q = torch.randn(1, 2, 8, 4, requires_grad=True)
out, state = uc.hopfield_attention(q, q, q, is_causal=True)
out, state = uc.hopfield_attention(q, q, q, state, is_causal=True)
out.sum().backward()
layer = uc.HopfieldAttention(8, 2, alpha="learned", alpha_hidden="learned")
layer(torch.randn(1, 3, 8))[0].sum().backward()
print([name for name in {HEAVY!r} if name in set(sys.modules) - before])
"""


def test_a_first_call_imports_no_compiler():
    run = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"

"""Seeded bugs: each must be noticed by a few guarded cases. Run by test_interpreted.py in a process of its own."""

import dataclasses
import os

import pytest
import torch
import triton
import triton.language as tl

import uncollapse as uc
from tests.attention.gpu import guard
from tests.attention.gpu.bugs import BUGS, LAUNCH, STACKED, planted
from tests.attention.gpu.cases import Case, error
from uncollapse.attention import _gpu

CARRIED_CASES = [
    Case(heads=4, groups=2, queries=70, keys=70, size=20),
    Case(mask="fully_masked rows", queries=40, keys=70, more={"dropout_p": 0.3}),
    Case(mask="none", queries=64, keys=33),
    Case(queries=128, keys=128),
]
STACKED_CASES = [
    dataclasses.replace(CARRIED_CASES[0], backend="stacked", batch=2, queries=20, keys=20),
    Case(backend="stacked", mask="bool", queries=40, keys=70),
]
SOME = (
    "keep is lost",
    "the mask is forgotten in the softmax",
    "rows beyond the last are read",
    "the weight of a term is lost",
)


@pytest.fixture(scope="module", autouse=True)
def watch():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return guard.install()


def notice(bug, folder):
    """Run until something is wrong; return what, or None."""
    with planted(bug, folder) as functions:
        _gpu.launch.SCRATCH_BYTES = 2 * 2 * 20 * 20 * 4  # two of the four groups of the first stacked case
        try:
            for case in cases(bug):
                found = error(case)
                if not found < case.tolerance:
                    return f"an error of {found:.0e} in: {case}"
            return other_checks(functions)
        except Exception as caught:
            return f"{type(caught).__name__}: {caught}"


def cases(bug):
    if bug is None:
        return CARRIED_CASES + STACKED_CASES
    if bug.file == STACKED:
        return STACKED_CASES
    return CARRIED_CASES + STACKED_CASES if bug.file == LAUNCH else CARRIED_CASES


def other_checks(functions):
    """What the cases do not reach: offsets that no memory has, scores that float16 has not, layouts that differ."""
    if far_offsets(functions.at_head) != [head * APART for head in range(4)]:
        return "offsets of heads"
    q = torch.full((1, 1, 20, 16), 200.0)
    out, state = uc.hopfield_attention(
        q, q, torch.randn(1, 1, 20, 16), is_causal=True, scores_dtype=torch.float16, backend="carried"
    )
    if not (out.isfinite().all() and state.rows(19, 20).max() == 65504):
        return "float16 scores are not bounded"
    alpha = torch.full((1,), 0.5, requires_grad=True)
    q = torch.randn(1, 1, 70, 16)
    _, state = uc.hopfield_attention(q, q, q, alpha_hidden=alpha, backend="carried", is_causal=True)
    out, _ = uc.hopfield_attention(q, q, q, state, alpha_hidden=alpha, is_causal=True)
    out.square().sum().backward()
    if not alpha.grad.isfinite().all():
        return "the gradient of keep is not finite"
    _, state = uc.hopfield_attention(q, q, q, backend="carried")
    ours, _ = uc.hopfield_attention(q, q, q, state, is_causal=True)
    _, state = uc.hopfield_attention(q, q, q, backend="reference")
    truth, _ = uc.hopfield_attention(q, q, q, state, is_causal=True)
    return None if (ours - truth).abs().max() < 1e-5 else "a causal layer after a full one"


APART = (1 << 30) + 48


at_head = None  # that of the kernels under test


@triton.jit
def offsets(to, per_head):
    head = tl.program_id(0)
    tl.store(to + head, at_head(head * 0, head, per_head))


def far_offsets(function):
    global at_head
    at_head, found = function, torch.empty(4, dtype=torch.int64)
    offsets[(4,)](found, APART)
    return found.tolist()


def test_without_a_bug_nothing_is_noticed(tmp_path):
    assert notice(None, tmp_path) is None


WANTED = BUGS if os.environ.get("ALL_BUGS") == "1" else [bug for bug in BUGS if bug.name in SOME]


@pytest.mark.parametrize("bug", WANTED, ids=str)
def test_a_bug_is_noticed(bug, tmp_path):
    noticed = notice(bug, tmp_path)
    print(f"{bug}: {noticed}")
    assert noticed is not None

"""Who owns score memory: buffers are used again, and never while somebody can still read them."""

import gc
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import uncollapse as uc
from tests.attention.parity import Stack, evaluate
from uncollapse.attention._pool import POOLED_BYTES, ScorePool
from uncollapse.attention.memory import held_bytes

LARGE = {"queries": 260, "keys": 260, "heads": 8, "groups": 8, "batch": 1, "dtype": torch.float32}  # 2 MB: pooled
KINDS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["native", "torch"])


def gradients(layers):
    return [t.grad.clone() for layer in layers for t in layer]


def assert_equal(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@KINDS
def test_two_forwards_before_two_backwards(dtype):
    first, second = (Stack(**{**LARGE, "dtype": dtype}, seed=seed) for seed in (1, 2))
    apart = [evaluate(stack, "carried") for stack in (first, second)]
    layers = first.inputs(), second.inputs()
    losses = [
        stack.loss(stack.run(inputs, "carried")[0]) for stack, inputs in zip((first, second), layers, strict=True)
    ]
    for loss in reversed(losses):
        loss.backward()
    for inputs, result in zip(layers, apart, strict=True):
        assert_equal(gradients(inputs), result.gradients)


@KINDS
def test_gradients_accumulate(dtype):
    stack = Stack(**{**LARGE, "dtype": dtype})
    once = evaluate(stack, "carried").gradients
    layers = stack.inputs()
    for _ in range(3):
        stack.loss(stack.run(layers, "carried")[0]).backward()
    assert_equal(gradients(layers), [3 * g for g in once])


@KINDS
@pytest.mark.parametrize("retain", [False, True])
def test_a_second_backward_raises_one_sentence(dtype, retain):
    stack = Stack(**{**LARGE, "dtype": dtype})
    layers = stack.inputs()
    loss = stack.loss(stack.run(layers, "carried")[0])
    loss.backward(retain_graph=True)
    assert_equal(gradients(layers), evaluate(stack, "carried").gradients)
    with pytest.raises(RuntimeError, match="backward through this attention layer a second time") as error:
        loss.backward(retain_graph=retain)
    assert "\n" not in str(error.value)


@KINDS
def test_a_kept_state_is_readable_until_backward_and_says_so_after(dtype):
    stack = Stack(**{**LARGE, "dtype": dtype})
    outs, state = stack.run(stack.inputs(), "carried")
    before, copy = state.scores().detach(), state.clone()
    for seed in range(3):  # other passes, which take buffers
        evaluate(Stack(**{**LARGE, "dtype": dtype}, seed=seed), "carried")
    assert torch.equal(state.scores(), before)
    stack.loss(outs).backward()
    for use in (state.scores, state.clone, lambda: uc.hopfield_attention(*stack.inputs()[0], state)):
        with pytest.raises(RuntimeError, match="the backward pass has written their gradient over them"):
            use()
    assert torch.equal(copy.scores(), before)


def test_a_state_continued_twice_gives_both_branches_their_gradient():
    stack = Stack(**{**LARGE, "dtype": torch.float64})
    results = []
    for backend in ("carried", "reference"):
        layers = stack.inputs()
        out1, state = uc.hopfield_attention(*layers[0], backend=backend)
        out2, _ = uc.hopfield_attention(*layers[1], state, backend=backend)
        out3, other = uc.hopfield_attention(*layers[2], state, backend=backend)
        out4, _ = uc.hopfield_attention(*layers[3], other, backend=backend)
        stack.loss([out1, out2, out3, out4]).backward()
        results.append(gradients(layers))
    assert_equal(*results)


@KINDS
def test_without_gradients_a_continued_state_is_consumed(dtype):
    stack = Stack(**{**LARGE, "dtype": dtype})
    with torch.no_grad():
        first, second = stack.inputs()[:2]
        _, state = uc.hopfield_attention(*first, backend="carried")
        kept, memory = state.clone(), state.hidden.data_ptr()
        out, after = uc.hopfield_attention(*second, state, backend="carried")
        assert after.hidden.data_ptr() == memory  # one buffer serves all layers
        for use in (state.scores, lambda: uc.hopfield_attention(*second, state)):
            with pytest.raises(RuntimeError, match=r"this state was consumed.*state\.clone\(\)"):
                use()
        again, _ = uc.hopfield_attention(*second, kept, backend="carried")
        assert torch.equal(out, again)


def test_a_state_made_with_gradients_is_not_consumed_without():
    stack = Stack(**LARGE)
    _, state = stack.run(stack.inputs(), "carried")
    before = state.scores().detach()
    with torch.no_grad():
        uc.hopfield_attention(*stack.inputs()[0], state)
    assert torch.equal(state.scores(), before)


@KINDS
def test_a_state_may_leave_inference_mode(dtype):
    stack = Stack(**{**LARGE, "dtype": dtype, "depth": 2})
    with torch.no_grad():
        expected, _ = stack.run(stack.inputs(), "carried")
    with torch.inference_mode():
        _, state = uc.hopfield_attention(*(t.to(dtype) for t in stack.layers[0]), backend="carried")
    with torch.no_grad():
        out, _ = uc.hopfield_attention(*(t.to(dtype) for t in stack.layers[1]), state)
    assert_equal([out], expected[1:])


def test_two_threads_do_not_share_buffers():
    stacks = [Stack(**LARGE, seed=seed) for seed in range(2)]
    alone = [evaluate(stack, "carried") for stack in stacks]
    wrong = []

    def work(stack, expected):
        for _ in range(10):
            result = evaluate(stack, "carried")
            wrong.extend(
                1
                for a, b in zip(result.gradients, expected.gradients, strict=True)
                if not torch.allclose(a, b, atol=1e-5)
            )

    threads = [threading.Thread(target=work, args=pair) for pair in zip(stacks, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_hundred_steps_need_the_memory_of_one():
    gc.collect()  # what failed tests hold in cycles would come back to the pool meanwhile
    uc.release_memory()
    stack = Stack(**LARGE, depth=3)
    held = []
    for _ in range(200):
        layers = stack.inputs()
        loss = stack.loss(stack.run(layers, "carried", is_causal=True)[0])
        loss.backward()
        held.append(held_bytes())
    assert max(held[5:]) <= 3 * 8 * 260 * 260 * 4
    assert held[-1] == held[5]


def test_memory_is_given_back():
    pool = ScorePool()
    count = POOLED_BYTES
    buffers = [pool.take(count, torch.float32, torch.device("cpu")) for _ in range(3)]
    assert pool.held_bytes() == 0  # all in use
    view = buffers[0][10:20]
    del buffers
    gc.collect()
    assert pool.held_bytes() == 2 * 4 * count  # a view keeps its buffer
    del view
    assert pool.held_bytes() == 3 * 4 * count
    pool.release()
    assert pool.held_bytes() == 0


def test_memory_that_lies_idle_is_given_back():
    pool = ScorePool()
    pool.take(8 * POOLED_BYTES, torch.float32, torch.device("cpu"))
    for _ in range(200):  # other sizes are asked for, as after a change of the sequence length
        pool.take(POOLED_BYTES, torch.float32, torch.device("cpu"))
    assert pool.held_bytes() == 4 * POOLED_BYTES


@KINDS
@pytest.mark.parametrize("backend", ["carried", "stacked"])
@pytest.mark.parametrize("length", [1, 2])
def test_gradient_checkpointing_is_exact(dtype, backend, length):
    """Segments of `length` layers; the state crosses from one to the next."""
    stack = Stack(**{**LARGE, "dtype": dtype})

    def segment(layers, state):
        outs = []
        for q, k, v in layers:
            out, state = uc.hopfield_attention(
                q.sin(), k.sin(), v.sin(), state, is_causal=True, backend=backend, dropout_p=0.1
            )
            outs.append(out)
        return outs, state

    results = []
    for saved in (False, True):
        torch.manual_seed(0)
        layers, outs, state = stack.inputs(), [], None
        for start in range(0, 4, length):
            part = layers[start : start + length]
            more, state = checkpoint(segment, part, state, use_reentrant=False) if saved else segment(part, state)
            outs += more
        stack.loss(outs).backward()
        results.append(gradients(layers))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

"""What only `stacked` has: layers below the rounding are dropped, a window, no score matrix; and when auto takes it."""

import logging

import pytest
import torch

import uncollapse as uc
from tests.attention.parity import Stack
from uncollapse.attention import memory


@pytest.mark.parametrize(("dtype", "layers"), [(torch.float32, 24), (torch.float64, 53), (torch.bfloat16, 24)])
def test_layers_below_the_rounding_are_dropped(dtype, layers):
    """With alpha' = 1/2 a layer's weight halves at each step, and float32 has 23 bits after the leading one."""
    stack = Stack(depth=60, queries=3, keys=3, dtype=dtype)
    _, state = stack.run(stack.inputs(), "stacked", alpha_hidden=0.5)
    assert abs(len(state.terms) - layers) <= 1
    assert state.layer == 60


def test_what_is_dropped_cannot_be_seen():
    stack = Stack(depth=60, queries=3, keys=3, dtype=torch.float32)
    outs, _ = stack.run(stack.inputs(), "stacked")
    truth, _ = stack.run(stack.inputs(torch.float64), "reference")
    torch.testing.assert_close(outs[-1].double(), truth[-1], rtol=1e-5, atol=1e-5)


def test_realformer_keeps_every_layer():
    stack = Stack(depth=40, queries=3, keys=3)
    _, state = stack.run(stack.inputs(), "stacked", rule=uc.ScoreRule.realformer())
    assert len(state.terms) == 40


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_window_is_the_sum_over_its_layers(window):
    stack = Stack(depth=4)
    layers = stack.inputs()
    outs, state = stack.run(layers, "stacked", window=window, rule=uc.ScoreRule.realformer())
    scores = sum(q @ k.mT / 2.0 for q, k, _ in layers[-window:])  # D = 4
    torch.testing.assert_close(state.scores(), scores, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outs[-1], scores.softmax(-1) @ layers[-1][2], rtol=1e-12, atol=1e-12)


def test_a_window_of_all_layers_changes_nothing():
    stack = Stack(depth=4)
    ours, _ = stack.run(stack.inputs(), "stacked", window=4)
    theirs, _ = stack.run(stack.inputs(), "stacked")
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("backend", ["auto", "carried", "reference"])
def test_a_window_with_another_backend_names_both(backend):
    q = k = v = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match=f"window=2 goes with backend 'stacked', not with '{backend}'"):
        uc.hopfield_attention(q, k, v, backend=backend, window=2)


def test_a_window_without_layers_is_refused():
    q = k = v = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        uc.hopfield_attention(q, k, v, backend="stacked", window=0)


def test_a_state_can_be_used_twice_also_without_gradients():
    stack = Stack(depth=1)
    with torch.no_grad():
        _, state = stack.run(stack.inputs(), "stacked")
        first, _ = uc.hopfield_attention(*stack.layers[0], state)
        again, _ = uc.hopfield_attention(*stack.layers[0], state.clone())
    assert torch.equal(first, again)


class TestAuto:
    """Meta tensors have shapes and no memory, so that an estimate can be asked for any size."""

    def tensors(self, tokens, needs_gradient=True):
        return torch.empty(1, 12, tokens, 64, device="meta").requires_grad_(needs_gradient)

    def test_the_estimate_is_a_matrix_a_layer_with_gradients_and_one_without(self):
        q = self.tensors(1024)
        assert memory.carried_bytes(q, q, False, 12, True) == 12 * 12 * 1024 * 1024 * 4
        assert memory.carried_bytes(q, q, False, 12, False) == 12 * 1024 * 1024 * 4
        assert memory.carried_bytes(q, q, True, 12, True) < 0.54 * 12 * 12 * 1024 * 1024 * 4

    def test_free_memory_decides_and_the_log_says_why(self, caplog):
        """Meta tensors count as CPU memory. What is free changes meanwhile, hence a factor 4 on either side."""
        q = self.tensors(256)
        usable = memory.FREE_SHARE * memory.free_bytes(torch.device("cpu"))
        fitting = usable / memory.carried_bytes(q, q, True, 1, True)  # layers
        caplog.set_level(logging.DEBUG, logger=memory.__name__)
        for depth, expected in ((int(fitting / 4), "carried"), (int(4 * fitting), "stacked")):
            assert memory.choose_backend(q, q, True, depth) == expected
            assert f"takes {expected}: the scores of {depth} layers need" in caplog.messages[-1]
        assert memory.choose_backend(q, q, True, int(4 * fitting), can_reverse=True) == "reversible"
        with torch.no_grad():
            assert memory.choose_backend(q, q, True, int(4 * fitting), can_reverse=True) == "carried"
        assert memory.choose_backend(q, q, True, int(1.5 * fitting), torch.float16) == "carried"

    def test_this_machine_has_free_memory(self):
        assert memory.free_bytes(torch.device("cpu")) > 1 << 20

    def test_the_choice_travels_in_the_state(self):
        stack = Stack()
        for alpha_hidden, expected in ((0.5, "reversible"), (0.0, "stacked")):  # keep = 0 cannot be run backwards
            more = {"alpha_hidden": alpha_hidden, "depth": 10**12}  # no machine holds that many score matrices
            _, state = stack.run(stack.inputs()[:1], "auto", **more)
            _, state = uc.hopfield_attention(*stack.inputs()[1], state, alpha_hidden=alpha_hidden)
            assert (state.backend, state.layer) == (expected, 2)

"""Appendix F: every pair of differences tends to the differential equation's solution with its order."""

import itertools
import warnings

import numpy as np
import pytest
import torch

import uncollapse as uc
from tests.extras import needs_scipy
from uncollapse.attention.discretisation import Discretisation, integrate, step_weight

DIFFERENCES = ("forward", "backward", "central")
SCHEMES = list(itertools.product(DIFFERENCES, DIFFERENCES))
TAU_VISIBLE, TAU_HIDDEN, TIME = 1.0, 0.7, 1.0


def network(depth, scheme=("forward", "backward"), alpha=0.5, alpha_hidden=0.5, **options):
    """A float64 network whose layers share the same, fairly large weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = {"alpha": alpha, "alpha_hidden": alpha_hidden}
        net = uc.AttentionOnly(depth, 6, 2, **weights, scheme=scheme, init="torch", **options).double()
    torch.manual_seed(0)
    for parameter in net.layers[0].parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    for layer in net.layers:
        layer.load_state_dict(net.layers[0].state_dict())
    return net


def tokens():
    return torch.randn(1, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def exact_solution():
    """x(TIME) of tau_v dx/dt = softmax(h) V - x, tau_h dh/dt = q K^T - h, h(0) = 0, by scipy."""
    from scipy.integrate import solve_ivp

    layer, x = network(1).layers[0], tokens()
    cut = x.numel()

    def slope(_, state):
        x_t = torch.from_numpy(state[:cut]).view_as(x)
        h_t = torch.from_numpy(state[cut:]).view(1, 2, 5, 5)
        with torch.no_grad():
            dx = (layer.read(h_t, x_t, None, False) - x_t) / TAU_VISIBLE
            dh = (layer.scores(x_t) - h_t) / TAU_HIDDEN
        return np.concatenate([dx.numpy().ravel(), dh.numpy().ravel()])

    start = np.concatenate([x.numpy().ravel(), np.zeros(50)])
    end = solve_ivp(slope, (0, TIME), start, method="DOP853", rtol=1e-12, atol=1e-12).y[:cut, -1]
    return torch.from_numpy(end).view_as(x)


@needs_scipy
@pytest.mark.parametrize("scheme", SCHEMES, ids="-".join)
def test_tends_to_the_solution_with_its_order(scheme):
    exact, errors, depths = exact_solution(), [], (40, 80, 160)
    for depth in depths:
        dt = TIME / depth
        alpha, alpha_hidden = step_weight(scheme[0], dt / TAU_VISIBLE), step_weight(scheme[1], dt / TAU_HIDDEN)
        net = network(depth, scheme, alpha, alpha_hidden, tolerance=1e-13)
        with torch.no_grad():
            errors.append((net(tokens())[-1] - exact).abs().max().item())
    order = np.log2(errors[1] / errors[2])
    expected = network(1, scheme).discretisation.order
    assert errors[2] < errors[1] < errors[0]
    assert order == pytest.approx(expected, abs=0.15)  # the next term of the expansion at this step size


def test_the_general_stepper_gives_the_default_network():
    net = network(5, alpha=0.3, alpha_hidden=0.6)
    general = integrate(list(net.layers), tokens(), Discretisation(), 0.3, net.rule)
    for out, wanted in zip(general, net(tokens()), strict=True):
        torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-14)


def test_forward_forward_attends_with_the_scores_of_the_layer_before():
    """alpha' = 0 gives the previous layer's scores, not a score of 0 as Appendix F.1 says."""
    net, x = network(2, ("forward", "forward"), alpha=0.2, alpha_hidden=0.0), tokens()
    first, second = net(x)
    layer = net.layers[0]
    uniform = layer.merge(layer.split(layer.value(x)).mean(2, keepdim=True).expand(-1, -1, 5, -1))
    torch.testing.assert_close(first, 0.2 * x + 0.8 * uniform)
    torch.testing.assert_close(second, 0.2 * first + 0.8 * layer.read(layer.scores(x), first, None, False))


@pytest.mark.parametrize("hidden", ["forward", "backward"])
def test_a_backward_step_solves_its_equation(hidden):
    net, x = network(1, ("backward", hidden), alpha=0.6, alpha_hidden=0.5, tolerance=1e-13), tokens()
    (new,) = net(x)
    layer = net.layers[0]
    h = torch.zeros(1, 2, 5, 5, dtype=x.dtype) if hidden == "forward" else 0.5 * layer.scores(new)
    torch.testing.assert_close(new, 0.6 * x + 0.4 * layer.read(h, new, None, False), rtol=1e-11, atol=1e-12)


def test_a_backward_step_that_does_not_converge_says_so():
    net = network(1, ("backward", "backward"), alpha=0.05, max_iterations=20)
    with torch.no_grad():
        net.layers[0].value.weight.mul_(20)
    with pytest.raises(RuntimeError, match=r"did not converge: after 20 iterations .* raise alpha"):
        net(tokens())


def test_gradients_flow_through_the_fixed_point():
    net, x = network(2, ("backward", "backward"), alpha=0.7, tolerance=1e-14), tokens().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: net(x)[-1], x, rtol=1e-5)


def test_central_differences_come_with_a_warning():
    with pytest.warns(UserWarning, match="central difference of a decaying state is unstable"):
        uc.AttentionOnly(1, 4, 1, scheme=("central", "backward"))

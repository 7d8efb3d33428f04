"""Eq. 3 and its terms against autograd, against the printed sums, and their growth with T."""

import pytest
import torch

from uncollapse.theory import OneLayer, generator, gradient_orders, piecewise_coefficients, qk_gradient, random_walks


@pytest.fixture
def case():
    random = generator(2)

    def matrix():
        return torch.randn(3, 3, dtype=torch.float64, generator=random)

    model = OneLayer(qk=matrix().requires_grad_(), value=matrix(), feed_forward=matrix(), temperature=1.7)
    walk = random_walks(40, 9, 3, random)
    return model, walk[:, :-1], walk[:, -1]


def test_terms_sum_to_the_gradient(case):
    model, x, y = case
    [autograd] = torch.autograd.grad(model.loss(x, y), model.qk)
    torch.testing.assert_close(sum(qk_gradient(model, x, y)), autograd, rtol=1e-12, atol=1e-10)
    assert autograd.norm() > 0.1


def test_terms_are_the_printed_sums(case):
    """Eq. 19, 20, 21 written out over i, j, alpha, beta."""
    model, x, y = case
    scores = model.scores(x)
    gamma, offset = piecewise_coefficients(scores)  # gamma[n, alpha, i]
    pull = model.value.mT @ model.feed_forward.mT @ model.feed_forward @ model.value
    last, size = x[:, -1], len(x)
    pairs = torch.einsum("nia,ab,njb->nij", x, pull, x)
    seen = torch.einsum("nba,ac,nc->nb", x, model.qk, last)
    error = (last @ model.feed_forward.mT - y) @ model.feed_forward @ model.value
    nineteen = torch.einsum("nai,nbj,nij,nb,nac,nd->cd", gamma, gamma, pairs, seen, x, last) / model.temperature**2
    twenty = torch.einsum("nai,nb,nib,nac,nd->cd", gamma, offset, pairs, x, last) / model.temperature
    twenty_one = torch.einsum("nai,nie,ne,nac,nd->cd", gamma, x, error, x, last) / model.temperature
    for term, spelled in zip(qk_gradient(model, x, y), (nineteen, twenty, twenty_one), strict=True):
        torch.testing.assert_close(term, spelled / size, rtol=1e-12, atol=1e-10)


def test_orders_in_the_number_of_tokens():
    """Eq. 19 grows like T^3 and Eq. 21 like T^2, far below the printed upper bounds T^8 and T^4."""
    orders = gradient_orders(0.05 * torch.eye(4, dtype=torch.float64), tokens=(64, 128, 256), walks=3000)
    assert orders.slopes[0] == pytest.approx(3.0, abs=0.25)
    assert orders.slopes[2] == pytest.approx(2.0, abs=0.25)
    assert 1.7 < orders.slopes[1] < 3.3
    assert (orders.clipped_above < 0.01).all()


def test_clipping_raises_the_order_of_the_second_term_to_three():
    orders = gradient_orders(2.0 * torch.eye(4, dtype=torch.float64), tokens=(64, 128, 256), walks=3000)
    assert (orders.clipped_above > 0.1).all()
    assert orders.slopes[1] == pytest.approx(3.0, abs=0.25)
    assert orders.norms[-1, 1] > 0.5 * orders.norms[-1, 0]  # Eq. 19 does not dominate


def test_a_fit_needs_two_lengths():
    with pytest.raises(ValueError, match="at least two lengths"):
        gradient_orders(torch.eye(2, dtype=torch.float64), tokens=(8,))

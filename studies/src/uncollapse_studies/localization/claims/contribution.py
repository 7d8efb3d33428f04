"""Sections 3 and 6: whether a clipped token contributes to the gradient, and whether training leaves Sigma alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from uncollapse.metrics import softmax_tangent
from uncollapse.theory import generator, random_walks

from ...audit.claim import ROUNDING, AuditRun, Evidence, Perturbation, becomes, judge
from .sources import claim

TOKENS, WIDTH = (8, 256), 4  # if what clipped tokens do were a matter of few tokens, it would go with more
SEEDS = 3


def _first_term(x: Tensor, passed: Tensor, qk: Tensor, mean_weight: float) -> Tensor:
    """Eq. 19 of one sequence x (T, d) with W_F W_V = I and temperature 1; coefficients e_i/T - mean_weight/T^2."""
    selected = (x - mean_weight * x.mean(dim=0)) * passed.unsqueeze(-1) / len(x)  # columns of X Gamma, as rows
    spread = selected.T @ x
    return spread @ spread.T @ torch.outer(qk @ x[-1], x[-1])


@claim(
    "localization-gradient-contributes",
    "Section 3, after Eq. 4, and summary",
    "Whether x_i contributes to the QK-gradient is seen by checking whether its entry is clipped.",
    corrected="A clipped token still contributes through the mean of the tokens that every other coefficient vector "
    "subtracts (and, clipped at 1, through gamma_0 in Eq. 20). What vanishes is its own summand.",
    survives=False,
    consequence="A low propagation probability does not mean that a token is without effect on learning.",
    root="localization-off-diagonal",
    changes_our_mind="A sense of contributing by which the mean that other tokens subtract does not count.",
    perturbation=Perturbation(lambda factor: {"mean_weight": factor - 1.0}),
    mutation=becomes("holds", "coefficient vectors without the -1/T^2", mean_weight=0.0),
)
def clipped_contributes(run: AuditRun, mean_weight: float = 1.0) -> Evidence:
    """The derivative of Eq. 19 with respect to tokens that are clipped at 0, against that for tokens that pass.

    Holds if it is below 1e-9 of the latter for all clipped tokens but the last, which is the query.
    """
    qk = 0.3 * torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=generator(run.seed))
    numbers: dict[str, float | int | str] = {}
    largest = 0.0
    for tokens in TOKENS:
        clipped, passing = _slopes(run, qk, tokens, mean_weight)
        usual = passing.median().item()
        largest = max(largest, clipped.max().item() / usual)
        numbers[f"clipped at 0 over passing, T = {tokens}"] = clipped.median().item() / usual
        numbers[f"tokens clipped at 0, T = {tokens}"] = len(clipped)
    told = ", ".join(f"{numbers[f'clipped at 0 over passing, T = {n}']:.2g} (T = {n})" for n in TOKENS)
    return Evidence(
        judge(largest < ROUNDING),
        f"The median derivative with respect to tokens clipped at 0, over that to tokens that pass, is {told}.",
        numbers,
    )


def _slopes(run: AuditRun, qk: Tensor, tokens: int, mean_weight: float) -> tuple[Tensor, Tensor]:
    """Sizes of the derivatives of Eq. 19 with respect to tokens clipped at 0, and to those that pass."""
    stopped, through = [], []
    for walk in random_walks(run.pick(200, 30), tokens, WIDTH, generator(run.seed + 1)):
        entries = softmax_tangent(walk @ qk @ walk[-1])
        passed, x = (entries >= 0.0) & (entries <= 1.0), walk.clone().requires_grad_()
        [slope] = torch.autograd.grad(_first_term(x, passed, qk, mean_weight).sum(), x)
        size = slope[:-1].norm(dim=-1)
        stopped.append(size[entries[:-1] < 0.0])
        through.append(size[passed[:-1]])
    return torch.cat(stopped), torch.cat(through)


def _change(run: AuditRun, embeddings: bool) -> float:
    before, after = _trained(run, embeddings)
    return float((after - before).norm() / before.norm())


def _trained(run: AuditRun, embeddings: bool) -> tuple[Tensor, Tensor]:
    """Covariance of the steps from token to token before and after training a small network on a Markov chain."""
    random = generator(run.seed)
    words, width, length = 32, 16, 16
    following = torch.randint(0, words, (words, 2), generator=random)
    text = torch.randint(0, words, (256, 1), generator=random)
    for _ in range(length):
        coin = torch.randint(0, 2, (256,), generator=random)
        text = torch.cat([text, following[text[:, -1], coin].unsqueeze(1)], dim=1)
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        embed, out = nn.Embedding(words, width), nn.Linear(width, words)
        query, key, value = (nn.Linear(width, width, bias=False) for _ in range(3))
    embed.weight.requires_grad_(embeddings)
    learned = [p for part in (embed, out, query, key, value) for p in part.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=1e-2)
    before = _steps(embed, text)
    for _ in range(run.pick(200, 60)):
        x = embed(text[:, :-1])
        mixed = x + nn.functional.scaled_dot_product_attention(query(x), key(x), value(x), is_causal=True)
        loss = nn.functional.cross_entropy(out(mixed).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return before, _steps(embed, text)


def _steps(embed: nn.Embedding, text: Tensor) -> Tensor:
    with torch.no_grad():
        steps: Tensor = embed(text).diff(dim=1).flatten(0, 1)
        return steps.T.cov()


@claim(
    "localization-sigma-fixed",
    "Section 6, on W_QK in place of W",
    "Sigma, the covariance of the tokens, does not change during training.",
    corrected="True where token embeddings are not trained, as in the model of Section 2, whose parameters do not "
    "include them. Trained embeddings, as in a language model, change Sigma; so do the layers below in a deeper "
    "network.",
    consequence="In a trained network look at W = W_QK Sigma with the Sigma of its own tokens.",
    changes_our_mind="Experiments of the paper with embeddings that are not trained.",
    no_perturbation="It states that nothing changes; the number for nothing is ours.",
    mutation=becomes("holds", "embeddings that are not trained", embeddings=False),
)
def sigma_fixed(run: AuditRun, embeddings: bool = True) -> Evidence:
    """A one-layer network of width 16 trained by Adam on a Markov chain of 32 words: a toy, not the paper's network.

    Holds if the covariance of the steps from token to token changes by less than 1 % (Frobenius norm) for each of three
    seeds; under a condition if it does so with frozen embeddings.
    """
    changes = {
        trained: [_change(replace(run, seed=run.seed + n), trained) for n in range(SEEDS)]
        for trained in {embeddings, False}
    }
    least, frozen = min(changes[embeddings]), max(changes[False])
    return Evidence(
        judge(max(changes[embeddings]) < 0.01, frozen < 0.01),
        f"Over {SEEDS} seeds it changes by {least:.1%} or more with embeddings {'trained' if embeddings else 'frozen'} "
        f"and by {frozen:.1%} at most with frozen ones.",
        {"least change": least, "largest change, frozen embeddings": frozen},
    )

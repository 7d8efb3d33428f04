"""How cells decide the claims of Figures 6 to 12 of the second paper: with made-up cells."""

import math

import pytest
from made_cells import planned, written

from uncollapse_studies.audit.cells import made_up
from uncollapse_studies.audit.claim import CONDITION, HOLDS, NOT_REPRODUCED, PENDING, SCALE
from uncollapse_studies.audit.registry import claims
from uncollapse_studies.audit.weighing import beyond, level

CLAIMS = claims()
NUMBERS = {"entropy": "entropy_mean", "perplexity": "perplexity"}
SPREAD = (1.0, 1.001, 1.002)


def over_kappa(figure, number, strong, between=1.0):
    """All planned cells of both readings around 10, times a factor with kappa_2 = 1, another with a weaker kappa_2."""

    def of(cell):
        kappa = cell.own.get("kappa_mean", 0.0)
        return 10.0 * SPREAD[cell.seed] * (strong if kappa == 1.0 else between if kappa else 1.0)

    return [cell for id in both(figure) for cell in planned(id, number, of)]


def both(figure):
    """A figure in both normalisations of the penalty."""
    return f"localization-fig{figure}", f"localization-fig{figure}-tokens"


def test_kappa_is_compared_at_one_kappa_scale(tmp_path):
    """The figures vary kappa_2 at kappa_1 = 100; networks without penalty are no part of the comparison."""
    claim = CLAIMS["localization-kappa2-scale"]
    plain = made_up("localization-fig6", "qk_scale", {"plain": 1e6, "forced-zero": 1e-9})
    assert claim.check(written(tmp_path, claim.mutation.cells, plain)).verdict == HOLDS


def test_the_strongest_kappa_is_compared_and_weaker_ones_are_not_waited_for(tmp_path):
    cells = over_kappa(6, "perplexity", strong=0.5, between=3.0)
    compared = [cell for cell in cells if cell["settings"].get("kappa_mean") in (0.0, 1.0)]
    for there in (cells, compared):
        found = CLAIMS["localization-fig6-perplexity"].check(written(tmp_path, there))
        assert found.verdict == HOLDS
        assert "loss: perplexity of locater with kappa_mean 1 less that of scale-only: -5 (" in found.sentence
        assert found.numbers["penalty beside the mean loss: cells found"] == 6


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, HOLDS), (1.1, NOT_REPRODUCED), (1.0, NOT_REPRODUCED)])
def test_three_seeds_decide_over_kappa(tmp_path, factor, verdict):
    """A null that is known well enough fails, too."""
    cells = over_kappa(6, "perplexity", factor)
    claim = CLAIMS["localization-fig6-perplexity"]
    found = claim.check(written(tmp_path, cells))
    assert found.verdict == verdict
    assert ("no difference as claimed of 2 % or more" in found.sentence) == (factor == 1.0)
    one = claim.check(written(tmp_path, [cell for cell in cells if cell["seed"] == 0]))
    assert one.verdict == PENDING
    assert "(one seed), undecided" in one.sentence


@pytest.mark.parametrize("key", NUMBERS)
def test_one_seed_decides_nothing_over_kappa(tmp_path, key):
    claim = CLAIMS[f"localization-fig8-{key}"]
    for change in (0.5, 0.01, 0.0, -0.01, -0.5):
        found = claim.check(written(tmp_path, over_kappa(8, NUMBERS[key], 1.0 + change)))
        assert found.verdict == SCALE
        assert "one seed decides nothing" in found.sentence
        assert "All planned cells are trained, so it stays open at this scale." in found.sentence


def test_one_cell_is_no_comparison_over_kappa(tmp_path):
    strong = [cell for cell in over_kappa(8, "perplexity", 0.5) if cell["method"] == "locater"]
    found = CLAIMS["localization-fig8-perplexity"].check(written(tmp_path, strong))
    assert found.verdict == PENDING
    assert found.sentence.count("1 of 2 planned cells are not trained yet") == 2


def rho(plain, ours, end=None):
    """All planned cells of Figure 7 with this localisation throughout, and at the end perhaps another."""

    def of(cell):
        return {"plain": plain, "locater": ours}.get(cell.method, 1.0) * (0.99, 1.0, 1.01)[cell.seed]

    cells = [cell for id in both(7) for cell in planned(id, "localisation", of)]
    return cells if end is None else [{**cell, "numbers": {"localisation": end}} for cell in cells]


@pytest.mark.parametrize(("level", "verdict"), [(0.05, HOLDS), (0.1, SCALE), (0.3, NOT_REPRODUCED)])
def test_uniform_propagation_is_a_level_throughout_training(tmp_path, level, verdict):
    found = CLAIMS["localization-fig7-uniform"].check(written(tmp_path, rho(level, 1.0, end=0.2)))
    assert found.verdict == verdict
    assert found.sentence.startswith(f"localisation on the mean over training of plain: {level:.3g} (")


@pytest.mark.parametrize(("ours", "verdict"), [(0.6, HOLDS), (0.4, NOT_REPRODUCED)])
def test_stripes_are_weighed_throughout_training(tmp_path, ours, verdict):
    found = CLAIMS["localization-fig7-stripes"].check(written(tmp_path, rho(0.5, ours, end=0.2)))
    assert found.verdict == verdict
    assert "localisation on the mean over training of locater with kappa_mean 1 less that of plain: " in found.sentence


def test_entropy_is_weighed_throughout_training_where_that_is_claimed(tmp_path):
    cells = over_kappa(6, "entropy_mean", 1.2)
    fallen = [{**cell, "numbers": {"entropy_mean": 2.0 - cell["settings"].get("kappa_mean", 0.0)}} for cell in cells]
    run = written(tmp_path, fallen)
    assert CLAIMS["localization-fig6-entropy-throughout"].check(run).verdict == HOLDS
    assert CLAIMS["localization-fig6-entropy"].check(run).verdict == NOT_REPRODUCED


def test_the_scale_is_one_claim_over_six_figures(tmp_path):
    cells = [cell for figure in (6, 8, 9, 10, 11, 12) for cell in over_kappa(figure, "qk_scale", 1.2)]
    found = CLAIMS["localization-kappa2-scale"].check(written(tmp_path, cells))
    assert found.verdict == NOT_REPRODUCED
    assert "as claimed in 0 of 6 settings, opposed in 1, undecided in 5" in found.sentence  # of one seed each


def test_numbers_of_the_same_networks_share_the_risk_of_luck(tmp_path):
    """A difference that would do alone does not do beside three others."""
    alone = [
        {**cell, "numbers": {"perplexity": 10.0 + 0.1 * cell["seed"] - 0.3 * (cell["method"] == "locater")}}
        for cell in over_kappa(6, "perplexity", 1.0)
    ]
    beside = []
    for cell in alone:
        others = {"entropy_mean": 2.0 + 0.1 * cell["seed"], "qk_scale": 1.0 + cell["seed"]}
        beside.append({**cell, "numbers": cell["numbers"] | others})
    claim = CLAIMS["localization-fig6-perplexity"]
    assert claim.check(written(tmp_path, alone)).verdict == HOLDS
    found = claim.check(written(tmp_path, beside))
    assert found.verdict == SCALE
    assert "with Holm's correction for 6 comparisons (numbers and readings)" in found.sentence


def over_training(curve):
    """All planned cells of Figure 7 with this entropy over training, t from 0 to 1."""
    values = [curve(n / 20) for n in range(21)]
    cells = [cell for id in both(7) for cell in planned(id, "entropy_mean", lambda cell: 2.0)]
    return [{**cell, "curves": {"step": list(range(21)), "entropy_mean": values}} for cell in cells]


@pytest.mark.parametrize("tau", [0.2, 0.3, 0.5, 5.0, -0.3])
def test_one_smooth_exponential_has_no_two_phases(tmp_path, tau):
    cells = over_training(lambda t: 2.0 + 2.0 * math.exp(-t / tau) / math.exp(max(0.0, -1.0 / tau)))
    assert CLAIMS["localization-phases"].check(written(tmp_path, cells)).verdict == NOT_REPRODUCED


def test_a_fall_and_a_later_rise_are_two_phases(tmp_path):
    cells = over_training(lambda t: 4.0 - 10.0 * t if t < 0.2 else 2.0 + 0.5 * (t - 0.2))
    assert CLAIMS["localization-phases"].check(written(tmp_path, cells)).verdict == HOLDS


def test_phases_are_asked_of_both_networks(tmp_path):
    claim = CLAIMS["localization-phases"]
    steady = [cell for cell in claim.opposite.cells if cell["method"] == "plain"]
    turning = [cell for cell in claim.mutation.cells if cell["method"] == "locater"]
    found = claim.check(written(tmp_path, steady, turning))
    assert found.verdict == CONDITION
    assert "as claimed in 1 of 2 settings, opposed in 1 (locater: " in found.sentence


def test_readings_share_the_risk_of_luck_in_a_level(tmp_path):
    """A mean that lies above 1 at 95 % confidence, and not at the 97.5 % that two readings ask for."""
    run = written(tmp_path, made_up("localization-fig7", "localisation", {"plain": 1.003}))  # 1.003 to 1.005
    alone, shared = (
        level(run, ["localization-fig7"], "localisation", ["plain"], beyond(1.0012, 0.0), readings=count)
        for count in (1, 2)
    )
    assert (alone.verdict, shared.verdict) == (HOLDS, SCALE)
    assert "a risk that 2 readings share" in shared.sentence

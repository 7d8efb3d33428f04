"""How cells decide the claims of Figures 6 to 12 of the second paper: with made-up cells."""

import pytest
from made_cells import planned, written

from uncollapse_studies.audit.cells import made_up
from uncollapse_studies.audit.claim import CONDITION, FAILS, HOLDS, PENDING, SCALE
from uncollapse_studies.audit.registry import claims

CLAIMS = claims()
NUMBERS = {"scale": "qk_scale", "entropy": "entropy_mean", "perplexity": "perplexity"}
SPREAD = (1.0, 1.001, 1.002)


def over_kappa(figure, number, strong, between=1.0):
    """All planned cells around 10, times a factor with kappa_2 = 1 and times another with a weaker kappa_2."""

    def of(cell):
        kappa = cell.own.get("kappa_mean", 0.0)
        return 10.0 * SPREAD[cell.seed] * (strong if kappa == 1.0 else between if kappa else 1.0)

    return planned(f"localization-fig{figure}", number, of)


def test_kappa_is_compared_at_one_kappa_scale(tmp_path):
    """The figures vary kappa_2 at kappa_1 = 100; networks without penalty are no part of the comparison."""
    claim = CLAIMS["localization-fig6-scale"]
    plain = made_up("localization-fig6", "qk_scale", {"plain": 1e6, "forced-zero": 1e-9})
    assert claim.check(written(tmp_path, claim.mutation.cells, plain)).verdict == HOLDS


def test_the_strongest_kappa_is_compared_and_weaker_ones_are_not_waited_for(tmp_path):
    cells = over_kappa(6, "qk_scale", strong=0.5, between=3.0)
    compared = [cell for cell in cells if cell["settings"].get("kappa_mean") in (0.0, 1.0)]
    for there in (cells, compared):
        found = CLAIMS["localization-fig6-scale"].check(written(tmp_path, there))
        assert found.verdict == HOLDS
        assert found.sentence.startswith("qk_scale of locater with kappa_mean 1 less that of scale-only: -5 (")
        assert found.numbers["cells found"] == 6


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, HOLDS), (1.1, FAILS), (1.0, FAILS)])
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
    assert "1 of 2 planned cells are not trained yet" in found.sentence


def rho(plain, ours, end=None):
    """All planned cells of Figure 7 with this localisation throughout, and at the end perhaps another."""
    cells = planned(
        "localization-fig7",
        "localisation",
        lambda cell: {"plain": plain, "locater": ours}.get(cell.method, 1.0) * (0.99, 1.0, 1.01)[cell.seed],
    )
    return cells if end is None else [{**cell, "numbers": {"localisation": end}} for cell in cells]


@pytest.mark.parametrize(("level", "verdict"), [(0.05, HOLDS), (0.1, SCALE), (0.3, FAILS)])
def test_uniform_propagation_is_a_level_throughout_training(tmp_path, level, verdict):
    found = CLAIMS["localization-fig7-uniform"].check(written(tmp_path, rho(level, 1.0, end=0.2)))
    assert found.verdict == verdict
    assert found.sentence.startswith(f"localisation on the mean over training of plain: {level:.3g} (")


@pytest.mark.parametrize(("ours", "verdict"), [(0.6, HOLDS), (0.4, FAILS)])
def test_stripes_are_weighed_throughout_training(tmp_path, ours, verdict):
    found = CLAIMS["localization-fig7-stripes"].check(written(tmp_path, rho(0.5, ours, end=0.2)))
    assert found.verdict == verdict
    assert found.sentence.startswith("localisation on the mean over training of locater less that of plain: ")


def test_entropy_is_weighed_throughout_training_where_that_is_claimed(tmp_path):
    cells = over_kappa(6, "entropy_mean", 1.2)
    fallen = [{**cell, "numbers": {"entropy_mean": 2.0 - cell["settings"].get("kappa_mean", 0.0)}} for cell in cells]
    run = written(tmp_path, fallen)
    assert CLAIMS["localization-fig6-entropy-throughout"].check(run).verdict == HOLDS
    assert CLAIMS["localization-fig6-entropy"].check(run).verdict == FAILS


def test_phases_are_asked_of_both_networks(tmp_path):
    claim = CLAIMS["localization-phases"]
    steady = [cell for cell in claim.opposite.cells if cell["method"] == "plain"]
    turning = [cell for cell in claim.mutation.cells if cell["method"] == "locater"]
    found = claim.check(written(tmp_path, steady, turning))
    assert found.verdict == CONDITION
    assert "as claimed in 1 of 2 settings, opposed in 1 (locater: 1 (1 to 1); plain: " in found.sentence

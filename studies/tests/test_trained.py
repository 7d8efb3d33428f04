"""What is said of trained networks, from made-up cells: differences over seeds, verdicts, runs that diverged."""

import pandas as pd
import pytest

from uncollapse.statistics import difference, summarise
from uncollapse_studies.artefact import NO_CLAIM, NOT_SEEN, OUT_OF_REACH, TREND, UNDECIDED, ArtefactCells
from uncollapse_studies.artefacts import ARTEFACTS
from uncollapse_studies.cells.store import Store
from uncollapse_studies.trained import OPPOSITE, against, agreement, beside, in_all, scaled_down, smallest_that_counts


def found_cells(id, folder, numbers, *, number="accuracy", diverged=(), curves=(), tables=None, seeds=None):
    """All cells of an artefact; `numbers` gives a label its number, to which a thousandth per seed is added."""
    store, cells = Store(folder), ARTEFACTS[id].all_cells("laptop", seeds)
    for cell in cells:
        if cell.label not in numbers:
            continue
        value = numbers[cell.label]
        values = value if isinstance(value, dict) else {number: value}
        record = {
            "artefact": id,
            "definition": cell.definition,
            "numbers": {name: level * (1 + 0.001 * cell.seed) for name, level in values.items()},
            "curves": {"step": [0, 1], **{name: [values[name]] * 2 for name in curves}},
            "epochs": 1.0,
            "held_out_loss": "flat",
            "status": "diverged" if cell.label in diverged else "finished",
            "seconds": 60.0,
            "machine": {"threads": 2},
            **({"tables": cell.name} if tables else {}),
        }
        store.write(cell, record, tables)
    return ArtefactCells(ARTEFACTS[id], cells, store)


def made(id, *arguments, **keywords):
    found = found_cells(id, *arguments, **keywords)
    return ARTEFACTS[id].result(found)


def test_what_counts_is_ruled_out_or_undecided():
    """A null result needs an interval that is narrow enough; one seed has none."""
    base = summarise([50.0, 50.01, 50.02])
    for values, expected in (
        ([60.0, 60.1, 60.2], TREND),
        ([40.0, 40.1, 40.2], OPPOSITE),
        ([50.0, 50.01, 50.03], NOT_SEEN),
        ([50.0, 50.1, 50.3], UNDECIDED),
        ([40.0, 50.0, 62.0], UNDECIDED),
        ([60.0], UNDECIDED),
    ):
        assert agreement(difference(base, summarise(values)), 1, smallest_that_counts("accuracy", 50.0)) == expected


def test_several_comparisons_make_one_verdict():
    assert in_all([TREND, TREND]) == TREND
    assert in_all([TREND, OPPOSITE, UNDECIDED], "depths") == (
        "same trend in 1 of 3 depths, the opposite in 1, undecided in 1"
    )
    assert in_all([OPPOSITE, OPPOSITE]) == OPPOSITE
    assert in_all([UNDECIDED]) == UNDECIDED
    assert in_all([OPPOSITE, NOT_SEEN]) == "not seen in 1 of 2 statements, the opposite in 1"


def skipfree(plain, ours):
    depths = (1, 2, 4, 8)
    return {f"self-attention-depth-{d}": p for d, p in zip(depths, plain, strict=True)} | {
        f"hopfield-depth-{d}": o for d, o in zip(depths, ours, strict=True)
    }


def penalty(scale, entropy, perplexity):
    """Numbers of plain, kappa_2 = 0 and kappa_2 = 1."""
    rows = zip(("plain", "kappa-mean-0", "kappa-mean-1"), scale, entropy, perplexity, strict=True)
    return {label: {"qk_scale": s, "entropy_mean": e, "perplexity": p} for label, s, e, p in rows}


def test_skip_free_networks_are_judged_by_depth(tmp_path):
    found = made("hopfield-skipfree", tmp_path, skipfree([30, 30, 30, 10], [35, 30, 20, 11]), seeds=3)
    assert found.verdict == "same trend in 1 of 3 depths, not seen in 1, the opposite in 1"
    assert any("Both networks guess at depth 8" in sentence for sentence in found.sentences)
    assert any("1 to 8 layers" in sentence for sentence in found.sentences)


@pytest.mark.parametrize(
    ("id", "levels"),
    [
        ("hopfield-skipfree", skipfree([30, 30, 30, 30], [60, 60, 60, 60])),
        ("localization-fig8", penalty((50, 0.5, 0.1), (2.0, 3.0, 3.5), (40, 30, 25))),
    ],
)
def test_one_seed_decides_nothing_however_large_the_difference(tmp_path, id, levels):
    found = made(id, tmp_path, levels)
    assert found.verdict == UNDECIDED
    assert any("one seed" in sentence for sentence in found.sentences)


def test_networks_that_all_guess_test_nothing(tmp_path):
    assert made("hopfield-skipfree", tmp_path, skipfree([10] * 4, [11] * 4)).verdict == OUT_OF_REACH


def test_a_run_that_diverged_is_in_without_its_numbers(tmp_path):
    levels = skipfree([30, 30, 30, 30], [35, 35, 35, 35])
    found = made("hopfield-skipfree", tmp_path, levels, diverged=["hopfield-depth-8"], seeds=3)
    assert found.verdict == TREND  # of the three depths that can be compared
    assert any("Diverged" in sentence and "hopfield-depth-8 (seed 0)" in sentence for sentence in found.sentences)
    row = found.summary.set_index("method").loc["hopfield-depth-8"]
    assert row["accuracy"] == ""
    assert row["seeds"] == 0


def test_a_run_that_diverged_leaves_no_trace_in_curves_and_violins(tmp_path):
    levels = {"plain": {"localisation": 0.05}, "kappa-mean-1": {"localisation": 0.5}}
    rho = pd.DataFrame({"step": [0, 1], "position": [0.0, 0.0], "rho": [0.5, 0.5]})
    keywords = {"curves": ["localisation"], "tables": {"rho": rho}}
    found = found_cells("localization-fig7", tmp_path, levels, diverged=["plain"], **keywords)
    result = ARTEFACTS["localization-fig7"].result(found)
    assert set(result.table["label"]) == {"kappa-mean-1"}
    assert set(found.curves("step", ["localisation"])["label"]) == {"kappa-mean-1"}
    assert result.verdict == "pending"  # kappa-mean-0 is still to come


def test_what_a_diverged_run_took_with_it_is_not_waited_for(tmp_path):
    cells = ARTEFACTS["hopfield-ablation"].all_cells("laptop")
    levels = {cell.label: 35.0 for cell in cells}
    found = made("hopfield-ablation", tmp_path, levels, diverged=["alpha-0.5-hidden-0.5"])
    assert found.verdict == OUT_OF_REACH


def test_a_missing_cell_leaves_it_pending(tmp_path):
    levels = skipfree([30, 30, 30, 30], [35, 35, 35, 35])
    del levels["hopfield-depth-8"]
    assert made("hopfield-skipfree", tmp_path, levels).verdict == "pending"


def test_the_ablation_is_judged_by_its_shape(tmp_path):
    cells = ARTEFACTS["hopfield-ablation"].all_cells("laptop")
    levels = {cell.label: 35.0 for cell in cells} | {"alpha-1-hidden-0.5": 10.0, "alpha-0-hidden-0.5": 40.0}
    found = made("hopfield-ablation", tmp_path, levels, seeds=3)
    assert found.verdict == "same trend in 1 of 4 comparisons, not seen in 2, the opposite in 1"
    gain = next(sentence for sentence in found.sentences if sentence.startswith("Does anything gain"))
    assert "alpha-0-hidden-0.5 with 40.04 %, better" in gain


def test_the_captions_of_locater_are_about_kappa_2(tmp_path):
    """Against no penalty all is as the caption says, but kappa_2 does nothing or the opposite."""
    found = made("localization-fig8", tmp_path, penalty((50, 0.1, 0.5), (2.0, 3.0, 3.0), (40, 30, 30)), seeds=3)
    assert found.verdict == "not seen in 2 of 3 statements, the opposite in 1"
    assert "scale 0.5005 against 50.05, lower; entropy 3.003 against 2.002, higher; " in found.finding
    assert "perplexity 30.03 against 40.04, better" in found.finding


def test_as_captioned_is_the_same_trend(tmp_path):
    found = made("localization-fig8", tmp_path, penalty((50, 0.5, 0.1), (2.0, 3.0, 3.5), (40, 30, 25)), seeds=3)
    assert found.verdict == TREND


@pytest.mark.parametrize(
    ("plain", "ours", "verdict"),
    [
        (0.05, 0.5, TREND),
        (0.3, 0.5, "same trend in 1 of 2 halves, not seen in 1"),
        (0.3, 0.1, "not seen in 1 of 2 halves, the opposite in 1"),
        (0.1, 0.5, "same trend in 1 of 2 halves, undecided in 1"),
    ],
)
def test_both_halves_of_figure_7_count(tmp_path, plain, ours, verdict):
    rho = pd.DataFrame({"step": [0, 1], "position": [0.0, 0.0], "rho": [0.5, 0.5]})
    levels = {"plain": {"localisation": plain}, "kappa-mean-1": {"localisation": ours}}
    found = made("localization-fig7", tmp_path, levels, curves=["localisation"], tables={"rho": rho})
    assert found.verdict == verdict


LAYERS = pd.DataFrame({"layer": [1, 2], "cosine_mode": [1.0, 0.5]})
COSINES = pd.DataFrame({"layer": [1, 2], "kind": ["raw", "raw"], "low": [0.5, 0.9], "count": [3, 4]})
ROWS = pd.DataFrame({"layer": [1, 2], "low": [1.0, 2.0], "count": [3, 4]})


@pytest.mark.parametrize(
    ("plain", "ours", "verdict"), [(0.2, 0.001, TREND), (0.005, 0.001, OUT_OF_REACH), (0.2, 0.4, OPPOSITE)]
)
def test_a_group_of_aligned_tokens_has_to_be_there_to_disappear(tmp_path, plain, ours, verdict):
    levels = {"self-attention": plain, "hopfield": ours}
    tables = {"layers": LAYERS, "cosine": COSINES}
    found = made("hopfield-similarity-gpt2", tmp_path, levels, number="cosine_aligned", tables=tables)
    assert found.verdict == verdict
    modes = next(sentence for sentence in found.sentences if sentence.startswith("Mode"))
    assert "self-attention 1.00 0.50" in modes
    assert "GPT-2 medium, self-attention 1.00 in each of 24 layers" in modes


def test_entropies_are_claimed_of_vit_alone(tmp_path):
    levels = {"self-attention": 3.0, "hopfield": 3.1}
    for model, verdict in (("vit", TREND), ("gpt2", NO_CLAIM)):
        found = made(f"hopfield-entropy-{model}", tmp_path, levels, number="entropy_mean", tables={"entropy": ROWS})
        assert found.verdict == verdict
        assert any(sentence.startswith("Mean by layer: self-attention 1.0") for sentence in found.sentences)


@pytest.mark.parametrize(("ours", "verdict"), [(3.9, TREND), (3.75, UNDECIDED), (3.0, NOT_SEEN)])
def test_an_entropy_is_unchanged_changed_or_neither(tmp_path, ours, verdict):
    levels = {"self-attention": 4.0, "hopfield": ours}
    found = made("hopfield-entropy-vit", tmp_path, levels, number="entropy_mean", tables={"entropy": ROWS})
    assert found.verdict == verdict


def test_tables_say_what_a_difference_is_worth(tmp_path):
    levels = {"self-attention": 50.0, "hopfield": 60.0}
    table = beside(found_cells("hopfield-main-vit", tmp_path, levels), ["accuracy"], "self-attention")
    row = table.set_index("method").loc["hopfield"]
    assert row["accuracy"] == "60.060 ± 0.060"
    assert row["against self-attention"] == "+10 (+9.88 to +10.1)"
    assert row["seeds"] == 3


def test_more_methods_in_a_table_widen_its_intervals(tmp_path):
    """Holm's correction over the methods of one table."""
    levels = {"self-attention": 50.0, "hopfield": 50.12}
    alone = against(found_cells("hopfield-main-vit", tmp_path / "two", levels), "accuracy", "self-attention")
    more = levels | {"revit": 50.0, "realformer": 50.0, "alpha-only": 50.0, "alpha-hidden-only": 50.0}
    among = against(found_cells("hopfield-main-vit", tmp_path / "six", more), "accuracy", "self-attention")
    assert alone["hopfield"].verdict == "higher"
    assert among["hopfield"].verdict == "undecided"


@pytest.mark.parametrize(
    ("artefact", "words"),
    [
        ("hopfield-main-gpt2", "here it is what enters the attention, after the norm (`normed`)."),
        ("hopfield-learned-vit", "here it is the block's tokens before the norm (`stream`)."),
        ("hopfield-probe", "(`normed`)."),
        ("localization-fig6", "here it is the mean loss of an update (`update`)."),
        ("localization-fig7-tokens", "here it is the loss summed over the tokens of an update (`tokens`)."),
    ],
)
def test_a_table_says_which_reading_it_is_of(artefact, words, tmp_path):
    assert scaled_down(found_cells(artefact, tmp_path, {})).endswith(words)


def test_what_is_scaled_down_names_both_settings(tmp_path):
    words = scaled_down(found_cells("localization-fig6", tmp_path, {}))
    assert "2,000 words" in words
    assert "rate 0.001" in words
    assert "rate 2.5e-05" in words

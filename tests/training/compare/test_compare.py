"""compare on runs: what differs, what came out, and sentences that claim no more than seeds allow."""

import fcntl
import json
import re
from html import unescape

import numpy as np
import pytest
from scipy.stats import ttest_1samp

import uncollapse as uc
from tests.report.diagnoses import HOSTILE
from tests.training.compare.run_folders import write_run
from uncollapse.statistics import difference, summarise
from uncollapse.training.compare.findings import difference_words
from uncollapse.training.compare.measures import BITS, COLLAPSE


def seeds(folder, count=3, **options):
    for seed in range(count):
        write_run(folder / f"seed-{seed}", seed=seed, **options)
    return folder


def test_runs_equal_up_to_the_seed_are_one_group(tmp_path):
    plain = seeds(tmp_path / "plain")
    skip = seeds(tmp_path / "skip", alpha=0.5, name="other", floor=1.5)
    comparison = uc.compare([plain, skip])
    assert [(group.name, len(group.runs)) for group in comparison.groups] == [("plain", 3), ("skip", 3)]
    assert comparison.differences.to_dict("records") == [{"key": "alpha", "plain": "0", "skip": "0.5"}]
    assert list(comparison.runs["seed"]) == [0, 1, 2, 0, 1, 2]
    loose = uc.compare([write_run(tmp_path / f"a_seed{n}", seed=n) for n in (0, 1)])
    assert [group.name for group in loose.groups] == ["a"]


def test_final_numbers_are_mean_deviation_and_interval_over_seeds(tmp_path):
    comparison = uc.compare([seeds(tmp_path / "a"), seeds(tmp_path / "b", 2, alpha=0.5)])
    values = [
        json.loads((tmp_path / "a" / f"seed-{n}" / "metrics.jsonl").read_text().splitlines()[-1])["eval_bits_per_byte"]
        for n in range(3)
    ]
    final = comparison.final.set_index(["measure", "group"])
    a, b = final.loc[("eval_bits_per_byte", "a")], final.loc[("eval_bits_per_byte", "b")]
    assert a["mean"] == pytest.approx(np.mean(values))
    assert a["spread"] == pytest.approx(np.std(values, ddof=1))
    low, high = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (a["low"], a["high"]) == pytest.approx((low, high))
    assert (a["seeds"], b["seeds"]) == (3, 2)
    assert b["low"] < b["mean"] < b["high"]
    assert "[95 % interval of the mean]" in str(comparison)


def test_one_seed_has_neither_spread_nor_interval(tmp_path):
    comparison = uc.compare([write_run(tmp_path / "a"), write_run(tmp_path / "b", alpha=0.5)])
    assert comparison.final[["spread", "low", "high"]].isna().all(axis=None)
    assert "with one seed there is neither spread nor interval" in str(comparison)


def words(base, other, measure=BITS, compared=1):
    return difference_words(measure, difference(summarise(base), summarise(other)), compared)


def test_words_claim_no_more_than_seeds_allow():
    assert words([2.0, 2.01, 2.02], [1.9, 1.91, 1.92]) == (
        "a difference of -0.1 (-0.123 to -0.0773 at 95 % confidence): better"
    )
    assert words([2.0, 2.01, 2.02], [2.1, 2.11, 2.12]).endswith("worse")
    assert words([2.0, 2.01, 2.02], [2.1, 2.11, 2.12], COLLAPSE[0]).endswith("higher")
    assert words([2.0, 2.05, 2.1], [2.01, 2.06, 2.1]) == (
        "a difference of +0.00667 (-0.102 to +0.115 at 95 % confidence): undecided, only 0.11 or more would have shown"
    )
    assert "at 95 % confidence, with Holm's correction for 3 groups)" in words([2.0, 2.1], [1.0, 1.1], compared=3)
    assert words([0.5, 0.5], [0.5, 0.5]) == "the same number with every seed"


@pytest.mark.parametrize(("base", "other"), [([2.0], [1.0]), ([2.0, 2.01, 2.02], [1.0]), ([2.0], [1.0, 1.01])])
def test_one_seed_on_either_side_gives_no_verdict(base, other):
    assert words(base, other).endswith("; one seed is not enough for a verdict")


def test_findings_of_runs(tmp_path):
    a, b = seeds(tmp_path / "a", noise=0.2), seeds(tmp_path / "b", alpha=0.5, floor=2.001, noise=0.2)
    [sentence] = [s for s in uc.compare([a, b]).findings if s.startswith("Bits per byte")]
    assert "undecided" in sentence
    c = seeds(tmp_path / "c", alpha=0.7, floor=2.002, noise=0.2)
    [sentence] = [s for s in uc.compare([a, b, c]).findings if s.startswith("Bits per byte")]
    assert "no group is shown to differ from a (" in sentence
    one = [write_run(tmp_path / "x"), write_run(tmp_path / "y", alpha=0.5, floor=1.5)]
    assert "one seed is not enough for a verdict" in uc.compare(one).findings[0]
    longer = uc.compare([tmp_path / "x", write_run(tmp_path / "z", steps=80, data="other.txt")])
    assert any("differ in data, so their evaluations are not on the same data" in s for s in longer.findings)
    assert any("budgets differ (steps: x 40, z 80)" in s for s in longer.findings)


def test_more_groups_widen_the_intervals_of_their_differences(tmp_path):
    """Holm's correction: a difference that decides alone may not be enough among others."""
    a, b = seeds(tmp_path / "a"), seeds(tmp_path / "b", alpha=0.5, floor=1.96)
    alone = uc.compare([a, b]).findings[0]
    assert alone.endswith("better.")
    others = [seeds(tmp_path / f"c{n}", alpha=n / 10, floor=2.0 + n / 1000) for n in (1, 2, 3)]
    among = [s for s in uc.compare([a, b, *others]).findings if s.startswith("Bits per byte")]
    assert not any(s.endswith("better.") for s in among)


def test_unfinished_runs_are_named_and_not_in_the_means(tmp_path):
    plain = seeds(tmp_path / "plain")
    write_run(tmp_path / "plain" / "seed-3", seed=3, floor=99.0, status="diverged", until=20)
    write_run(tmp_path / "plain" / "seed-4", seed=4, status="running", until=10)
    other = write_run(tmp_path / "other", alpha=0.5, status="stopped", until=30)
    comparison = uc.compare([plain, other])
    text = " ".join(comparison.notes)
    assert "plain/seed-3 diverged at step 20 of 40: the loss is not finite since step 20;" in text
    assert "plain/seed-4 is unfinished (it was ended from outside) at step 10 of 40;" in text
    assert "other was stopped at step 30 of 40: interrupted; its curves are shown, but it is not in the means." in text
    assert "other has no finished run, so it has no final numbers." in text
    final = comparison.final[comparison.final["measure"] == "eval_loss"]
    assert list(final["group"]) == ["plain"]
    assert final["seeds"].item() == 3
    assert final["mean"].item() < 3
    with (plain / "seed-4" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "seed-4 is still training at step 10" in " ".join(uc.compare([plain, other]).notes)


def test_a_seed_counts_once_and_an_end_that_is_not_finite_does_not(tmp_path):
    a = [write_run(tmp_path / f"a-{n}", seed=seed) for n, seed in enumerate((0, 0, 1))]
    b = write_run(tmp_path / "b", alpha=0.5)
    with (b / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 40, "eval_loss": null, "eval_bits_per_byte": null}\n')
    comparison = uc.compare([*a, b])
    assert "a-1 repeats seed 0 of its group and is not counted again." in comparison.notes
    assert (
        "b ends with bits per byte and evaluation loss not finite; it is left out of those means." in comparison.notes
    )
    final = comparison.final[comparison.final["measure"] == "eval_bits_per_byte"]
    assert list(zip(final["group"], final["seeds"], strict=True)) == [("a", 2)]


def test_other_tokenisers_are_compared_in_bits_per_byte_only(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", tokenizer="bb", vocab_size=512)]
    comparison = uc.compare(runs)
    compared = set(comparison.final["measure"])
    assert "eval_bits_per_byte" in compared
    assert not compared & {"loss", "eval_loss", "eval_perplexity"}
    assert "different tokenisers" in comparison.notes[0]
    html = comparison.to_html(tmp_path / "page.html").read_text()
    assert 'id="curve-eval-bits-per-byte"' in html
    assert 'id="curve-eval-loss"' not in html
    assert "They are compared in bits per byte only." in html


def test_images_are_compared_by_accuracy(tmp_path):
    runs = [write_run(tmp_path / "a", task="images"), write_run(tmp_path / "b", task="probe", floor=1.0)]
    comparison = uc.compare(runs)
    assert comparison.findings[0].startswith("Evaluation accuracy: b ")
    assert "eval_perplexity" not in set(comparison.final["measure"])


def test_bad_input_is_one_sentence(tmp_path):
    run = write_run(tmp_path / "run")
    with pytest.raises(ValueError, match="give at least two runs, got 1"):
        uc.compare([run, run])
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        uc.compare([run, tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty is no run: it holds neither recipe.yaml nor seed-\* folders"):
        uc.compare([run, tmp_path / "empty"])
    bare = write_run(tmp_path / "bare")
    (bare / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="bare has no metrics yet"):
        uc.compare([run, bare])
    with pytest.raises(ValueError, match=r"different tasks and cannot be compared \(language: run; images: pictures\)"):
        uc.compare([run, write_run(tmp_path / "pictures", task="images")])
    many = [write_run(tmp_path / f"many-{n}", alpha=n / 10) for n in range(9)]
    with pytest.raises(ValueError, match="9 different recipes cannot be told apart on a page; give at most 8"):
        uc.compare(many)
    (bare / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\nnot json\n{"step": 2')
    with pytest.raises(ValueError, match=r"metrics.jsonl is damaged"):
        uc.compare([run, bare])
    (bare / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2')  # ended while it wrote
    assert uc.compare([run, bare]).history.query("run == 'bare'")["step"].tolist() == [1]


def test_page_shows_training_models_and_words(tmp_path):
    steps = (8, 40)
    plain = write_run(tmp_path / "plain", diagnose_at=steps)
    other = write_run(tmp_path / "locater", kappa_scale=0.1, kappa_mean=1.0, diagnose_at=steps)
    comparison = uc.compare([plain, other])
    html = comparison.to_html(tmp_path / "page.html").read_text()
    text = unescape(re.sub("<[^>]+>", " ", html))
    assert all(sentence.partition(": ")[2] in text for sentence in comparison.findings)
    for chart in ("curve-loss", "curve-residual-ratio", "similarity-violins-2", "entropy-violins-2", "rho-map-2"):
        assert f'id="{chart}"' in html
    assert 'id="curve-locater-trace"' in html
    assert "plain" in comparison._repr_html_()


def test_hostile_names_are_text(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", rule=HOSTILE)]
    html = uc.compare(runs).to_html(tmp_path / "page.html").read_text()
    assert "<img src=x" not in html
    assert "<img" not in uc.compare(runs)._repr_html_()

"""Recipes with remedies: trained, saved, resumed, and refused where they do not fit."""

import pytest
import torch

import uncollapse as uc
from tests.training.tiny import KEYS
from uncollapse.training.model import build_model
from uncollapse.training.recipe import Recipe

TINY = {**KEYS, "rule": "self_attention", "dropout": 0.0, "steps": 4, "save_every": 2, "eval_every": None}


@pytest.mark.parametrize(
    ("remedy", "saved"),
    [
        ("qk_norm + soft_cap(cap=30)", ["qk_norm", "soft_cap"]),
        ("qk_clip(threshold=0.01)+qk_rate(factor=0.5)", []),
        ("sigma_reparam+value_mixing(learned=true)", ["value_mixing"]),
    ],
)
def test_a_recipe_with_remedies_trains_and_its_model_has_them(remedy, saved, tmp_path):
    run = uc.train(Recipe(**TINY, remedy=remedy), tmp_path / "run", progress=False)
    assert run.status == "finished"
    model = run.model
    assert [one.name for one in uc.remedies.applied(model)] == saved
    if saved:
        assert uc.remedies.check(model, {"input_ids": torch.arange(3, 19).view(2, 8)}).acts


def test_what_was_added_has_its_group_and_remedies_follow_the_steps():
    model = build_model(Recipe(**TINY, remedy="sink+qk_clip"), vocabulary=32)
    assert [one.name for one in uc.remedies.applied(model)] == ["sink"]  # there is no optimizer yet


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"remedy": "qk_nrm"}, "remedy must be names such as qk_norm"),
        ({"remedy": "soft_cap(30)"}, "must be of the form key=number"),
        ({"remedy": "qk_norm+qk_clip"}, "qk_clip does not go with qk_norm"),
        ({"remedy": "sink", "rule": "hopfield"}, "sink does not go with hopfield"),
        ({"remedy": "sigma_reparam", "kappa_scale": 0.1}, "sigma_reparam does not go with locater"),
        ({"remedy": "locater"}, "give kappa_scale and kappa_mean"),
        ({"remedy": "hopfield"}, "give rule: hopfield"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(keys, why):
    with pytest.raises(ValueError, match=why):
        Recipe(**(TINY | keys))

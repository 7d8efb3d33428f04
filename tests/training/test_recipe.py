"""Recipes: every one that is shipped can be parsed and its model built; a slip gets one sentence."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uncollapse.training.model import build_model
from uncollapse.training.recipe import KEYS, Recipe, names, resolve
from uncollapse.training.trainer import updates


@pytest.mark.parametrize("name", names())
def test_every_shipped_recipe_is_parsed_and_its_model_built(name):
    recipe = Recipe.find(name)
    assert recipe.name == name
    assert updates(recipe, 100_000) >= 1
    if recipe.model is not None:  # needs a trained model: test_train.py runs these
        return
    with torch.device("meta"):
        model = build_model(dataclasses.replace(recipe, rule="self_attention", alpha=None), vocabulary=50, classes=10)
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (recipe.layers, recipe.heads)
    assert config.hidden_size == recipe.width


PUBLISHED = {  # millions of parameters: GPT-2's with 50,257 tokens and 1,024 positions, ViT's with 1,000 classes
    "gpt2-small": 124.4,
    "gpt2-medium": 354.8,
    "vit-tiny": 5.7,
    "vit-small": 22.1,
    "vit-base": 86.6,
    "vit-large": 304.3,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_papers_models_have_the_published_size(name):
    recipe = dataclasses.replace(Recipe.find(name), rule="self_attention", alpha=None)
    with torch.device("meta"):
        model = build_model(recipe, vocabulary=50257, classes=1000)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    assert size == pytest.approx(PUBLISHED[name], abs=0.06)


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("name", names())
def test_every_recipe_runs_on_up_to_eight_processes(name, processes):
    recipe = Recipe.find(name).for_processes(processes)
    assert recipe.batch_size % (processes * recipe.accumulation) == 0
    assert recipe.for_processes(processes) == recipe  # a run that is resumed from its own folder


def test_keys_replace_the_recipes_values_and_the_rest_stays():
    before, after = Recipe.find("quickstart"), resolve("quickstart", rule="revit", steps=7)
    changed = {k for k in KEYS if getattr(before, k) != getattr(after, k)}
    assert changed == {"rule", "steps"}


def test_steps_take_the_place_of_epochs_and_the_other_way_round():
    assert resolve("vit-tiny", steps=5).epochs is None
    assert resolve("quickstart", epochs=2).steps is None


@given(alpha_hidden=st.floats(0, 1), rate=st.floats(1e-8, 1), steps=st.integers(1, 10**6), data=st.text(min_size=1))
def test_a_recipe_survives_its_yaml(tmp_path_factory, alpha_hidden, rate, steps, data):
    recipe = Recipe(name="x", steps=steps, alpha_hidden=alpha_hidden, learning_rate=rate, data=data)
    file = tmp_path_factory.mktemp("recipe") / "x.yaml"
    file.write_text(recipe.to_yaml(), encoding="utf-8")
    assert Recipe.find(file) == recipe


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"alpha_hiden": 0.5}, "unknown key 'alpha_hiden' in the recipe; did you mean alpha_hidden?"),
        ({"steps": 0}, "steps must be at least 1, got 0."),
        ({"steps": 2.5}, "steps must be a whole number, got 2.5."),
        ({"alpha": 1.5}, "alpha must lie between 0 and 1, got 1.5."),
        ({"rule": "hopfeld"}, "rule must be one of self_attention, hopfield, realformer, revit, got 'hopfeld'."),
        ({"learning_rate": "fast"}, "learning_rate must be a number, got 'fast'."),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number, got 0.0."),
        ({"family": "vit"}, "task language does not go with family vit; images are for vit only."),
        ({"residual": False}, "residual: false is for family vit only, got gpt2."),
        (
            {"normalisation": "tokens", "task": "images", "family": "vit"},
            "normalisation: tokens is for task language, got images; use update.",
        ),
        ({"width": 30}, "width must be a multiple of heads, got 30 and 4."),
        (
            {"alpha_warmup": 5},
            "alpha_warmup raises alpha_hidden from 0, which rule self_attention does not have; use hopfield.",
        ),
        ({"name": "../up"}, "name must be a plain name, since the run folder is called so, got '../up'."),
        ({"name": "/abs"}, "name must be a plain name, since the run folder is called so, got '/abs'."),
        ({"skip": "none"}, "skip must be one of stream, normed, replace, got 'none'."),
        (
            {"skip": "replace", "rule": "realformer"},
            "skip: replace needs alpha > 0, and rule realformer has none of its own; give alpha.",
        ),
        (
            {"skip": "replace", "rule": "hopfield", "dropout": 0.1},
            "skip: replace does not go with dropout, got 0.1; leave one out.",
        ),
    ],
)
def test_a_slip_gets_one_sentence(keys, sentence):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole sentence is compared below
        resolve("quickstart", **keys)
    assert str(error.value) == sentence


@pytest.mark.parametrize("skip", ["stream", "normed", "replace"])
def test_the_reading_of_the_skip_reaches_the_model(skip):
    model = build_model(resolve("quickstart", rule="hopfield", layers=1, width=8, heads=2, skip=skip), vocabulary=20)
    assert model.config.uncollapse["skip"] == skip


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ValueError, match=r"no recipe 'quikstart', and no such file; did you mean quickstart\?"):
        Recipe.find("quikstart")


def test_a_file_that_is_no_yaml_says_so(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("steps: [1")
    with pytest.raises(ValueError, match="is not YAML"):
        Recipe.find(file)
    file.write_text("just text")
    with pytest.raises(ValueError, match="must have lines of the form key: value"):
        Recipe.find(file)


def test_numbers_without_a_point_in_the_exponent_are_numbers(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("steps: 3\nlearning_rate: 1e-3\n")  # YAML 1.1 reads 1e-3 as text
    assert Recipe.find(file).learning_rate == 1e-3

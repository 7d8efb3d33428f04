"""What every recipe needs by the cost model: written in the recipes and the documentation, and current."""

import dataclasses
import os
from pathlib import Path

import pytest
import sentencepiece
import torch

from tests.diagnosis.trained import needs_data
from uncollapse.bench.gpu_model import GPUS, NOTICE
from uncollapse.bench.stack_shape import StackShape
from uncollapse.bench.training_cost import TrainingWork, training_cost
from uncollapse.cli import main
from uncollapse.cli.recipes import DOCS, estimate, with_line, with_table
from uncollapse.data.text import load_text
from uncollapse.data.tokenizers import load_tokenizer
from uncollapse.training.model import build_model
from uncollapse.training.recipe import RECIPES, Recipe, names
from uncollapse.training.size import PIECES_PER_WORD, VOCABULARIES, training_size

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", names())
def test_the_line_in_a_recipe_is_current(name):
    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.count("# One A100, by ") == 1
    assert with_line(text, estimate(Recipe.find(name))) == text, "run: uncollapse recipes --write"


def test_the_table_in_the_documentation_is_current():
    text = (ROOT / DOCS).read_text(encoding="utf-8")
    assert "`gpt2-small`" in text
    assert with_table(text, [estimate(Recipe.find(name)) for name in names()]) == text, (
        "run: uncollapse recipes --write"
    )


def test_the_command_lists_every_recipe_and_says_that_it_is_a_model(capsys):
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in names())
    assert NOTICE in printed


@pytest.mark.parametrize("name", [name for name in names() if training_size(Recipe.find(name)) is not None])
def test_weights_are_counted_as_the_model_has_them(name):
    recipe = dataclasses.replace(Recipe.find(name), rule="self_attention", alpha=None)
    size = training_size(recipe)
    vocabulary = recipe.vocab_size or VOCABULARIES.get(recipe.tokenizer, 0)
    with torch.device("meta"):
        model = build_model(recipe, vocabulary=vocabulary, classes=10)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert size.parameters == pytest.approx(counted, rel=0.03)  # biases, norms and type embeddings are left out


@needs_data
def test_pieces_per_word_are_those_of_wikitext_2():
    text = "".join(load_text("wikitext-2").valid)  # a tenth of what was counted to train on
    words = sum(len(line.split()) + 1 for line in text.splitlines())  # and the end of each line
    gpt2 = len(load_tokenizer("gpt2", load_text("wikitext-2"))(text)["input_ids"])
    model = Path(os.environ["UNCOLLAPSE_DATA"]) / "tokenizers" / "mistral-v1" / "tokenizer.model"
    llama = len(sentencepiece.SentencePieceProcessor(model_file=str(model)).encode(text))
    assert {"gpt2": gpt2 / words, "llama": llama / words} == pytest.approx(PIECES_PER_WORD, abs=0.03)


def test_the_model_follows_what_it_counts():
    work = TrainingWork(124_000_000, 124_000_000, StackShape(1024, batch=12), 1, 1024 * 50_257, False, True)
    gpu = GPUS["a100"]
    alone = training_cost(work, gpu)
    twice = training_cost(dataclasses.replace(work, micro_batches=2), gpu)
    assert alone.seconds < twice.seconds < 2 * alone.seconds  # the optimizer runs once
    assert twice.bytes == alone.bytes
    slow = training_cost(dataclasses.replace(work, bfloat16=False), gpu)
    assert slow.seconds > 5 * alone.seconds
    inheriting = training_cost(dataclasses.replace(work, inherits=True), gpu)
    scores = 4 * 12 * 12 * 12 * 1024 * 1024 / 2  # bytes: layers, batch, heads, half of the pairs
    assert inheriting.bytes - alone.bytes == pytest.approx(scores, rel=0.1)
    assert inheriting.form.name == "carried"
    assert training_cost(dataclasses.replace(work, stack=StackShape(8192, batch=12), inherits=True), gpu).form.exact

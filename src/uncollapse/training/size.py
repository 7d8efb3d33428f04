"""How large a recipe's training is: weights, tokens and updates, counted from its keys without loading anything."""

from __future__ import annotations

from dataclasses import dataclass

from .recipe import Recipe

VOCABULARIES = {"gpt2": 50_257, "llama": 32_000, "word": 33_278}  # word: that of WikiText-2
CLASSES = {"cifar-10": 10, "digits": 10, "flowers102": 102}
IMAGES = {"cifar-10": 50_000, "digits": 1_437, "flowers102": 1_020}  # to train on
WORDS = {"wikitext-103": 103_227_021, "wikitext-2": 2_088_628}  # to train on, as their makers count
PIECES_PER_WORD = {"gpt2": 1.17, "llama": 1.34}  # of WikiText-2


@dataclass(frozen=True)
class TrainingSize:
    """The counts of one update and of a whole run, in one process."""

    parameters: int
    product_weights: int  # in matrix products: all but the embeddings that are looked up
    sequences: int  # in an update
    micro_batches: int  # that an update is made of
    length: int  # tokens of a sequence, or patches and class token of an image
    outputs: int  # logits of a sequence: one for each word of each token, or one for each class
    updates: int


def training_size(recipe: Recipe) -> TrainingSize | None:
    """The size of a recipe, or None where it depends on a model or on data that the recipe does not fix.

    >>> size = training_size(Recipe.find("gpt2-small"))
    >>> round(size.parameters / 1e6), size.length, size.outputs // size.length
    (124, 1024, 50257)
    """
    images = recipe.task == "images"
    known = IMAGES if images else WORDS
    if recipe.model is not None or (recipe.steps is None and recipe.data not in known):
        return None
    recipe = recipe.for_processes(1)
    length = (recipe.image_size // recipe.patch_size) ** 2 + 1 if images else recipe.length
    inside, embeddings, head = _weights(recipe, length)
    return TrainingSize(
        parameters=inside + embeddings + head,
        product_weights=inside + (head or _vocabulary(recipe) * recipe.width),  # a tied head is a product too
        sequences=recipe.batch_size,
        micro_batches=recipe.accumulation,
        length=length,
        outputs=CLASSES.get(recipe.data, 10) if images else length * _vocabulary(recipe),
        updates=_updates(recipe),
    )


def _weights(recipe: Recipe, length: int) -> tuple[int, int, int]:
    """Weights of the blocks, of what is looked up, and of a head that is not tied to it; biases and norms left out."""
    width, heads = recipe.width, recipe.heads
    kv_width = width * (recipe.kv_heads or heads) // heads
    gated = recipe.family == "llama"
    mlp_width = recipe.mlp_width or (swiglu_width(width) if gated else 4 * width)
    block = 2 * width * (width + kv_width) + (3 if gated else 2) * width * mlp_width
    inside = recipe.layers * block
    if recipe.family == "vit":
        patches = 3 * recipe.patch_size**2 * width
        return inside + patches, length * width, width * CLASSES.get(recipe.data, 10)
    words = _vocabulary(recipe) * width
    if gated:
        return inside, words, words
    head = width**2 + _vocabulary(recipe) if recipe.family == "post-norm" else 0  # a dense layer, and a bias a word
    return inside + head, words + length * width, 0


def swiglu_width(width: int) -> int:
    """LLaMA's own: two thirds of 4 times the width, rounded up to a multiple of 64."""
    return -(-8 * width // (3 * 64)) * 64


def _vocabulary(recipe: Recipe) -> int:
    return recipe.vocab_size or VOCABULARIES[recipe.tokenizer]


def _updates(recipe: Recipe) -> int:
    if recipe.steps is not None:
        return recipe.steps
    if recipe.task == "images":
        examples = IMAGES[recipe.data]
    else:
        examples = int(WORDS[recipe.data] * PIECES_PER_WORD.get(recipe.tokenizer, 1.0)) // recipe.length
    return round((recipe.epochs or 0) * (examples // recipe.batch_size))

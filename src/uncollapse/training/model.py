"""From a recipe to a model: a stock architecture, converted to the recipe's attention."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import BertConfig, GPT2Config, LlamaConfig, PreTrainedModel, ViTConfig

from uncollapse.attention.rule import ScoreRule
from uncollapse.models import convert
from uncollapse.models.loading import read_config
from uncollapse.models.skip_free import SKIP_FREE_KEY, remove_residuals
from uncollapse.remedies import apply, from_pretrained
from uncollapse.remedies.contents import read
from uncollapse.remedies.remedy import Remedy, named

from .drop_path import add_drop_path
from .recipe import Recipe
from .size import swiglu_width


def build_model(recipe: Recipe, vocabulary: int = 0, classes: int = 0) -> PreTrainedModel:
    """The model of a recipe: fresh weights from torch's generator, or those of `recipe.model`.

    >>> from uncollapse.training.recipe import Recipe
    >>> model = build_model(Recipe(layers=2, heads=2, width=8, steps=1, rule="hopfield"), vocabulary=16)
    >>> model.config.uncollapse["alpha"]
    0.5
    """
    model = _fresh(recipe, vocabulary, classes) if recipe.model is None else _loaded(recipe, vocabulary, classes)
    if recipe.task == "language":
        # Unset for GPT2LMHeadModel and BertLMHeadModel, and then the Trainer counts the first token of a sequence,
        # which nothing predicts: losses come out (length - 1) / length of what they are.
        model.loss_type = "ForCausalLM"
    if recipe.probe:
        model.base_model.requires_grad_(False)
        return model
    if recipe.residual and getattr(model.config, SKIP_FREE_KEY, False):
        raise ValueError(f"{recipe.model} was trained without block residuals; train it on with --residual false.")
    convert_to_recipe(model, recipe)
    if not recipe.residual:
        remove_residuals(model)
    if recipe.drop_path:
        add_drop_path(model, recipe.drop_path)
    for remedy in remedies_of(recipe):
        if not remedy.needs_optimizer:
            apply(model, remedy)
    return model


def remedies_of(recipe: Recipe) -> list[Remedy]:
    """The remedies that a recipe names; those that need an optimizer are applied when there is one."""
    return [named(name, **settings) for name, settings in read(recipe.remedy)] if recipe.remedy else []


def convert_to_recipe(model: PreTrainedModel, recipe: Recipe) -> None:
    """Convert the model to the recipe's rule; plain self-attention without a skip stays stock."""
    rule = rule_of(recipe)
    alpha = rule.alpha if recipe.alpha is None else recipe.alpha
    if rule.name == "self_attention" and alpha == 0:
        return
    with warnings.catch_warnings():
        if recipe.alpha_warmup:  # which is what the warning about loaded weights asks for
            warnings.simplefilter("ignore")
        convert(
            model,
            alpha=f"learned:{alpha}" if recipe.learn_alpha else alpha,
            skip=recipe.skip,
            rule=rule,
            backend=recipe.backend,
            scores_dtype=recipe.scores_dtype,
        )


def rule_of(recipe: Recipe) -> ScoreRule:
    """How scores are inherited in this recipe."""
    if recipe.rule == "hopfield":
        alpha_hidden = f"learned:{recipe.alpha_hidden}" if recipe.learn_alpha else recipe.alpha_hidden
        return ScoreRule.hopfield(alpha_hidden, recipe.start)
    rule: ScoreRule = getattr(ScoreRule, recipe.rule)()
    return rule


def config_of(recipe: Recipe, vocabulary: int, classes: int) -> Any:
    """The Hugging Face config of a model that starts from scratch."""
    if recipe.family == "gpt2":
        return GPT2Config(
            vocab_size=vocabulary,
            n_positions=recipe.length,
            n_embd=recipe.width,
            n_layer=recipe.layers,
            n_head=recipe.heads,
            n_inner=recipe.mlp_width,
            resid_pdrop=recipe.dropout,
            embd_pdrop=recipe.dropout,
            attn_pdrop=recipe.dropout,
            bos_token_id=None,
            eos_token_id=None,
        )
    if recipe.family == "llama":
        return LlamaConfig(
            vocab_size=vocabulary,
            max_position_embeddings=recipe.length,
            hidden_size=recipe.width,
            intermediate_size=recipe.mlp_width or swiglu_width(recipe.width),
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads or recipe.heads,
            attention_dropout=recipe.dropout,
            bos_token_id=None,
            eos_token_id=None,
        )
    if recipe.family == "post-norm":
        return BertConfig(
            vocab_size=vocabulary,
            max_position_embeddings=recipe.length,
            hidden_size=recipe.width,
            intermediate_size=recipe.mlp_width or 4 * recipe.width,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            hidden_act="relu",  # fairseq's decoder
            hidden_dropout_prob=recipe.dropout,
            attention_probs_dropout_prob=recipe.dropout,
            is_decoder=True,
            pad_token_id=None,
        )
    return ViTConfig(
        image_size=recipe.image_size,
        patch_size=recipe.patch_size,
        hidden_size=recipe.width,
        intermediate_size=recipe.mlp_width or 4 * recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        hidden_dropout_prob=recipe.dropout,
        attention_probs_dropout_prob=recipe.dropout,
        num_labels=classes,  # type: ignore[call-arg]
    )


MODEL_CLASS = {
    "gpt2": transformers.GPT2LMHeadModel,
    "llama": transformers.LlamaForCausalLM,
    "post-norm": transformers.BertLMHeadModel,
    "vit": transformers.ViTForImageClassification,
}


def _fresh(recipe: Recipe, vocabulary: int, classes: int) -> PreTrainedModel:
    model: PreTrainedModel = MODEL_CLASS[recipe.family](config_of(recipe, vocabulary, classes))
    return model


def check_model(recipe: Recipe) -> None:
    """Raise early if there is no such checkpoint."""
    if recipe.model is None:
        return
    path = model_path(recipe.model)
    try:
        read_config(path)
    except (OSError, ValueError) as error:
        if Path(path).exists():
            reason = " ".join(str(error).split())
            raise ValueError(reason if path in reason else f"{path} cannot be loaded: {reason[:300]}") from error
        raise ValueError(
            f"there is no folder {path}, and the hub has no such model or cannot be reached; "
            "give --model the path of a folder that save_pretrained wrote."
        ) from error


def _loaded(recipe: Recipe, vocabulary: int, classes: int) -> PreTrainedModel:
    """The checkpoint, with a new classifier if the classes differ."""
    path = model_path(str(recipe.model))
    model = from_pretrained(path)
    if recipe.task == "language":
        if model.config.vocab_size < vocabulary:
            raise ValueError(
                f"the tokenizer has {vocabulary:,} entries, the model in {path} only {model.config.vocab_size:,}; "
                f"use the model's own tokenizer: --tokenizer {path}."
            )
        return model
    if not hasattr(model, "classifier"):
        raise ValueError(f"{path} holds a {type(model).__name__}, which has no classifier; give an image classifier.")
    if recipe.probe or model.config.num_labels != classes:
        model.config.num_labels = classes
        setattr(model, "num_labels", classes)  # noqa: B010 - typed as a module by torch
        model.classifier = nn.Linear(model.config.hidden_size, classes)
    return model


def model_path(name: str) -> str:
    """The folder of a model: a run folder holds it in `model`."""
    inner = Path(name) / "model"
    return str(inner) if (inner / "config.json").is_file() else name

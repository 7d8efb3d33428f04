"""Recipe: every setting of a training run, flat; read from YAML, changed by keys, written into the run folder."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

RECIPES = Path(__file__).parent.parent / "recipes"


def key(default: Any, help: str) -> Any:
    """A field of a recipe, with the line that `--help` shows."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. `Recipe.find("quickstart")` reads one that is shipped.

    >>> recipe = Recipe.find("quickstart").changed(steps=10, alpha_hidden=0.7)
    >>> recipe.steps, recipe.alpha_hidden
    (10, 0.7)
    """

    name: str = key("", "name of the recipe")
    # What is learnt, from which data.
    task: Literal["language", "images"] = key("language", "what is learnt")
    data: str = key("embedded", "name, file or folder of the data, or name on the hub")
    tokenizer: str = key("bpe", "bpe (trained on the data), word, gpt2, llama, or a folder or name on the hub")
    vocab_size: int | None = key(None, "entries of a tokenizer that is trained here; for word, the most frequent words")
    length: int = key(128, "tokens of a sequence")
    image_size: int = key(32, "pixels to which images are resized")
    patch_size: int = key(4, "pixels of a patch")
    examples: int | None = key(None, "use only so many sequences or images of the training data")
    # The model.
    model: str | None = key(None, "start from the weights in this folder, run folder or hub name, not from scratch")
    probe: bool = key(False, "train only a new classifier on the frozen model")
    family: Literal["gpt2", "llama", "vit", "post-norm"] = key("gpt2", "architecture")
    layers: int = key(4, "blocks")
    heads: int = key(4, "query heads of a layer")
    kv_heads: int | None = key(None, "key and value heads of a layer (LLaMA); as many as heads by default")
    width: int = key(128, "model width")
    mlp_width: int | None = key(None, "width of the MLP; by default the family's own multiple of the width")
    dropout: float = key(0.0, "dropout, everywhere the family has it")
    drop_path: float = key(0.0, "stochastic depth of the last block, rising from 0 (ViT)")
    residual: bool = key(True, "keep the block's own residual connections (ViT; off: the skip-free nets)")
    # Its attention.
    rule: Literal["self_attention", "hopfield", "realformer", "revit"] = key(
        "self_attention", "how scores are inherited"
    )
    alpha: float | None = key(None, "weight of the visible skip; by default the rule's own")
    alpha_hidden: float = key(0.5, "alpha', the weight of the inherited scores (hopfield)")
    start: Literal["zero", "raw"] = key("zero", "hidden state before layer 1 (hopfield)")
    backend: str = key("auto", "auto, reference, carried or stacked")
    alpha_warmup: int = key(0, "steps over which alpha and alpha_hidden rise from 0")
    kappa_scale: float = key(0.0, "LocAteR's kappa_1, on tr(W^T W)")
    kappa_mean: float = key(0.0, "LocAteR's kappa_2, on (tr W - 1)^2")
    # Optimisation.
    learning_rate: float = key(1e-3, "rate of AdamW after the warm-up")
    weight_decay: float = key(0.1, "on matrices; not on biases and norms")
    beta1: float = key(0.9, "Adam's beta_1")
    beta2: float = key(0.95, "Adam's beta_2")
    epsilon: float = key(1e-8, "Adam's epsilon")
    clip: float = key(1.0, "largest norm of the gradient; 0: no clipping")
    schedule: Literal["cosine", "constant"] = key("cosine", "of the rate after the warm-up")
    lowest_rate: float = key(1e-6, "where the warm-up starts and the cosine ends")
    steps: int | None = key(None, "updates; in place of epochs")
    epochs: float | None = key(None, "passes over the data, cool-down included")
    warmup_steps: int = key(0, "updates of linear warm-up")
    warmup_epochs: float = key(0.0, "epochs of linear warm-up")
    cooldown_epochs: float = key(0.0, "last epochs, at the lowest rate")
    batch_size: int = key(16, "sequences or images of an update, over all processes")
    accumulation: int = key(1, "parts in which a process takes its share of a batch")
    precision: Literal["float32", "bfloat16"] = key("float32", "of the forward and backward pass")
    gradient_checkpointing: bool = key(False, "save memory by computing activations again")
    parallel: Literal["ddp", "fsdp"] = key("ddp", "with several processes: copies of the model, or shards (FSDP2)")
    # Images only.
    crop: bool = key(False, "random crops with padding, and flips")
    randaugment: str | None = key(None, "operations and magnitude (of 30) of RandAugment, such as 2,27")
    erasing: float = key(0.0, "probability of random erasing")
    mixup: float = key(0.0, "Beta parameter of mixup; 0: none")
    cutmix: float = key(0.0, "Beta parameter of CutMix; 0: none")
    label_smoothing: float = key(0.0, "share of the label spread over all classes")
    # Watching and saving.
    seed: int = key(0, "of weights, order of the data, dropout and augmentation")
    log_every: int = key(10, "updates between two lines of metrics")
    eval_every: int | None = key(None, "updates between two evaluations; by default at the end only")
    eval_examples: int | None = key(None, "evaluate on so many held-out sequences or images")
    eval_batch_size: int | None = key(None, "by default batch_size")
    save_every: int | None = key(None, "updates between two checkpoints; by default ten in a run")
    diagnose_every: int | None = key(None, "updates between two diagnoses; by default ten in a run; 0: none")
    diagnose_examples: int = key(8, "held-out sequences or images that are diagnosed")

    def __post_init__(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        for name in ("alpha", "alpha_hidden", "dropout", "drop_path", "erasing", "label_smoothing"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {value}.")
        for name in ("learning_rate", "epochs"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number, got {value}.")
        if self.steps is None and self.epochs is None:
            raise ValueError("neither steps nor epochs is set; give one, such as steps: 1000.")
        if (self.task == "images") != (self.family == "vit"):
            raise ValueError(f"task {self.task} does not go with family {self.family}; images are for vit only.")
        if not self.residual and self.family != "vit":
            raise ValueError(f"residual: false is for family vit only, got {self.family}.")
        if self.alpha_warmup and self.rule != "hopfield":
            raise ValueError(
                f"alpha_warmup raises alpha_hidden from 0, which rule {self.rule} does not have; use hopfield."
            )
        if self.probe and (self.model is None or self.task != "images"):
            raise ValueError("probe needs a trained image model: give its folder with --model.")
        if self.model is None and self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}.")

    @classmethod
    def find(cls, name: str | Path) -> Recipe:
        """The recipe of that name, in that YAML file, or of that run folder."""
        path = Path(name)
        if path.is_dir() and (path / "recipe.yaml").is_file():
            path = path / "recipe.yaml"
        elif path.suffix not in (".yaml", ".yml"):
            path = RECIPES / f"{name}.yaml"
        if not path.is_file():
            near = difflib.get_close_matches(str(name), names(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"the recipes are {', '.join(names())}."
            raise ValueError(f"there is no recipe {str(name)!r}, and no such file; {hint}")
        try:
            found = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(found, dict):
            raise ValueError(f"{path} must hold lines of the form key: value.")
        return cls(**_checked({"name": path.stem, **found}, str(path)))

    def changed(self, **keys: Any) -> Recipe:
        """The same recipe with other values; `steps` and `epochs` replace each other."""
        keys = _checked(keys, "the recipe")
        if keys.get("steps") is not None and "epochs" not in keys:
            keys["epochs"] = None
        if keys.get("epochs") is not None and "steps" not in keys:
            keys["steps"] = None
        return replace(self, **keys)

    def to_yaml(self) -> str:
        """Every key, in the order of this class."""
        text: str = yaml.safe_dump(asdict(self), sort_keys=False)
        return text


POSITIVE = [
    *("steps", "vocab_size", "length", "image_size", "patch_size", "examples", "layers", "heads", "kv_heads", "width"),
    *("mlp_width", "batch_size", "accumulation", "log_every", "eval_every", "eval_examples", "eval_batch_size"),
    *("save_every", "diagnose_examples"),
]  # at least 1 if set
KEYS: dict[str, Any] = {f.name: f for f in fields(Recipe)}


def names() -> list[str]:
    """The recipes that are shipped."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def resolve(recipe: str | Path | Recipe | Mapping[str, Any], **keys: Any) -> Recipe:
    """A recipe by name, file, or as keys, with some keys changed."""
    if isinstance(recipe, Mapping):
        return Recipe(**_checked({**recipe, **keys}, "the recipe"))
    found = recipe if isinstance(recipe, Recipe) else Recipe.find(recipe)
    return found.changed(**keys)


def _checked(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The values with their types, or a sentence about the first that does not fit."""
    hints = get_type_hints(Recipe)
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in KEYS:
            near = difflib.get_close_matches(name, KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else "uncollapse train --help lists the keys."
            raise ValueError(f"unknown key {name!r} in {where}; {hint}")
        checked[name] = _fitted(name, value, hints[name])
    return checked


def _fitted(name: str, value: Any, hint: Any) -> Any:
    arms = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if value is None and type(None) in arms:
        return None
    kind = next(arm for arm in arms if arm is not type(None))
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}.")
    if kind is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"{name} must be a number, got {value!r}.") from None
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ValueError(f"{name} must be {words[kind]}, got {value!r}.")
    return value

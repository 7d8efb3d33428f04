"""Recipe: all settings of a training run as flat keys, read from YAML and saved in the run folder."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from uncollapse.remedies.contents import read, together

RECIPES = Path(__file__).parent.parent / "recipes"


def key(default: Any, help: str) -> Any:
    """A field of a recipe with its help text for `--help`."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Recipe:
    """All settings of a training run; `Recipe.find("quickstart")` loads a built-in recipe.

    >>> recipe = Recipe.find("quickstart").changed(steps=10, alpha_hidden=0.7)
    >>> recipe.steps, recipe.alpha_hidden
    (10, 0.7)
    """

    name: str = key("", "name of the recipe")
    # Task and data.
    task: Literal["language", "images"] = key("language", "language modelling or image classification")
    data: str = key("embedded", "data set: name, file or folder, or name on the Hugging Face hub")
    tokenizer: str = key("bpe", "bpe or word (trained on the data), gpt2, llama, or a folder or name on the hub")
    vocab_size: int | None = key(None, "vocabulary size of a tokenizer trained on the data")
    length: int = key(128, "tokens per sequence")
    image_size: int = key(32, "side length in pixels to which images are resized")
    patch_size: int = key(4, "side length of a patch in pixels")
    examples: int | None = key(None, "number of training sequences or images to use; all by default")
    # The model.
    model: str | None = key(None, "folder, run folder or hub name of pretrained weights; random weights by default")
    probe: bool = key(False, "freeze the model and train a new classifier only")
    family: Literal["gpt2", "llama", "vit", "post-norm"] = key("gpt2", "model architecture")
    layers: int = key(4, "number of blocks")
    heads: int = key(4, "query heads per layer")
    kv_heads: int | None = key(None, "key/value heads per layer (LLaMA); equal to heads by default")
    width: int = key(128, "model width")
    mlp_width: int | None = key(None, "width of the MLP; a multiple of width by default, depending on the family")
    dropout: float = key(0.0, "dropout probability, everywhere the family applies dropout")
    drop_path: float = key(0.0, "drop probability of the last block, rising linearly from 0 (ViT)")
    residual: bool = key(True, "residual connections of the blocks; false removes them (ViT only)")
    # Attention.
    rule: Literal["self_attention", "hopfield", "realformer", "revit"] = key(
        "self_attention", "how attention scores are inherited from layer to layer"
    )
    alpha: float | None = key(None, "weight of the visible skip; by default that of the rule")
    skip: Literal["stream", "normed", "replace"] = key(
        "stream", "what alpha multiplies: tokens before the norm, after it, or before it in place of the residual"
    )
    alpha_hidden: float = key(0.5, "weight alpha' of the inherited scores (hopfield)")
    start: Literal["zero", "raw"] = key("zero", "hidden state before layer 1 (hopfield)")
    learn_alpha: bool = key(False, "learn alpha and alpha_hidden, from these values on, for each layer and head")
    backend: str = key("auto", "attention backend: auto, reference, carried, reversible or stacked")
    scores_dtype: str | None = key(None, "float16 keeps inherited scores in half the memory")
    alpha_warmup: int = key(0, "updates over which alpha and alpha_hidden rise from 0 (hopfield)")
    kappa_scale: float = key(0.0, "weight kappa_1 of LocAteR's penalty on tr(W^T W)")
    kappa_mean: float = key(0.0, "weight kappa_2 of LocAteR's penalty on (tr W - 1)^2")
    normalisation: Literal["update", "tokens"] = key(
        "update", "what LocAteR's penalty is added to: the mean loss of an update, or the sum over its tokens"
    )
    remedy: str | None = key(None, "remedies by name, such as qk_norm or soft_cap(cap=30)+sink; see docs/remedies.md")
    # Optimisation.
    learning_rate: float = key(1e-3, "learning rate of AdamW after the warm-up")
    weight_decay: float = key(0.1, "weight decay of matrices; biases and norms have none")
    beta1: float = key(0.9, "Adam's beta_1")
    beta2: float = key(0.95, "Adam's beta_2")
    epsilon: float = key(1e-8, "Adam's epsilon")
    clip: float = key(1.0, "maximum gradient norm; 0 turns clipping off")
    schedule: Literal["cosine", "constant"] = key("cosine", "learning-rate schedule after the warm-up")
    lowest_rate: float = key(1e-6, "learning rate at the start of the warm-up and at the end of the cosine")
    steps: int | None = key(None, "number of updates; replaces epochs")
    epochs: float | None = key(None, "passes over the training data, including the cool-down; replaces steps")
    warmup_steps: int = key(0, "updates of linear warm-up")
    warmup_epochs: float = key(0.0, "epochs of linear warm-up")
    cooldown_epochs: float = key(0.0, "final epochs at lowest_rate")
    batch_size: int = key(16, "sequences or images per update")
    batch_of: Literal["update", "process"] = key(
        "update", "what batch_size counts: an update over all processes, or the share of each process"
    )
    accumulation: int = key(1, "gradient accumulation steps per update")
    precision: Literal["float32", "bfloat16"] = key("float32", "dtype of the forward and backward pass")
    gradient_checkpointing: bool = key(False, "recompute activations in the backward pass to save memory")
    parallel: Literal["ddp", "fsdp"] = key("ddp", "with several processes: replicate (DDP) or shard (FSDP2) the model")
    # Images only.
    crop: bool = key(False, "random padded crops and horizontal flips")
    randaugment: str | None = key(None, "number of operations and magnitude (up to 30) of RandAugment, such as 2,27")
    erasing: float = key(0.0, "probability of random erasing")
    mixup: float = key(0.0, "Beta parameter of mixup; 0 turns it off")
    cutmix: float = key(0.0, "Beta parameter of CutMix; 0 turns it off")
    label_smoothing: float = key(0.0, "label smoothing")
    # Logging, evaluation and checkpoints.
    seed: int = key(0, "random seed of weights, data order, dropout and augmentation")
    log_every: int = key(10, "updates between two logged lines of metrics")
    eval_every: int | None = key(None, "updates between two evaluations; by default only at the end")
    eval_examples: int | None = key(None, "number of held-out sequences or images to evaluate on; all by default")
    eval_batch_size: int | None = key(None, "batch size of evaluations; batch_size by default")
    save_every: int | None = key(None, "updates between two checkpoints; by default ten per run")
    diagnose_every: int | None = key(None, "updates between two diagnoses; by default ten per run, 0 turns them off")
    diagnose_examples: int = key(8, "number of held-out sequences or images per diagnosis")

    def __post_init__(self) -> None:
        if self.name in (".", "..") or set("/\\") & set(self.name) or not self.name.isprintable():
            raise ValueError(f"name must be a plain name, since the run folder is called so, got {self.name!r}.")
        self._check_numbers()
        if self.steps is None and self.epochs is None:
            raise ValueError("neither steps nor epochs is set; set one of them, such as steps: 1000.")
        if (self.task == "images") != (self.family == "vit"):
            raise ValueError(f"task {self.task} does not go with family {self.family}; images are for vit only.")
        if not self.residual and self.family != "vit":
            raise ValueError(f"residual: false is for family vit only, got {self.family}.")
        if self.learn_alpha and self.rule != "hopfield":
            raise ValueError(f"learn_alpha goes with rule hopfield, not {self.rule}.")
        if self.learn_alpha and self.alpha_warmup:
            raise ValueError("learn_alpha and alpha_warmup cannot go together; learn from alpha: 0 instead.")
        if self.scores_dtype not in (None, "float32", "float16"):
            raise ValueError(f"scores_dtype must be float32 or float16, got {self.scores_dtype!r}.")
        if self.alpha_warmup and self.rule != "hopfield":
            raise ValueError(
                f"alpha_warmup raises alpha_hidden from 0, which rule {self.rule} does not have; use hopfield."
            )
        if self.remedy is not None:
            self._check_remedy()
        if self.skip == "replace":
            self._check_replace()
        if self.normalisation == "tokens" and self.task != "language":
            raise ValueError(f"normalisation: tokens is for task language, got {self.task}; use update.")
        if self.probe and (self.model is None or self.task != "images"):
            raise ValueError("probe needs a trained image model: give its folder with --model.")
        if self.model is None and self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}.")
        if self.model is None and self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}.")

    def _check_numbers(self) -> None:
        """Raise for the first number that is out of its range."""
        for name in KEYS:
            value = getattr(self, name)
            if value is None or isinstance(value, bool | str):
                continue
            if name in POSITIVE and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
            if name in SHARES and not 0 <= value <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {value}.")
            if name in ("learning_rate", "epochs") and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number, got {value}.")
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must not be negative, infinite or nan, got {value}.")
            largest = LARGEST.get(name, LARGEST_INTEGER)
            if isinstance(value, int) and value > largest:
                raise ValueError(f"{name} must be at most {largest:,}, got {_shown(value)}.")

    def _check_remedy(self) -> None:
        """Those with keys of their own are given by these."""
        for name, keys in (("hopfield", "rule: hopfield"), ("locater", "kappa_scale and kappa_mean")):
            if any(found == name for found, _ in read(str(self.remedy))):
                raise ValueError(f"remedy: {name} has keys of its own in a recipe: give {keys}.")
        has = ["hopfield"] if self.rule != "self_attention" or self.alpha else []
        has += ["locater"] if self.kappa_scale or self.kappa_mean else []
        for name, _ in read(str(self.remedy)):
            together(name, has)

    def _check_replace(self) -> None:
        """`skip: replace` changes the block's sum from the output of W_O, so nothing may lie between the two."""
        for name in ("dropout", "drop_path", "alpha_warmup"):
            if getattr(self, name):
                raise ValueError(f"skip: replace does not go with {name}, got {getattr(self, name)}; leave one out.")
        if not self.residual:
            raise ValueError("skip: replace needs a residual to replace; leave out residual: false, or use stream.")
        if self.alpha == 0 or (self.alpha is None and self.rule != "hopfield"):
            raise ValueError(f"skip: replace needs alpha > 0, and rule {self.rule} has none of its own; give alpha.")

    @classmethod
    def find(cls, name: str | Path) -> Recipe:
        """Load a built-in recipe by name, a YAML file, or the recipe of a run folder."""
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
            return cls(**_converted({"name": path.stem, **read_keys(path)}, str(path)))
        except ValueError as error:
            named = str(path) in str(error)
            raise ValueError(f"{error}" if named else f"in {path}: {error}") from None

    def changed(self, **keys: Any) -> Recipe:
        """A copy with the given keys changed; setting `steps` clears `epochs`, and the other way round."""
        keys = _converted(keys, "the recipe")
        if keys.get("steps") is not None and "epochs" not in keys:
            keys["epochs"] = None
        if keys.get("epochs") is not None and "steps" not in keys:
            keys["steps"] = None
        return replace(self, **keys)

    def for_processes(self, processes: int) -> Recipe:
        """The recipe with the batch of an update over all processes; raises if they cannot share it evenly.

        >>> Recipe(steps=1, batch_size=12, batch_of="process").for_processes(8).batch_size
        96
        """
        if self.batch_of == "process":
            return replace(self, batch_size=processes * self.batch_size, batch_of="update").for_processes(processes)
        parts = processes * self.accumulation
        if self.batch_size % parts:
            near = parts * max(1, round(self.batch_size / parts))
            raise ValueError(
                f"batch_size must be a multiple of processes x accumulation = {processes} x {self.accumulation}, got "
                f"{self.batch_size}; use --batch_size {near}, or --batch_of process for {self.batch_size} in each "
                "process."
            )
        return self

    def to_yaml(self) -> str:
        """All keys as YAML, in the order of this class."""
        text: str = yaml.safe_dump(asdict(self), sort_keys=False)
        return text


POSITIVE = [
    *("steps", "vocab_size", "length", "image_size", "patch_size", "examples", "layers", "heads", "kv_heads", "width"),
    *("mlp_width", "batch_size", "accumulation", "log_every", "eval_every", "eval_examples", "eval_batch_size"),
    *("save_every", "diagnose_examples"),
]  # at least 1 if set
SHARES = ("alpha", "alpha_hidden", "dropout", "drop_path", "erasing", "label_smoothing")
LARGEST = {"vocab_size": 10_000_000, "seed": 2**32 - 1}  # tokenizers reserves memory for the vocabulary beforehand
LARGEST_INTEGER = 2**31 - 1
KEYS: dict[str, Any] = {f.name: f for f in fields(Recipe)}


def names() -> list[str]:
    """Names of the built-in recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_keys(path: Path) -> dict[str, Any]:
    """The keys and values in a recipe file, which are not yet checked against those of `Recipe`."""
    text = path.read_bytes()
    try:
        found = yaml.safe_load(text.decode("utf-8"))
    except Exception as error:  # PyYAML's constructors raise many kinds, and deep nesting a RecursionError
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must have lines of the form key: value.")
    for name, value in found.items():
        if not isinstance(name, str):
            raise ValueError(f"{path} has the key {_shown(name)}, which is not text; write it in quotes, or remove it.")
        if not isinstance(value, str | int | float | None):
            raise ValueError(f"{name} in {path} must be one number or text, got a {type(value).__name__}.")
    return found


def resolve(recipe: str | Path | Recipe | Mapping[str, Any], **keys: Any) -> Recipe:
    """A recipe from its name, file or keys, with `keys` changed."""
    if isinstance(recipe, Mapping):
        return Recipe(**_converted({**recipe, **keys}, "the recipe"))
    found = recipe if isinstance(recipe, Recipe) else Recipe.find(recipe)
    return found.changed(**keys)


def _converted(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The values converted to the types of their keys; raises ValueError for the first that does not fit."""
    hints = get_type_hints(Recipe)
    converted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in KEYS:
            near = difflib.get_close_matches(str(name), KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else "uncollapse train --help lists the keys."
            raise ValueError(f"unknown key {name!r} in {where}; {hint}")
        converted[name] = _convert(name, value, hints[name])
    return converted


def _convert(name: str, value: Any, hint: Any) -> Any:
    arms = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if value is None and type(None) in arms:
        return None
    kind = next(arm for arm in arms if arm is not type(None))
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {_shown(value)}.")
    if kind is float and type(value) in (int, str):  # YAML 1.1 reads 1e-3 as text
        try:
            return float(value)
        except (ValueError, OverflowError):
            raise ValueError(f"{name} must be a number, got {_shown(value)}.") from None
    if type(value) is not kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ValueError(f"{name} must be {words[kind]}, got {_shown(value)}.")
    if kind is str and value.encode("utf-8", "replace").decode() != value:
        raise ValueError(f"{name} must be text that can be written in UTF-8, got {_shown(value)}.")
    return value


def _shown(value: Any) -> str:
    """A value as Python writes it, cut if it is long.

    >>> _shown("text"), len(_shown("text" * 1000))
    ("'text'", 100)
    """
    short = reprlib.Repr()
    short.maxstring = short.maxlong = short.maxother = 100
    return short.repr(value)

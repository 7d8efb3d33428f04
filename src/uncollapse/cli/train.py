"""`uncollapse train NAME_OR_FILE`: train a recipe into a run folder that survives interruptions."""

from __future__ import annotations

import os
import signal
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from uncollapse.training.recipe import KEYS, Recipe, names

from .command import Command, UserError, option

OWN: list[tuple[str, Any, Any]] = [
    ("recipe", str, option(help="name of a recipe, YAML file, or run folder", positional=True, suggest=names)),
    ("out", Path | None, option(None, "run folder (default: runs/NAME)")),
    ("resume", bool, option(False, "continue from the last good checkpoint; start where there is none")),
    ("force", bool, option(False, "replace an earlier run in the folder")),
    ("seeds", int | None, option(None, "train seeds 0, 1, ... into OUT/seed-0, OUT/seed-1, ...")),
    ("print_config", bool, option(False, "print the resolved recipe and train nothing")),
]


def _options() -> type[Any]:
    """Our own options, then every key of a recipe; a key that is not given keeps the recipe's value."""
    hints = get_type_hints(Recipe)
    keys = [(name, hints[name] | None, option(None, key.metadata["help"])) for name, key in KEYS.items()]
    return make_dataclass("TrainOptions", [*OWN, *keys[1:]], frozen=True)  # a run is named by its recipe


TrainOptions = _options()


def run(settings: Any) -> int:
    """Resolve the recipe, train it, and report how training ended."""
    from uncollapse.training.recipe import resolve

    source = settings.recipe
    out = settings.out
    if out is None and (Path(source) / "recipe.yaml").is_file() and settings.resume:
        out = Path(source)
    keys = {name: getattr(settings, name) for name in KEYS if name != "name"}
    try:
        recipe = resolve(source, **{name: value for name, value in keys.items() if value is not None})
        recipe.for_processes(int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError as error:
        raise UserError(str(error)) from error  # the same in all processes, so that it is said once
    if settings.print_config:
        print(recipe.to_yaml(), end="")
        return 0
    if settings.seeds is not None and (settings.seeds < 1 or settings.seed is not None):
        raise UserError("--seeds must be at least 1, and takes the place of --seed.")
    out = Path("runs") / recipe.name if out is None else out
    runs = _train(recipe, out, settings)
    for ended in runs:
        _report(ended)
    return max((_exit_code(ended) for ended in runs), default=0)


def _train(recipe: Recipe, out: Path, settings: Any) -> list[Any]:
    from uncollapse.training.run import train, train_seeds

    how = {"resume": settings.resume, "force": settings.force}
    if settings.seeds is None:
        return [train(recipe, out, **how)]
    return train_seeds(recipe, out, settings.seeds, **how)


def _report(ended: Any) -> None:
    import sys

    from uncollapse.training.processes import first_process

    if not first_process():
        return
    if ended.status != "finished":
        print(f"uncollapse train: {ended.reason}", file=sys.stderr)
        return
    last = next(line for line in reversed(ended.metrics) if "eval_loss" in line)
    numbers = {
        "eval_loss": "loss",
        "eval_perplexity": "perplexity",
        "eval_bits_per_byte": "bits per byte",
        "eval_accuracy": "accuracy",
    }
    said = ", ".join(f"{word} {last[name]:.4f}" for name, word in numbers.items() if last.get(name) is not None)
    print(f"finished at step {last['step']} after {last['seconds']:.0f} s of training; held out: {said}")
    print(f"run folder: {ended.folder} (look into it with: uncollapse diagnose {ended.folder})")


def _exit_code(ended: Any) -> int:
    if ended.status == "finished":
        return 0
    if ended.status == "diverged":
        return 1
    return 128 + next((number for number in signal.Signals if number.name in ended.reason), signal.SIGINT)


COMMAND = Command(
    name="train",
    summary=f"Train a recipe. Recipes: {', '.join(names())}.",
    example="uncollapse train quickstart --rule hopfield --out runs/hopfield",
    options=TrainOptions,
    run=run,
    usage="uncollapse train RECIPE [--out OUT] [--resume] [--force] [--seeds N] [--print_config] [--KEY VALUE ...]",
)

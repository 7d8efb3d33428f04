"""`uncollapse recipes`: every recipe, with batch, memory and hours on one A100 by a cost model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from uncollapse.files import write
from uncollapse.training.recipe import RECIPES, Recipe, names
from uncollapse.training.size import training_size

from .command import Command, option
from .text_table import text_table

if TYPE_CHECKING:
    from uncollapse.bench.training_cost import TrainingCost

GPU = "a100"
HEAD = ("recipe", "batch", "GB", "hours", "what it is")
LINE = re.compile(r"^# One A100, by .*\n", flags=re.MULTILINE)
TABLE = re.compile(r"(<!-- table of `uncollapse recipes` -->\n\n).*?(\n<!-- end of the table -->)", flags=re.DOTALL)
DOCS = Path("docs") / "many-gpus.md"


@dataclass(frozen=True)
class RecipesOptions:
    """Options of `uncollapse recipes`."""

    write: bool = option(False, "in a checkout of uncollapse: put the figures into the recipes and the documentation")


@dataclass(frozen=True)
class RecipeCost:
    """What the model gives for a recipe; None where it depends on the model that the user gives."""

    recipe: Recipe
    updates: int | None = None
    cost: TrainingCost | None = None

    @property
    def gigabytes(self) -> str:
        return "-" if self.cost is None else f"{self.cost.bytes / 1e9:.1f}"

    @property
    def hours(self) -> str:
        if self.cost is None or self.updates is None:
            return "-"
        hours = self.updates * self.cost.seconds / 3600
        return "<0.1" if hours < 0.1 else f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def run(settings: RecipesOptions) -> int:
    """Print the table, or write it."""
    from uncollapse.bench.gpu_model import NOTICE

    estimates = [estimate(Recipe.find(name)) for name in names()]
    if settings.write:
        for made in estimates:
            path = RECIPES / f"{made.recipe.name}.yaml"
            write(path, with_line(path.read_text(encoding="utf-8"), made))
        docs = RECIPES.parents[2] / DOCS
        if docs.is_file():
            write(docs, with_table(docs.read_text(encoding="utf-8"), estimates))
        print(f"{len(estimates)} recipes in {RECIPES} are up to date.")
        return 0
    print(text_table([HEAD, *(row(made) for made in estimates)]))
    print(f"\nBatch of an update, memory and hours on one A100: {NOTICE}.")
    print("- : depends on the model that you give. uncollapse train NAME --print_config shows a recipe.")
    return 0


def estimate(recipe: Recipe) -> RecipeCost:
    """Memory and time of a recipe on one GPU."""
    from uncollapse.bench.gpu_model import GPUS
    from uncollapse.bench.stack_shape import StackShape
    from uncollapse.bench.training_cost import TrainingWork, training_cost

    size = training_size(recipe)
    if size is None:
        return RecipeCost(recipe)
    stack = StackShape(
        size.length,
        recipe.layers,
        size.sequences // size.micro_batches,
        recipe.heads,
        recipe.width // recipe.heads,
        recipe.task == "language",
    )
    work = TrainingWork(
        size.parameters,
        size.product_weights,
        stack,
        size.micro_batches,
        size.outputs,
        recipe.rule != "self_attention",
        recipe.precision == "bfloat16",
    )
    return RecipeCost(recipe, size.updates, training_cost(work, GPUS[GPU]))


def row(made: RecipeCost) -> tuple[str, str, str, str, str]:
    """A line of the table."""
    return (made.recipe.name, str(made.recipe.batch_size), made.gigabytes, made.hours, subject(made.recipe.name))


def subject(name: str) -> str:
    """The first words of the recipe's own comment."""
    first = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    return re.split(r"[,;:.](?: |$)| \((?=[^)]*\s)", first)[0]


def with_line(text: str, made: RecipeCost) -> str:
    """The text of a recipe file with the line of its figures before the first key."""
    if made.cost is None:
        line = f"# One A100, by a cost model: batch {made.recipe.batch_size}; the rest depends on the model you give.\n"
    else:
        line = (
            f"# One A100, by a cost model and not measured: batch {made.recipe.batch_size}, {made.gigabytes} GB, "
            f"{made.hours} hours (uncollapse recipes).\n"
        )
    bare = LINE.sub("", text)
    return re.sub(r"^(?=[a-z])", line, bare, count=1, flags=re.MULTILINE)


def with_table(text: str, estimates: list[RecipeCost]) -> str:
    """The text of a page with the table between its marks."""
    lines = [f"| {' | '.join(HEAD)} |", f"| {' | '.join(['---'] * len(HEAD))} |"]
    lines += [f"| `{name}` | {' | '.join(rest)} |" for name, *rest in map(row, estimates)]
    return TABLE.sub(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], text)


COMMAND = Command(
    name="recipes",
    summary="List the recipes with batch, memory and hours on one A100: a model from counted bytes and arithmetic, not "
    "a measurement.",
    example="uncollapse recipes",
    options=RecipesOptions,
    run=run,
)

"""The pages of the API reference: every public name, from its docstring."""

import inspect
from importlib import import_module
from pathlib import Path

import uncollapse as uc

ROOMS = {  # page -> title, what is in it
    "attention": ("Attention", "The mechanism: attention whose scores are inherited from layer to layer."),
    "models": ("Models", "Inherited scores in a model that you have."),
    "diagnosis": ("Diagnosis", "One pass of a model over data: where and how its attention collapses."),
    "watching": ("Watching", "The same numbers while a model trains."),
    "remedies": ("Remedies", "What is known to help."),
    "training": ("Training", "From a recipe to a run folder, and comparisons of runs."),
    "metrics": ("Metrics", "One definition each; pure functions of tensors."),
    "theory": ("Theory", "Closed forms, bounds and simulations of the two papers."),
}


def public_names() -> dict[str, list[str]]:
    """Room -> the full names of what is public in it."""
    found: dict[str, list[str]] = {room: [] for room in ROOMS}
    for name in uc.__all__:
        value = getattr(uc, name)
        if inspect.ismodule(value):
            inside = [inner for inner in value.__all__ if inner not in uc.__all__]  # those have their entry already
            found.setdefault(name, []).extend(f"uncollapse.{name}.{inner}" for inner in inside)
        elif not name.startswith("__"):
            room = value.__module__.split(".")[1]
            found.setdefault(room, []).append(f"uncollapse.{name}")
    return {room: sorted(names, key=str.lower) for room, names in found.items() if names}


def resolved(name: str) -> object:
    """The object of a full name."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def directive(name: str) -> str:
    """How autodoc describes it."""
    value = resolved(name)
    if inspect.isclass(value):
        return f".. autoclass:: {name}\n   :members:\n"
    if not callable(value):  # a constant has no docstring of its own
        return f".. py:data:: {name}\n   :type: {type(value).__name__}\n"
    return f".. autofunction:: {name}\n"


def first_line(name: str) -> str:
    """The first sentence of its docstring, for the list of all."""
    value = resolved(name)
    text = inspect.getdoc(value) if callable(value) else ""
    return (text or "").partition("\n")[0].replace("|", "\\|")


def write_reference(folder: Path) -> None:
    """One page for each room, and one with all names."""
    folder.mkdir()
    rooms = public_names()
    lines = ["# API reference", "", "`import uncollapse as uc`. Every public name, from its docstring.", ""]
    for room, names in rooms.items():
        title, line = ROOMS.get(room, (room.capitalize(), ""))
        blocks = "\n".join(directive(name) for name in names)
        page = f"# {title}\n\n{line}\n\n```{{eval-rst}}\n{blocks}```\n"
        (folder / f"{room}.md").write_text(page, encoding="utf-8")
        lines += [f"## [{title}]({room}.md)", "", line, "", "| name | |", "| --- | --- |"]
        lines += [f"| {{py:obj}}`{name}` | {first_line(name)} |" for name in names] + [""]
    tree = ["```{toctree}", ":hidden:", "", *rooms, "```", ""]
    (folder / "index.md").write_text("\n".join([*lines, *tree]), encoding="utf-8")

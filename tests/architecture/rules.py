"""The rules of the source tree. Each gives a list of sentences, one for each place that breaks it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.architecture.imports import Import, Tree, is_private, room

LIBRARY, STUDIES = "uncollapse", "uncollapse_studies"
# A room imports from levels before its own, never from its own level. `report` and `data` take and give tables and
# tensors, so they stand with the attention and the metrics.
LEVELS: Sequence[Sequence[str]] = (
    ("extras", "deprecation"),
    ("files", "statistics"),
    ("attention", "metrics", "report", "data"),
    ("theory", "models"),
    ("remedies",),
    ("diagnosis",),
    ("watching",),
    ("training", "bench"),
    ("cli",),
)
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}
# They only pass on names of the rooms, so they may import all of them.
FRONTS = {"": "the public names", "__main__": "python -m uncollapse", "huggingface": "names of version 0.1"}
# The other names of `uncollapse` are those of rooms; only the command line, which is above all rooms, may use them.
ROOT_NAMES = {"__version__"}
FORBIDDEN = {"Sight", "Fate", "Past", "Sum", "Deed", "Workshop", "Gathered", "Asked", "Weighed", "Place"}


def against_the_arrow(tree: Tree) -> list[str]:
    """Imports of the library from a room at the same level or above, or from the studies.

    An import inside a function or under TYPE_CHECKING counts: the room still cannot be understood without the other.
    """
    return [str(found) for found in tree.imports if _in_library(found.source) and not _along_the_arrow(found)]


def _along_the_arrow(found: Import) -> bool:
    if not _in_library(found.module):
        return False
    source, target = _name_of_room(found.source), _name_of_room(found.module)
    if source == target or source in FRONTS:
        return True
    if target == "":
        return source == "cli" or found.target.removeprefix(f"{LIBRARY}.") in ROOT_NAMES
    if source not in LEVEL_OF or target not in LEVEL_OF:
        return False
    return LEVEL_OF[target] < LEVEL_OF[source]


def without_a_level(tree: Tree) -> list[str]:
    """Rooms of the library that have no place on the arrow."""
    names = {_name_of_room(module) for module in tree.modules if _in_library(module)}
    return sorted(names - LEVEL_OF.keys() - FRONTS.keys())


def private_across_rooms(tree: Tree) -> list[str]:
    """Modules and names with a leading underscore that another room imports or reaches into."""
    return [
        str(found)
        for found in tree.imports
        if room(found.source) != room(found.module) and any(map(is_private, found.target.split(".")))
    ]


def file_cycles(tree: Tree) -> list[str]:
    """Groups of files that need each other to be imported.

    Imports inside functions and under TYPE_CHECKING do not count: they do not run while a file is being imported.
    """
    needs: dict[str, set[str]] = {name: set() for name in tree.modules}
    for found in tree.imports:
        if found.runs_on_import and found.module != found.source:
            needs[found.source].add(found.module)
    return [" <-> ".join(sorted(group)) for group in _cycles(needs)]


def _cycles(needs: Mapping[str, set[str]]) -> list[set[str]]:
    """The sets of two or more nodes that all reach each other."""
    reach = {node: _reached(needs, node) for node in needs}
    groups = {
        frozenset(other for other in reach[node] if node in reach[other]) for node in needs if node in reach[node]
    }
    return [set(group) for group in sorted(groups, key=sorted)]


def _reached(needs: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for node in needs[ahead.pop()] - seen:
            seen.add(node)
            ahead.append(node)
    return seen


def repeated_types(tree: Tree) -> list[str]:
    """Names of classes and type aliases that are defined more than once in the library and the studies together."""
    defined = defaultdict(list)
    for name, module, line in tree.types():
        defined[name].append(f"{module}:{line}")
    return [f"{name} is defined in {' and '.join(where)}" for name, where in defined.items() if len(where) > 1]


def forbidden_names(tree: Tree) -> list[str]:
    """Classes and type aliases with a name that does not say what they hold."""
    return [f"{module}:{line} defines {name}" for name, module, line in tree.types() if name.strip("_") in FORBIDDEN]


def _in_library(module: str) -> bool:
    return module.partition(".")[0] == LIBRARY


def _name_of_room(module: str) -> str:
    return room(module).partition(".")[2]

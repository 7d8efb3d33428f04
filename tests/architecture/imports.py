"""Reads the imports and the names of types in a source tree, without running any of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One name that one file imports, or reaches through a module that it imported."""

    source: str  # the dotted name of the importing module
    target: str  # the dotted name of a module of the tree, followed by the imported name if that is no module
    module: str  # the module part of `target`
    line: int
    runs_on_import: bool  # False inside a function and under TYPE_CHECKING

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


class Tree:
    """The Python files below some source folders, by dotted module name."""

    def __init__(self, *folders: Path) -> None:
        self.modules = {
            module_name(path.relative_to(folder)): ast.parse(path.read_text(encoding="utf-8"), str(path))
            for folder in folders
            for path in sorted(folder.rglob("*.py"))
        }
        self._packages = {
            module_name(path.relative_to(folder)) for folder in folders for path in folder.rglob("__init__.py")
        }
        self.imports = [found for name in self.modules for found in self._imports_of(name)]

    def types(self) -> Iterator[tuple[str, str, int]]:
        """The name, module and line of every class, nested ones as well, and of every type alias of a module."""
        for module, code in self.modules.items():
            for node in ast.walk(code):
                if isinstance(node, ast.ClassDef):
                    yield node.name, module, node.lineno
            for node in code.body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                for target in targets:
                    if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", target.id):
                        yield target.id, module, node.lineno

    def _imports_of(self, source: str) -> Iterator[Import]:
        code = self.modules[source]
        bound: dict[str, str] = {}  # the file's own name for something -> its dotted name in the tree
        for node, runs_on_import in _nodes(code, True):
            for dotted, alias in self._dotted_names(source, node):
                module = self._module_of(dotted)
                if module is not None:
                    # `import a.b` without `as` binds `a`
                    bound[alias] = alias if isinstance(node, ast.Import) and dotted.startswith(f"{alias}.") else dotted
                    yield Import(source, dotted, module, node.lineno, runs_on_import)
        for node in ast.walk(code):
            # `from uncollapse.attention import functional` and then `functional._checked(...)`
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                root, *attributes = _chain(node)
                if root in bound:
                    dotted = ".".join([bound[root], *attributes])
                    module = self._module_of(dotted)
                    assert module is not None
                    yield Import(source, dotted, module, node.lineno, runs_on_import=False)

    def _dotted_names(self, source: str, node: ast.AST) -> Iterator[tuple[str, str]]:
        """The dotted names that a statement or a call of `import_module` imports, and what the file calls them."""
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, name.asname or name.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            base = self._absolute(source, node.level, node.module or "")
            for name in node.names:
                yield f"{base}.{name.name}", name.asname or name.name
        elif isinstance(node, ast.Call) and _called(node) == "import_module" and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                level = len(argument.value) - len(argument.value.lstrip("."))
                yield self._absolute(source, level, argument.value[level:]), ""

    def _absolute(self, source: str, level: int, name: str) -> str:
        if level == 0:
            return name
        parts = source.split(".")
        up = level - 1 if source in self._packages else level
        return ".".join([*parts[: len(parts) - up], *([name] if name else [])])

    def _module_of(self, dotted: str) -> str | None:
        """The longest beginning of a dotted name that is a module of the tree; None for other people's packages."""
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            if ".".join(parts[:length]) in self.modules:
                return ".".join(parts[:length])
        return None


def module_name(path: Path) -> str:
    """`uncollapse/attention/__init__.py` is `uncollapse.attention`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """The room of a module: `uncollapse.attention` of `uncollapse.attention._native.loader`."""
    return ".".join(module.split(".")[:2])


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _nodes(node: ast.AST, runs_on_import: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes below one, each with whether it runs when the file is imported."""
    for child in ast.iter_child_nodes(node):
        yield child, runs_on_import
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _nodes(child, False)
        elif isinstance(child, ast.If) and _names_type_checking(child.test):
            for statement in child.body:
                yield statement, False
                yield from _nodes(statement, False)
            for statement in child.orelse:
                yield statement, runs_on_import
                yield from _nodes(statement, runs_on_import)
        else:
            yield from _nodes(child, runs_on_import)


def _names_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


def _called(node: ast.Call) -> str | None:
    return getattr(node.func, "id", None) or getattr(node.func, "attr", None)


def _chain(node: ast.expr) -> list[str]:
    """`["uc", "attention", "_pool"]` of the expression `uc.attention._pool`; `[""]` if it starts with no name."""
    if isinstance(node, ast.Attribute):
        return [*_chain(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]

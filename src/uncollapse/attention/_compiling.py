"""What torch.compile has to know of our functions, said without importing the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def constant_result(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function whose result torch.compile may take as a constant.

    The mark is the one that `torch.compiler.assume_constant_result` makes. That decorator imports torch._dynamo first,
    which takes longer than all the rest of a first call of `hopfield_attention`.
    """
    marked: Any = function
    marked._dynamo_marked_constant = True
    return function

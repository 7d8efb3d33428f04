from __future__ import annotations
from typing import Any
from torch import Tensor
def kernels(q: Tensor, mask: Tensor | None) -> Any:
    return None
def loaded() -> Any:
    raise RuntimeError

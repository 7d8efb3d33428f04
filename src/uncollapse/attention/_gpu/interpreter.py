"""Repairs of Triton's interpreter, with which the kernels run on CPU tensors. Imported only if TRITON_INTERPRET=1.

As it is (Triton 3.7), it multiplies the bits of bfloat16 numbers as if they were integers, cuts digits off where it
should round to bfloat16, and wraps the whole language once more whenever a kernel calls a function, which takes longer
than the arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_builder = interpreter.InterpreterBuilder
_dot, _cast = _builder.create_dot, _builder.cast_impl
_prepare = interpreter._patch_lang


class _AllLanguage:
    """In place of a kernel, of which the interpreter would prepare only those modules of the language that it names."""

    __globals__ = {"tl": tl, "core": tl.core}  # noqa: RUF012


def _call(self: Any, *arguments: Any, **options: Any) -> Any:
    """A function called by a kernel; the kernel's launch has prepared the language already."""
    return self.rewrite()(*arguments, **options)


def _product(self: Any, a: Any, b: Any, added: Any, *more: Any) -> Any:
    return _dot(self, _wide(a), _wide(b), added, *more)


def _converted(self: Any, source: Any, target: Any) -> Any:
    source = _wide(source)
    if target.scalar != tl.bfloat16:
        return _cast(self, source, target)
    return interpreter.TensorHandle(_rounded(source.data.astype(np.float32)), tl.bfloat16)


def _wide(handle: Any) -> Any:
    """A bfloat16 tensor, which the interpreter holds as its bits, in float32; any other as it is."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _rounded(numbers: Any) -> Any:
    """The bits of the nearest bfloat16 numbers, ties to even."""
    bits = np.ascontiguousarray(numbers).view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), nearest)


def repair() -> None:
    """Put the repairs in place, once for the process."""
    interpreter.InterpretedFunction.__call__ = _call
    interpreter._patch_lang = lambda kernel: _prepare(_AllLanguage)
    _builder.create_dot, _builder.cast_impl = _product, _converted
    for name in ("create_fp_ext", "create_fp_trunc"):
        setattr(_builder, name, lambda self, source, target: self.cast_impl(source, target))

"""Bugs that have been made in kernels like these, each as a change of the source; the tests must notice every one."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from uncollapse.attention import _gpu
from uncollapse.attention._gpu import launch

FOLDER = Path(launch.__file__).parent
FILES = ("tile_functions.py", "carried_kernels.py", "stacked_kernels.py", "launch.py")


@dataclass(frozen=True)
class Bug:
    """A change of the source of the kernels; `old` stands there once, or `count` times."""

    name: str
    file: str
    old: str
    new: str
    count: int = 1

    def __str__(self) -> str:
        return self.name


TILES, CARRIED, STACKED, LAUNCH = FILES
BUGS = [
    Bug("causal sees one key less", TILES, "columns[None, :] <= rows[:, None], scores", "columns[None, :] < rows[:, None], scores"),
    Bug("the mask is forgotten in the softmax", TILES, 'if MASK != "none":', 'if MASK == "forgotten":'),
    Bug("keys beyond the last are seen", TILES, "    if not EVEN:\n        scores = tl.where((columns < keys)[None, :]", "    if EVEN:\n        scores = tl.where((columns < keys)[None, :]"),
    Bug("masked lanes are undefined", TILES, "block = tl.load(where, mask=(rows < limit)[:, None] & (sizes < SIZE)[None, :], other=0.0)", "block = tl.load(where, mask=(rows < limit)[:, None] & (sizes < SIZE)[None, :])"),
    Bug("rows beyond the last are read", TILES, "mask=(rows < limit)[:, None] & (sizes < SIZE)[None, :], other=0.0", "mask=(rows < limit + 1)[:, None] & (sizes < SIZE)[None, :], other=0.0"),
    Bug("padded head sizes are read", TILES, "block = tl.load(where, mask=(rows < limit)[:, None] & (sizes < SIZE)[None, :], other=0.0)", "block = tl.load(where, mask=(rows < limit)[:, None] & (sizes < BLOCK)[None, :], other=0.0)"),
    Bug("a strip is wider than the matrix", TILES, "width = tl.minimum((strip + 1) * TILE, queries)", "width = (strip + 1) * TILE"),
    Bug("an offset counts whole strips only", TILES, "+ (first - strip * TILE) * width", "+ (first - strip * TILE) * 0"),
    Bug("alignment is promised and not there", LAUNCH, '"ALIGNED": keys % 16 == 0', '"ALIGNED": True'),
    Bug("tiles are said to cut evenly", LAUNCH, "queries % tiles.rows == 0 and keys % tiles.columns == 0", "queries % tiles.rows == 0 or keys % tiles.columns == 0"),
    Bug("heads are taken in turn by groups", TILES, "query_head // (heads // groups)", "query_head % groups"),
    Bug("offsets of heads in 32 bits", TILES, "return buffer + head.to(tl.int64) * per_head", "return buffer + head * per_head"),
    Bug("sums are not shrunk with the largest score", TILES, "shrink = tl.exp2((largest - shift) * LOG2E)", "shrink = tl.exp2((new_largest - shift) * LOG2E)"),
    Bug("no logarithm in the log-sum-exp", TILES, "largest + tl.log(divisor)", "largest + divisor"),
    Bug("a row without keys divides by zero", TILES, "divisor = tl.where(total == 0.0, 1.0, total)", "divisor = total"),
    Bug("another hash in the dropout", TILES, "x = x ^ (x >> 15)", "x = x ^ (x >> 14)"),
    Bug("float16 overflows", TILES, "scores = tl.where(scores == float(\"-inf\"), scores, bounded)", "scores = scores + 0.0 * bounded"),
    Bug("keep is lost", CARRIED, "scores += head_keep * load_scores(", "scores += load_scores("),
    Bug("the old scores are read with the new stride", CARRIED, "within[:, None] * old_width + columns", "within[:, None] * width + columns"),
    Bug("the last tile of keys is skipped", CARRIED, "for start in range(0, width, COLUMNS):", "for start in range(0, width - COLUMNS, COLUMNS):"),
    Bug("scores are stored before -inf is in them", CARRIED, "        if CAUSAL:\n            scores = hide_future(scores, rows, columns)\n        stored = as_stored(scores, hidden.dtype.element_ty)", "        stored = as_stored(scores, hidden.dtype.element_ty)\n        if CAUSAL:\n            scores = hide_future(scores, rows, columns)"),
    Bug("the gradient from above is lost", CARRIED, "grad_scores += load_scores(", "grad_scores += 0.0 * load_scores("),
    Bug("the gradient is passed on without keep", CARRIED, "passed_on = (grad_scores * head_factor)", "passed_on = (grad_scores * 1.0)"),
    Bug("the backward pass starts a strip late", CARRIED, "lowest = block * COLUMNS // TILE * TILE", "lowest = (block * COLUMNS // TILE + (block > 0)) * TILE"),
    Bug("dropped weights get a gradient", CARRIED, "                grad_weights *= factors\n", ""),
    Bug("dK of one head of the group only", CARRIED, "for member in range(0, heads // groups):", "for member in range(0, 1):"),
    Bug("two programs write the same rows", CARRIED, "first = block * ROWS\n    within", "first = (block // 2) * ROWS\n    within"),
    Bug("dQ reads one key too many", CARRIED, "(columns < end)[None, :]", "(columns < end + 1)[None, :]"),
    Bug("a learned keep counts what is never seen", CARRIED, "before = tl.where(columns[None, :] <= rows[:, None], before, 0.0)", "before = before + 0.0"),
    Bug("the weight of a term is lost", STACKED, "scores += tl.load(weights) * tl.dot(", "scores += tl.dot("),
    Bug("the next term is not reached", STACKED, "        k_head += k_strides[0]\n", ""),
    Bug("the scratch of the wrong head", STACKED, "at_head(gradient, local_group * (heads // groups) + member, per_head)", "at_head(gradient, local_group + member, per_head)", 2),
    Bug("dQ of a term without its weight", STACKED, "product * weight, rows", "product, rows"),
    Bug("the scratch starts at the first group always", LAUNCH, "_term_gradients(q, k, weights, gradient, dq, dk, dweights, first, count, settings)", "_term_gradients(q, k, weights, gradient, dq, dk, dweights, 0, count, settings)"),
]  # fmt: skip


@contextmanager
def planted(bug: Bug | None, folder: Path) -> Any:
    """The kernels with a bug in them, or copied without one; a package of its own, since Triton reads source files."""
    package = folder / f"kernels_{abs(hash(bug))}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for file in FILES:
        text = (FOLDER / file).read_text()
        if bug is not None and bug.file == file:
            assert text.count(bug.old) == bug.count, f"{bug.old!r} stands {text.count(bug.old)} times in {file}"
            text = text.replace(bug.old, bug.new)
        text = text.replace("from ..", "from uncollapse.attention.")
        for module in ("configs", "interpreter"):
            text = text.replace(f"from .{module}", f"from uncollapse.attention._gpu.{module}")
        (package / file).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(_gpu, "launch", importlib.import_module(f"{package.name}.launch"))
        yield importlib.import_module(f"{package.name}.tile_functions")
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]

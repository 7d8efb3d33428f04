"""check(): is a remedy running? Numbers for each layer, and whether it survives saving, a cache and a packed batch."""

from __future__ import annotations

import copy
import inspect
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from uncollapse.models.convert import find_transformers_model
from uncollapse.models.editing import edited_model
from uncollapse.models.plain import RunBatch, on_device_of, quiet_evaluation, run_batch

from .applying import restore
from .remedy import Remedy, applied
from .saved import _rebuild, from_pretrained, load, save
from .seen import LayerProof, distance, output_of, rounding, see
from .stock import StockRemedy, stock_remedies

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Proof:
    """What `check` measured; print it."""

    rows: list[LayerProof]
    survival: dict[str, float | None] = field(default_factory=dict)  # largest difference of outputs; None: not there
    stock: list[StockRemedy] = field(default_factory=list)  # remedies that the model came with
    notes: dict[str, str] = field(default_factory=dict)
    allowed: float = 1e-3

    @property
    def acts(self) -> bool:
        """Whether every remedy acts in every layer, and survives."""
        survives = all(value is None or value <= self.allowed for value in self.survival.values())
        return all(row.acts for row in self.rows) and survives and all(one.acts for one in self.stock)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each remedy and layer: effect, error, gradient, acts, note."""
        import pandas as pd

        columns = ("remedy", "layer", "effect", "error", "gradient", "acts", "note")
        return pd.DataFrame([{key: getattr(row, key) for key in columns} for row in self.rows], columns=columns)

    def failures(self) -> list[str]:
        """What does not act, a sentence each."""
        found = [f"{row.remedy} {_what_is_wrong(row)}" for row in self.rows if not row.acts]
        for how, value in self.survival.items():
            if value is not None and not value <= self.allowed:
                found.append(f"{how}: the output differs by {value:.2g} of its largest entry")
        return found

    def __str__(self) -> str:
        lines = [] if not self.rows else self.table.to_string(index=False, float_format="{:.3g}".format).splitlines()
        for how, value in self.survival.items():
            lines.append(f"{how}: {'not there' if value is None else f'differs by {value:.2g}'}")
        lines += [str(one) for one in self.stock]
        lines += [f"{name}: {note}" for name, note in self.notes.items()]
        return "\n".join(lines or ["no remedy was found."])


def _what_is_wrong(row: LayerProof) -> str:
    if row.error > row.allowed:
        return f"is {row.error:.2g} away from its formula in layer {row.layer}"
    if row.does_something:
        return f"has parameters that get no gradient in layer {row.layer}"
    return f"does nothing in layer {row.layer}" + (f": {row.note}" if row.note else "")


def check(model: nn.Module, batch: Any, *, run: RunBatch | None = None, saving: bool = True) -> Proof:
    """Prove that the remedies of a model run: what each changes in each layer, by one forward and backward pass.

    `effect` is how far the result of a layer is from the same without the remedy, `error` how far from the formula,
    computed again in float64 with the whole matrix of weights, each as a part of the largest entry; `gradient` is the
    norm of the gradient of the remedy's parameters. The model is also saved and loaded, run with a cache, and run on a
    packed batch, where it has these. Remedies that the model came with (QK-norm of Qwen3, the cap of Gemma 2, the
    sinks of gpt-oss) are found and measured as well.

    Args:
        model: a model, with remedies or stock.
        batch: a dict for keywords, a tuple for positions, a tensor for one argument.
        run: run(model, batch) in place of that call.
        saving: whether to write the model to a temporary folder and load it again.

    Returns:
        A `Proof`. A remedy that was applied and does nothing, or something else than its formula, raises a ValueError.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> x = torch.randn(1, 3, 8)
    >>> proof = uc.remedies.check(uc.apply(model, "sink", example=x), x)
    >>> proof.acts, list(proof.table["layer"])
    (True, [1, 2])
    """
    call = run or run_batch
    batch = on_device_of(model, batch)
    remedies = applied(model)
    seen = see(model, batch, call)
    shared = edited_model(model)
    proof = Proof(
        [row for remedy in remedies for row in remedy.prove(model, seen)],
        stock=stock_remedies(model, batch, call),
        notes={} if shared is None else dict(shared.notes),
        allowed=rounding(seen.output.dtype),
    )
    _refuse(proof, type(model).__name__)
    if remedies:
        proof.survival = _survival(model, batch, call, remedies, saving, proof.allowed)
        _refuse(proof, type(model).__name__)
    return proof


def _refuse(proof: Proof, name: str) -> None:
    failures = proof.failures()
    if failures:
        more = f" (and {len(failures) - 3} more)" if len(failures) > 3 else ""
        raise ValueError(f"the remedies of this {name} do not act as asked: {'; '.join(failures[:3])}{more}.")


def _survival(
    model: nn.Module, batch: Any, run: RunBatch, remedies: list[Remedy], saving: bool, allowed: float
) -> dict[str, float | None]:
    """The largest difference of outputs after saving and loading, with a cache, and in a packed batch."""
    found: dict[str, float | None] = {}
    with quiet_evaluation(model):
        wanted = output_of(run(model, batch))
        if saving:
            found["saved and loaded"] = distance(_output_of_saved(model, batch, run, remedies), wanted)
        inner = find_transformers_model(model)
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if inner is not None and inner.can_generate() and isinstance(ids, Tensor) and min(ids.shape) > 1:
            for how, measure in (("with a cache", _cache_distance), ("packed", _packed_distance)):
                found[how] = measure(inner, ids)
                if (found[how] or 0.0) > allowed:  # does the stock model do it?
                    stock = measure(restore(copy.deepcopy(inner)), ids)
                    found[how] = found[how] if stock is not None and stock <= allowed else None
    return found


def _output_of_saved(model: nn.Module, batch: Any, run: RunBatch, remedies: list[Remedy]) -> Tensor:
    inner = find_transformers_model(model)
    with tempfile.TemporaryDirectory() as folder:
        if inner is None:
            stock = restore(copy.deepcopy(model))
            loaded: nn.Module = load(lambda: stock, save(model, Path(folder) / "model"))
        elif inner is model:
            inner.save_pretrained(folder)
            loaded = from_pretrained(folder, type(inner), dtype=inner.dtype)
            nn.Module.to(loaded, inner.device)
        else:
            loaded = _rebuilt(model, [remedy for remedy in remedies if remedy.travels])
        return output_of(run(loaded.eval(), batch))


def _rebuilt(model: nn.Module, remedies: list[Remedy]) -> nn.Module:
    """A copy of a wrapped model, which has no file of its own; remedies are made anew and filled from its weights."""
    twin = copy.deepcopy(model)
    for remedy in reversed(remedies):
        remedy.remove(twin)
    _rebuild(twin, json.loads(json.dumps([remedy.to_data() for remedy in remedies])))
    twin.load_state_dict(model.state_dict())
    return twin


def _cache_distance(model: Any, ids: Tensor) -> float | None:
    """The last tokens after a cache of the others, beside all at once."""
    whole = output_of(model(input_ids=ids))
    half = ids.shape[1] // 2
    first = model(input_ids=ids[:, :half], use_cache=True)
    if getattr(first, "past_key_values", None) is None:
        return None
    rest = output_of(model(input_ids=ids[:, half:], past_key_values=first.past_key_values, use_cache=True))
    return distance(rest, whole[:, half:])


def _packed_distance(model: Any, ids: Tensor) -> float | None:
    """Two sequences in one row, told apart by their positions, beside two rows."""
    rows = ids[:2]
    apart = output_of(model(input_ids=rows, use_cache=False))
    positions = torch.arange(rows.shape[1], device=ids.device).repeat(len(rows)).unsqueeze(0)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return None
    packed = output_of(model(input_ids=rows.reshape(1, -1), position_ids=positions, use_cache=False))
    return distance(packed.view_as(apart), apart)

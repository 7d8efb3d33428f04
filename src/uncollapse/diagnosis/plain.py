"""The pass over a plain PyTorch module: a mode over each attention module reports its calls; the model runs its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from uncollapse.attention import HiddenState
from uncollapse.attention.masking import HIDING, Masking
from uncollapse.attention.scores import InheritedScores, QueryKeyScores
from uncollapse.models.editing import edited_model, known_plan
from uncollapse.models.learned import learned_of
from uncollapse.models.plain import (
    SUMS,
    Argument,
    AttentionCall,
    AttentionCalls,
    LayerPlan,
    Paths,
    Plan,
    RunBatch,
    WeightRows,
    conversion_of,
    find,
    first_tensor,
    multihead_call,
    on_device_of,
    quiet_evaluation,
    run_batch,
    unflattened,
    without_modes,
)

from .attention_rows import in_softmax
from .exclusive import exclusive
from .observer import Observer
from .result import Diagnosis


def diagnose_plain(
    model: nn.Module,
    batches: Any,
    run: RunBatch | None,
    layers: Paths,
    blocks: Paths,
    observer: Observer,
    progress: bool,
) -> Diagnosis:
    """Measure a module that is no transformers model; the arguments are those of `diagnose`."""
    given = _each(batches, type(model).__name__)
    example = next(given, None)
    if example is None:
        raise ValueError("no batch was given: the iterable is empty.")
    with observer, exclusive(model):
        plan = known_plan(model) or find(model, example, run, layers, blocks)[0]
        numbered = numbered_layers(plan, observer)
        measure_weights(model, numbered, observer)
        _read_coefficients(model, numbered, observer)
        view = PlainView(observer, numbered)
        quiet = not (progress and sys.stderr.isatty())
        with quiet_evaluation(model), attention_observed(model, view):
            for batch in tqdm(chain([example], given), desc="diagnose", unit="batch", disable=quiet):
                view.start(batch)
                (run or run_batch)(model, on_device_of(model, batch))
                view.finish()
        _explain_gaps(plan, observer)
    return observer.diagnosis


def _read_coefficients(model: nn.Module, layers: dict[int, LayerPlan], observer: Observer) -> None:
    """The learned coefficients of a converted module: which layers and heads inherit scores, and how much."""
    for n, layer in layers.items():
        learned = learned_of(model.get_submodule(layer.name))
        if learned is not None:
            observer.coefficients(n, learned.inherited_share(), learned.visible_share())


def numbered_layers(plan: Plan, observer: Observer) -> dict[int, LayerPlan]:
    """The layers of a plan by their numbers; the observer gets their names, and what is left out."""
    numbered = dict(enumerate((layer for stack in plan.stacks for layer in stack.layers), start=1))
    observer.names = {n: layer.name for n, layer in numbered.items()}
    observer.notes += [f"{path or 'The model'}: left out; {why}." for path, why in plan.left_out]
    return numbered


def _each(batches: Any, name: str) -> Iterator[Any]:
    """The batches one by one: a dict, a tuple or a tensor is one batch, another iterable holds several."""
    if batches is None:
        raise ValueError(f"{name} is no transformers model, so no sample is known for it: give batches.")
    if isinstance(batches, Mapping | tuple | Tensor):
        return iter([batches])
    if not isinstance(batches, Iterable):
        raise ValueError(f"batches must be a batch or an iterable of batches, got {type(batches).__name__}.")
    return iter(batches)


class PlainView:
    """State that the hooks share during a pass."""

    def __init__(self, observer: Observer, layers: dict[int, LayerPlan]) -> None:
        self.observer, self.layers = observer, layers
        self.numbers = {layer: n for n, layer in layers.items()}
        self.real: Tensor | None = None
        self.last_sum: Tensor | None = None
        self.waiting: tuple[int, LayerPlan, torch.Size] | None = (
            None  # a layer without a block, whose tokens are to come
        )

    def start(self, batch: Any) -> None:
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        self.real = mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None
        self.last_sum = self.waiting = None

    def tokens(self, n: int, layer: LayerPlan, x: Tensor) -> None:
        """The residual stream after layer n."""
        with without_modes():
            if x.dim() == 3 and layer.tokens_first:
                x = x.transpose(0, 1)
            if x.dim() == 4:
                x = x.flatten(1, 2)  # rows and columns of an image
            if x.dim() == 3:
                self.observer.tokens(n, x, self._real_for(x.shape[1]))

    def entering(self, n: int, layer: LayerPlan, x: Tensor) -> None:
        """What enters a layer without a block: what left the layer before it."""
        if self.waiting is not None:
            self.tokens(self.waiting[0], self.waiting[1], x)
        self.waiting = (n, layer, x.shape)

    def finish(self) -> None:
        """After the forward: the last layer's tokens are the last sum."""
        if self.waiting is not None and self.last_sum is not None and self.last_sum.shape == self.waiting[2]:
            self.tokens(self.waiting[0], self.waiting[1], self.last_sum)

    def scores(self, layer: LayerPlan, source: Any, masking: Masking) -> None:
        masking.real = self._real_for(source.shape[2])
        self.observer.scores(self.numbers[layer], source, masking)

    @torch.no_grad()
    def call(self, layer: LayerPlan, given: AttentionCall) -> None:
        """An attention call, also one with a cap or a sink."""
        with without_modes():
            call = given.with_mask()
            q, k, mask = _unfolded(layer, call.query), _unfolded(layer, call.key), call.attn_mask
            mask = _unfolded(layer, mask) if mask is not None and layer.folded else mask
            scores, masking = QueryKeyScores(q.contiguous(), k, call.scale), Masking.of(mask, call.is_causal, None)
            self.scores(layer, *in_softmax(scores, masking, call.cap, call.sink))

    def inherited(self, layer: LayerPlan, state: HiddenState, mask: Tensor | None, causal: bool) -> None:
        """In a module that inherits scores."""
        with without_modes():
            self.scores(layer, InheritedScores(state), Masking.of(mask, causal, None))

    def _real_for(self, length: int) -> Tensor | None:
        return self.real if self.real is not None and self.real.shape[1] == length else None


class _WrittenOut:
    """Scores that a model computed itself, as they enter its softmax."""

    def __init__(self, scores: Tensor) -> None:
        batch, heads, queries, keys = scores.shape
        self.shape, self.device = (batch, heads, queries, keys), scores.device
        self.values = scores.detach()

    def rows(self, start: int, stop: int, keys: int) -> Tensor:
        return self.values[:, :, start:stop, :keys].float().clone()

    def part(self, first: int, last: int) -> _WrittenOut:
        return _WrittenOut(self.values[first:last])


class _Reported(AttentionCalls):
    """Over one attention module: reports its attention call, and lets it run as it is."""

    def __init__(self, view: PlainView, layer: LayerPlan) -> None:
        super().__init__()
        self.view, self.layer, self.seen = view, layer, False

    def _report(self, given: AttentionCall) -> None:
        if not self.seen and self.layer.kind != "product":
            self.seen = True
            self.view.call(self.layer, given)

    def sdpa(self, call: AttentionCall) -> Tensor:
        self._report(call)
        return super().sdpa(call)

    def hopfield(self, *args: Any, **kwargs: Any) -> tuple[Tensor, HiddenState]:
        out, state = super().hopfield(*args, **kwargs)
        if not self.seen:
            self.seen = True
            self.view.inherited(self.layer, state, kwargs.get("attn_mask"), kwargs.get("is_causal", False))
        return out, state

    def multihead(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        if not self.seen:
            with torch.no_grad():
                given = multihead_call(*args, **kwargs)
            self._report(given.call)
        return super().multihead(*args, **kwargs)

    def softmax(self, scores: Tensor) -> None:
        if self.seen or self.layer.kind != "product" or scores.dim() not in (3, 4):
            return
        self.seen = True
        with without_modes(), torch.no_grad():
            values = _unfolded(self.layer, scores)
            hidden = values <= HIDING
            masking = Masking(visible=~hidden) if bool(hidden.any()) else Masking()
            self.view.scores(self.layer, _WrittenOut(values.masked_fill(hidden, 0.0)), masking)


def _unfolded(layer: LayerPlan, tensor: Tensor) -> Tensor:
    """With heads that are folded into the batch apart from it."""
    return unflattened(tensor, 0, (-1, layer.heads)) if tensor.dim() == 3 else tensor


class _LastSum(TorchFunctionMode):
    """Remembers the last sum of two activations: the residual stream of a model whose blocks are no modules."""

    def __init__(self, view: PlainView) -> None:
        super().__init__()
        self.view = view

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        terms = [t for t in args if isinstance(t, Tensor)]
        if function in SUMS and len(terms) == 2 and terms[0].shape == terms[1].shape:
            waiting = self.view.waiting
            if waiting is not None and result.shape == waiting[2]:
                self.view.last_sum = result
        return result


@contextmanager
def attention_observed(model: nn.Module, view: PlainView) -> Iterator[None]:
    """Hooks that report to the view while the model runs as it is; afterwards they are gone."""
    conversion, edited = conversion_of(model), edited_model(model)
    handles: list[Any] = []
    open_modes: dict[LayerPlan, _Reported] = {}
    inheriting = set() if conversion is None else {layer for stack in conversion.plan.own for layer in stack.layers}

    def enter(layer: LayerPlan) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            open_modes[layer] = _Reported(view, layer)
            open_modes[layer].__enter__()  # type: ignore[no-untyped-call]

        return hook

    def leave(layer: LayerPlan) -> Any:
        def hook(module: nn.Module, args: Any, result: Any) -> None:
            open_modes.pop(layer).__exit__(None, None, None)  # type: ignore[no-untyped-call]

        return hook

    with ExitStack() as stack:
        for n, layer in view.layers.items():
            if layer not in inheriting or layer.kind == "product":
                attention = model.get_submodule(layer.name)
                handles.append(attention.register_forward_pre_hook(enter(layer), prepend=True))
                handles.append(attention.register_forward_hook(leave(layer), always_call=True))
            if not layer.cross:
                handles += _stream_hooks(model, view, n, layer)
        for state in () if conversion is None else conversion.stacks:
            state.observe = view.inherited
        if edited is not None:
            edited.report = view.call
        if any(layer.block is None and not layer.cross for layer in view.layers.values()):
            stack.enter_context(_LastSum(view))
        try:
            yield
        finally:
            for mode in reversed(open_modes.values()):  # Ctrl-C inside an attention module: its hook was not called
                mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            for handle in handles:
                handle.remove()
            for state in () if conversion is None else conversion.stacks:
                state.observe = None
            if edited is not None:
                edited.report = None


def _stream_hooks(model: nn.Module, view: PlainView, n: int, layer: LayerPlan) -> list[Any]:
    if layer.block is not None:

        def left(module: nn.Module, args: Any, result: Any) -> None:
            x = first_tensor(result)
            if x is not None:
                view.tokens(n, layer, x)

        return [model.get_submodule(layer.block).register_forward_hook(left)]
    if layer.stream is None:
        return []
    argument: Argument = layer.stream

    def entered(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key = argument.key
        x = args[key] if isinstance(key, int) and key < len(args) else kwargs.get(str(key))
        if isinstance(x, Tensor):
            view.entering(n, layer, x)

    return [model.get_submodule(argument.module).register_forward_pre_hook(entered, with_kwargs=True)]


def measure_weights(model: nn.Module, layers: dict[int, LayerPlan], observer: Observer) -> None:
    """The QK eigenspectrum, of the layers whose W_Q and W_K were found."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for n, layer in layers.items():
        if layer.cross:
            continue
        if layer.query is None or layer.key is None or parameters[layer.query.parameter].device.type == "meta":
            observer.missing.setdefault(
                "spectrum",
                f"the query and key weights of {layer.name} were not found: more than a view and a factor lies between "
                "a projection and the product, or its weights are not in memory.",
            )
            continue
        query, key = (head_weights(parameters, rows) for rows in (layer.query, layer.key))
        scale = layer.query.size**-0.5 if layer.scale is None else layer.scale
        observer.weights(n, query, key.repeat_interleave(len(query) // len(key), dim=0), scale)


def head_weights(parameters: dict[str, nn.Parameter], rows: WeightRows) -> Tensor:
    """One matrix per head, (H, D, M)."""
    weight: Tensor = parameters[rows.parameter].detach()
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # sharded by FSDP2
    weight = weight.T if rows.columns else weight
    index = torch.tensor(rows.starts)[:, None] + rows.step * torch.arange(rows.size)
    return weight[index.to(weight.device)]


def _explain_gaps(plan: Plan, observer: Observer) -> None:
    """Say why a part of the report is empty."""
    if not observer.token_statistics:
        lost = next((layer.name for stack in plan.own for layer in stack.layers), plan.model)
        observer.missing["tokens"] = (
            f"no module gives back the residual stream around {lost}, and no sum was seen; name the blocks "
            "with blocks=."
        )
    elif not any(s.sequences or s.broken for s in observer.token_statistics.values()):
        raise ValueError("no sequence has two real tokens: nothing can be measured on these batches.")

"""The hooks with which the attention modules of a plain PyTorch module inherit scores from each other.

While an attention module runs, a mode hands its attention call to `hopfield_attention`, with the state of the layer
before. The state waits in the stack's record of the pass, by thread; layer 1 starts a pass. The visible skip takes two
hooks: one keeps the tokens that alpha multiplies, the other mixes them into the output of W_O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from uncollapse.attention import HiddenState, hopfield_attention
from uncollapse.attention.reference import ReferenceState, masked, softmax_of_visible
from uncollapse.attention.rule import ScoreRule
from uncollapse.attention.state import score_dtype

from . import _recomputation as recomputation
from . import _torch_internals as internals
from ._attention_call import AttentionCall
from ._calls import AttentionCalls, multihead_call
from ._finding import tokens_agree
from ._module_hooks import remove_hook, running_thread
from ._plan import LayerPlan
from ._settings import ConversionSettings
from .learned import learned_of

LAYER, SOURCES, OUTPUT = "_uncollapse_layer", "_uncollapse_sources", "_uncollapse_output"  # attributes of modules
Observe = Callable[[LayerPlan, HiddenState, Tensor | None, bool], None]


class StackState:
    """What the layers of one stack share: the settings, and the pass that is under way in each thread."""

    def __init__(self, settings: ConversionSettings, depth: int) -> None:
        self.settings, self.depth = settings, depth
        self.passes: dict[int, tuple[int, HiddenState]] = {}  # by thread: the last layer, and its state
        self.observe: Observe | None = None  # sees every state

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"passes": {}, "observe": None}  # a running pass does not belong into a copy


class PlainLayerMark:
    """What the hooks of one layer share."""

    def __init__(self, n: int, plan: LayerPlan, stack: StackState) -> None:
        self.n, self.plan, self.stack = n, plan, stack
        self.modes: dict[int, list[InheritingCalls]] = {}
        self.tokens: dict[int, Tensor] = {}  # x or y, until the output of W_O
        self.entered: dict[int, tuple[int, ...]] = {}  # the shape of x
        self.alphas: dict[int, float | Tensor] = {}  # the weight of the tokens
        self.output: tuple[nn.Module, str] | None = None  # the module that W_O is a child of, and its name there
        self.mixing: nn.Module | None = None  # W_O as it was when its hook was added

    def follow_output(self) -> None:
        """Put the hook of the visible skip on W_O, again if an adapter has replaced the module."""
        if self.output is None:
            return
        current = self.output[0].get_submodule(self.output[1])
        if current is not self.mixing:
            self.release_output()
            setattr(current, OUTPUT, self)
            current.register_forward_hook(mix)
            self.mixing = current

    def release_output(self) -> None:
        """Remove the hook of the visible skip."""
        if self.mixing is not None:
            remove_hook(self.mixing, mix)
            delattr(self.mixing, OUTPUT)
            self.mixing = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"modes": {}, "tokens": {}, "entered": {}, "alphas": {}}

    @property
    def name(self) -> str:
        return self.plan.name

    def coefficients(self, attention: nn.Module) -> tuple[ScoreRule, float | Tensor]:
        """How this layer inherits scores, and alpha; with its learned coefficients where it has any."""
        settings = self.stack.settings
        learned = learned_of(attention) if settings.is_learned else None
        return (settings.rule, settings.alpha) if learned is None else (learned.rule(), learned.alpha())

    def inherited(self) -> tuple[HiddenState | None, bool]:
        """The state that this layer starts from, and whether this is a recomputation, which nothing continues from."""
        key = (id(self.stack), self.n)
        if torch.compiler.is_compiling():
            return self._before(), False
        region = internals.current_region()
        if internals.in_backward() or (region is not None and region.again):
            known, state = recomputation.kept(region, key)
            if not known:
                raise ValueError(CHECKPOINTING.format(self.name))
            return state, True
        state = self._before()
        if region is not None and torch.is_grad_enabled():
            recomputation.keep(region, key, state)
        return state, False

    def _before(self) -> HiddenState | None:
        if self.n == 1:
            return None
        n, state = self.stack.passes.get(running_thread(), (0, None))
        if n != self.n - 1:
            raise ValueError(
                f"{self.name} ran without the layer before it; inherited scores need every layer to run once, in order."
            )
        return state

    def record(self, state: HiddenState, again: bool) -> None:
        """Hand the state to the next layer."""
        if again:
            return
        if self.n == self.stack.depth:
            self.stack.passes.pop(running_thread(), None)
        else:
            self.stack.passes[running_thread()] = (self.n, state)

    def check_tokens(self, queries: tuple[int, ...]) -> None:
        """Raise if the attention is not over the tokens that entered the block."""
        shape = self.entered.get(running_thread())
        if shape is not None and not tokens_agree(shape, queries):
            raise ValueError(
                f"{self.name} attends over {queries[0]} sequences of {queries[2]} tokens where tokens of shape {shape} "
                "enter its block (windows, or stochastic depth on a part of the batch); the layer before may have seen "
                "others, so scores cannot be inherited."
            )

    def check_state(self, state: HiddenState | None, shape: tuple[int, ...], causal: bool) -> None:
        """Raise if the scores of the layer before belong to other tokens."""
        if state is None:
            return
        if tuple(state.shape) != shape:
            raise ValueError(
                f"{self.name} has scores of shape {shape} and the layer before it {tuple(state.shape)}; inherited "
                "scores need the same queries and keys in every layer."
            )
        if getattr(state, "causal", False) and not causal:
            raise ValueError(
                f"{self.name} has a mask of its own (a window?) after a layer that is causal without one, which keeps "
                "no scores of later keys; use backend='reference'."
            )


CHECKPOINTING = (
    "{}: inherited scores under reentrant or nested gradient checkpointing would give wrong gradients; "
    "call checkpoint(..., use_reentrant=False), once around each block."
)


class InheritingCalls(AttentionCalls):
    """Over one attention module of a converted model."""

    def __init__(self, mark: PlainLayerMark, rule: ScoreRule) -> None:
        super().__init__()
        self.mark, self.rule = mark, rule
        self.calls = self.products = 0
        self.around = self._surroundings()

    def _surroundings(self) -> tuple[Any, bool]:
        if torch.compiler.is_compiling():
            return None, False
        region = internals.current_region()
        return None if region is None else region.frame, torch.is_grad_enabled()

    def _begin(self, queries: tuple[int, ...]) -> tuple[HiddenState | None, bool]:
        mark = self.mark
        self.calls += 1
        mark.check_tokens(queries)
        if not torch.compiler.is_compiling():
            if internals.in_transform():
                raise ValueError(f"{mark.name}: inherited scores do not work inside torch.func.vmap or its relatives.")
            if self._surroundings() != self.around:
                raise ValueError(
                    f"{mark.name} checkpoints its own attention, which would run again without the scores that it "
                    "inherits; checkpoint the block around it."
                )
        return mark.inherited()

    def sdpa(self, call: AttentionCall) -> Tensor:
        return self._attend(call)[0]

    def _attend(self, given: AttentionCall, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        query = given.query
        if query.is_nested or query.dim() not in (3, 4):
            shape = "a nested tensor" if query.is_nested else tuple(query.shape)
            raise ValueError(f"{self.mark.name}: queries must be (batch, heads, tokens, size), got {shape}.")
        call = given.in_four_dimensions().with_mask()
        q, k = call.query, call.key
        mark, settings = self.mark, self.mark.stack.settings
        state, again = self._begin(tuple(q.shape))
        mark.check_state(state, (*q.shape[:3], k.shape[2]), call.is_causal)
        out, new = hopfield_attention(
            q,
            k,
            call.value,
            state,
            attn_mask=call.attn_mask,
            is_causal=call.is_causal,
            scale=call.scale,
            dropout_p=call.dropout_p,
            enable_gqa=call.grouped,
            rule=self.rule,
            backend=settings.backend,
            depth=mark.stack.depth,
            scores_dtype=settings.scores_dtype,
        )
        weights = None
        if need_weights:
            weights = softmax_of_visible(masked(new.scores(), call.attn_mask, call.is_causal)).to(call.value.dtype)
        if mark.stack.observe is not None:
            mark.stack.observe(mark.plan, new, call.attn_mask, call.is_causal)
        mark.record(new, again)
        return out.squeeze(1) if query.dim() == 3 else out, weights

    def multihead(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        given = multihead_call(*args, **kwargs)
        return given.finished(*self._attend(given.call, need_weights=bool(given.weights)))

    def product(self, product: Tensor) -> Tensor:
        """H_n of the products themselves: scale, bias, cap and mask stay the model's own."""
        mark, index = self.mark, self.products
        self.products += 1
        if mark.plan.kind != "product" or index != mark.plan.product:
            return product
        shape = tuple(product.shape) if product.dim() == 4 else (product.shape[0], 1, *product.shape[1:])
        state, again = self._begin(shape)
        mark.check_state(state, tuple(product.shape), False)
        keep, take = (c.view(-1, 1, 1) if isinstance(c, Tensor) else c for c in self.rule.coefficients(mark.n))
        hidden = take * product.to(score_dtype(product.dtype))
        if state is not None and (isinstance(keep, Tensor) or keep != 0.0):
            hidden = keep * state.scores() + hidden
        mark.record(ReferenceState(mark.n, hidden, hidden.dtype), again)
        return hidden.to(product.dtype)


# The hooks are functions of this module, so that a model with them can be copied and pickled.


def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before an attention module runs: its attention calls become ours."""
    mark: PlainLayerMark = getattr(module, LAYER)
    mark.follow_output()
    rule, mark.alphas[running_thread()] = mark.coefficients(module)
    mode = InheritingCalls(mark, rule)
    mark.modes.setdefault(running_thread(), []).append(mode)
    mode.__enter__()  # type: ignore[no-untyped-call]


def leave(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
    """After it, or after an error in it."""
    mark: PlainLayerMark = getattr(module, LAYER)
    modes = mark.modes.get(running_thread())
    if not modes:
        return  # a hook before ours has raised
    mode = modes.pop()
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    if result is not None and mode.calls != 1:
        raise ValueError(f"{mark.name} attended {mode.calls} times in one forward; inherited scores need one call.")


def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a block or a projection runs: keep its tokens for the visible skip, and their shape."""
    for mark, key, role in getattr(module, SOURCES):
        tokens = args[key] if isinstance(key, int) and key < len(args) else kwargs.get(str(key))
        if tokens is None:
            raise ValueError(f"{mark.name}: {type(module).__name__} was called with other arguments than in the trial.")
        settings = mark.stack.settings
        if role == "stream":
            mark.entered[running_thread()] = tuple(tokens.shape)
        if settings.has_skip and role == ("normed" if settings.skip == "normed" else "stream"):
            mark.tokens[running_thread()] = tokens


def mix(module: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
    """After W_O: alpha x + (1 - alpha) result (Eq. 53); "replace" takes away the x that the block is about to add."""
    mark: PlainLayerMark = getattr(module, OUTPUT)
    settings = mark.stack.settings
    if not settings.has_skip:
        return None
    tokens = mark.tokens.pop(running_thread(), None)
    if tokens is None:
        raise ValueError(
            f"{mark.name} ran without the tokens that alpha multiplies: the module that is called with them did not "
            "run with it; call the whole block, and checkpoint the whole block."
        )
    alpha = mark.alphas.pop(running_thread())
    weight = alpha - 1.0 if settings.skip == "replace" else alpha
    first = result[0] if isinstance(result, tuple) else result
    mixed = weight * tokens + (1.0 - alpha) * first
    return (mixed, *result[1:]) if isinstance(result, tuple) else mixed

"""An attention layer with edits, and what the edited layers of a model share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import Tensor, nn

from ._attention_call import AttentionCall, attend
from ._edit import Edit, Surroundings, names
from ._first_values import FirstValues
from ._inheriting import LAYER as CONVERTED
from ._module_hooks import MARK, remove_hook, running_thread
from ._plan import Argument, LayerPlan
from ._projection_edits import PROJECTED, edit_projection, projections_of
from .anatomy import Anatomy

if TYPE_CHECKING:
    from ._editing_hooks import EditingCalls


class Observation(NamedTuple):
    """One call of an edited layer, as `check` sees it."""

    layer: EditedLayer
    edits: list[Edit]
    call: AttentionCall  # before the edits
    out: Tensor  # after them
    around: Surroundings


class EditedModel:
    """What the layers of an edited model share; kept on the root of its plan."""

    def __init__(self, found: Anatomy) -> None:
        self.plan = found.plan
        self.layers: list[EditedLayer] = []
        self.attention: str | None = None  # the implementation that a transformers model had before
        self.notes: dict[str, str] = {}  # what a remedy has to say, by its name
        self.first_values = FirstValues()
        self.observe: Callable[[Observation], None] | None = None
        self.report: Callable[[LayerPlan, AttentionCall], None] | None = None  # calls that are no longer torch's own
        self.observe_projection: Callable[[EditedLayer, str, Tensor, Tensor], None] | None = None
        for index, stack in enumerate(found.plan.own):
            for position, plan in enumerate(stack.layers, start=1):
                place = (index, position, len(stack.layers))
                self.layers.append(EditedLayer(len(self.layers) + 1, place, plan, found.root, self))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"observe": None, "report": None, "observe_projection": None}


class EditedLayer:
    """What the hooks of one layer share."""

    def __init__(self, n: int, place: tuple[int, int, int], plan: LayerPlan, root: nn.Module, shared: EditedModel):
        self.n, self.plan, self.shared = n, plan, shared
        self.place = place  # which stack, the place in it from 1, and how many layers it has
        self.attention = root.get_submodule(plan.name)
        self.projections = projections_of(plan, root)
        self.hooked: list[nn.Module] = []  # projections as they were when their hooks were added
        source = plan.normed or Argument(plan.name)
        self.source, self.argument = root.get_submodule(source.module), source.key
        self.modes: dict[int, list[EditingCalls]] = {}
        self.tokens: dict[int, Tensor] = {}  # what enters the attention, by thread

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"modes": {}, "tokens": {}}

    @property
    def name(self) -> str:
        """The path of the attention module."""
        return self.plan.name

    @property
    def edits(self) -> list[Edit]:
        """The edits of this layer in the order in which they were added."""
        return [child for child in self.attention.children() if isinstance(child, Edit)]

    @property
    def width(self) -> int:
        """M: how wide the tokens are that enter the attention; 0 if that was not found."""
        if self.plan.query is None:
            return 0
        weight = self.attention.in_proj_weight if self.plan.kind == "multihead" else self.projections[0].module.weight
        return int(cast(Tensor, weight).shape[0 if self.plan.query.columns else 1])

    @property
    def needs_calls(self) -> bool:
        """Whether the attention calls are to go through the edits."""
        if self.shared.observe is not None or any(edit.at_call for edit in self.edits):
            return True
        return self.plan.kind == "multihead" and bool(self.edits)

    @property
    def is_converted(self) -> bool:
        """Whether the layer inherits scores."""
        return CONVERTED in self.attention.__dict__ or MARK in self.attention.__dict__

    def follow_projections(self) -> None:
        """Put the hooks on the projections, again if an adapter has replaced one."""
        wanted = [p.module for p in self.projections] if any(edit.at_projections for edit in self.edits) else []
        if len(wanted) == len(self.hooked) and all(a is b for a, b in zip(wanted, self.hooked, strict=True)):
            return
        self.release_projections()
        for projection, module in zip(self.projections, wanted, strict=bool(wanted)):
            setattr(module, PROJECTED, (self, projection.sides))
            module.register_forward_hook(edit_projection)
        self.hooked = wanted

    def release_projections(self) -> None:
        """Remove those hooks."""
        for module in self.hooked:
            remove_hook(module, edit_projection)
            delattr(module, PROJECTED)
        self.hooked = []

    def edited(self, call: AttentionCall, run: Callable[[AttentionCall], Tensor] = attend) -> Tensor:
        """The attention of a call with the edits of this layer; `run` attends."""
        for mode in self.modes.get(running_thread(), [])[-1:]:
            mode.calls += 1
        edits = [edit for edit in self.edits if edit.at_call]
        around = Surroundings(self._tokens(edits, call), self._first_values(edits, call.value), call.value)
        changed = call
        for edit in edits:
            changed = edit.before(changed, around)
        if self.shared.report is not None and not (changed.cap is None and changed.sink is None):
            self.shared.report(self.plan, changed)
        out = run(changed)
        for edit in edits:
            out = edit.after(out, changed, around)
        if self.shared.observe is not None:
            self.shared.observe(Observation(self, edits, call, out, around))
        return out

    def _tokens(self, edits: list[Edit], call: AttentionCall) -> Tensor | None:
        tokens = self.tokens.pop(running_thread(), None)
        if tokens is None or not any(edit.needs_tokens for edit in edits):
            return None
        tokens = tokens.transpose(0, 1) if self.plan.tokens_first else tokens
        if tuple(tokens.shape[:-1]) != (call.query.shape[0], call.query.shape[2]):
            raise ValueError(
                f"{self.name} attends over {call.query.shape[0]} sequences of {call.query.shape[2]} tokens, and tokens "
                f"of shape {tuple(tokens.shape)} enter it (windows?); {names(edits)} need the same tokens."
            )
        return tokens

    def _first_values(self, edits: list[Edit], value: Tensor) -> Tensor | None:
        if not any(edit.needs_first for edit in edits):
            return None
        return self.shared.first_values.of(self.place, self.name, value)

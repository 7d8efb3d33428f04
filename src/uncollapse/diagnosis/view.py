"""What the hooks of a pass over a transformers model share: the layer that runs, and the rows its attention goes to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel

from uncollapse.attention import HiddenState
from uncollapse.attention.masking import HIDING, Masking
from uncollapse.attention.scores import (
    InheritedScores,
    QueryKeyScores,
    ScoreSource,
    is_weights,
)
from uncollapse.models.editing import edits_of_softmax
from uncollapse.models.huggingface import HARMLESS, KEYWORD, PassScores, is_causal_call

from .attention_rows import in_softmax
from .model_pass import Batch
from .observer import Observer
from .stacks import attention_modules
from .tensor_parallel import GatheredScores
from .verdicts import layer_ranges


class View:
    """State that the hooks share during a pass: which layer is running, and which tokens are real."""

    def __init__(
        self,
        observer: Observer,
        stacks: dict[str, list[nn.Module]],
        has_decoder: bool = False,
        group: ProcessGroup | None = None,
    ) -> None:
        self.observer, self.stacks = observer, stacks
        self.has_decoder = has_decoder  # then its tokens have another mask than those of the encoder
        self.group = group  # processes that have other heads
        self.stack_of = {block: name for name, blocks in stacks.items() for block in blocks}
        self.path_of: dict[nn.Module, str] = {  # its path in its block
            module: path for block in self.stack_of for path, module in block.named_modules()
        }
        self.numbers: dict[tuple[str, int], int] = {}  # stack and call -> layer, in the order in which they first run
        self.calls: dict[str, int] = {}
        self.first: dict[int, str] = {}  # layer -> path in its block of the attention that runs first
        self.further: dict[tuple[str, str, int], int] = {}  # stack, path and layer of further attention -> row
        self.without_attention: dict[int, str] = {}  # layer -> why nothing of its attention was seen
        self.layer, self.rows, self.stack = 0, 1, ""
        self.in_block = False
        self.attended: list[str] = []  # paths of the attention of the running block that is measured
        self.silent: dict[str, str] = {}  # path -> class of attention in the running block that gave no weights
        self.unseen: dict[str, str] = {}  # the same of all blocks, where other attention of the block is measured
        self.real: Tensor | None = None  # tokens of the running stack that are no padding
        self.real_input: Tensor | None = None
        self.real_of_decoder: Tensor | None = None

    def start(self, batch: Batch) -> None:
        self.real_input = _real_tokens(batch.get("attention_mask"))
        self.real_of_decoder = _real_tokens(batch.get("decoder_attention_mask"))
        if self.real_of_decoder is None and not batch.keys() & {"decoder_input_ids", "decoder_inputs_embeds", "labels"}:
            self.real_of_decoder = self.real_input  # the model makes the decoder's tokens of its input
        self.rows = next((len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim()), 1)
        self.calls = dict.fromkeys(self.stacks, 0)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the pass is one that another thread had under way when the diagnosis began."""
        return self not in ACTIVE.get()

    def enter_block(self, block: nn.Module, *_: Any) -> None:
        if self.is_elsewhere:
            return
        stack = self.stack = self.stack_of[block]
        self.calls[stack] += 1  # calls are counted, so that a block that runs twelve times is twelve layers
        self.layer = self.numbers.setdefault((stack, self.calls[stack]), len(self.numbers) + 1)
        self.real = self.real_of_decoder if self.has_decoder and "decoder" in stack else self.real_input
        self.in_block, self.attended, self.silent = True, [], {}

    def leave_block(self, block: nn.Module, _args: Any, output: Any) -> None:
        if self.is_elsewhere:
            return
        self.in_block = False
        tokens = output[0] if isinstance(output, tuple) else output
        if isinstance(tokens, Tensor) and tokens.dim() == 3:
            self.observer.tokens(self.layer, tokens, self._real_for(tokens.shape[1]))
        if not self.attended:
            self.without_attention[self.layer] = _why_without(block)
        else:
            apart = {path: kind for path, kind in self.silent.items() if not self._is_measured(path)}
            self.unseen |= {f"{self.stack}.*.{path}": kind for path, kind in apart.items()}

    def _real_for(self, length: int) -> Tensor | None:
        return _of_length(self.real, length)

    def watch_scores(self, _base: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        """In a converted model: receive the hidden state of every layer."""
        scores: PassScores = kwargs[KEYWORD]
        scores.observe = self.inherited

    def inherited(self, module: nn.Module, state: HiddenState, mask: Tensor | None, causal: bool) -> None:
        masking = Masking.of(mask, causal, self._real_for(state.shape[2]))
        self._add(self._row_of(module), InheritedScores(state), masking)

    def _add(self, row: int, source: ScoreSource, masking: Masking, parts: int = 1) -> None:
        whole = source if self.group is None else GatheredScores(source, self.group)
        self.observer.scores(row, whole, masking, parts)

    def _is_measured(self, path: str) -> bool:
        """Whether an attention module of the running block, or one inside or around it, has been measured."""
        return any(f"{path}.".startswith(f"{seen}.") or seen.startswith(f"{path}.") for seen in self.attended)

    def _path_of(self, module: nn.Module) -> str:
        return self.path_of.get(module, type(module).__name__)

    def _row_of(self, module: nn.Module) -> int:
        """The layer, for the attention of a block that runs first; for further attention, a number until the end."""
        path = self._path_of(module)
        self.attended.append(path)
        if self.first.setdefault(self.layer, path) == path:
            return self.layer
        return self.further.setdefault((self.stack, path, self.layer), -len(self.further) - 1)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> bool:
        """In a stock model: the attention function was called. Whether its weights are needed to measure it."""
        if not self.in_block or self._is_measured(self._path_of(module)):
            return False
        if unknown(kwargs):
            return True
        causal = is_causal_call(module, mask, kwargs.get("is_causal"), q.shape[2])
        masking = Masking.of(mask, causal, self._real_for(q.shape[2]))
        bias = kwargs.get("position_bias")
        if bias is not None:
            masking.bias = bias if masking.bias is None else masking.bias + bias
        source: ScoreSource = QueryKeyScores(q, k, kwargs.get("scaling"))
        source, masking = in_softmax(source, masking, kwargs.get("softcap"), kwargs.get("s_aux"))
        source, masking = in_softmax(source, masking, *edits_of_softmax(module))
        self._add(self._row_of(module), source, masking, self._parts(len(q)))
        return False

    def attend_weights(self, module: nn.Module, weights: Tensor, mask: Tensor) -> None:
        """In a stock model: the weights that an attention function with unknown keywords gave."""
        real, parts = self._real_for(weights.shape[2]), self._parts(len(weights))
        self.observer.attention_weights(self._row_of(module), weights, mask > HIDING, real=real, parts=parts)

    def returned(self, module: nn.Module, _args: Any, output: Any) -> None:
        """A module of a block has returned: measure the attention weights among what it gave."""
        if not self.in_block or self._is_measured(self._path_of(module)):
            return
        parts = output if isinstance(output, tuple) else ()
        weights = next((part for part in parts if is_weights(part)), None)
        if weights is not None:
            self._observe_weights(module, weights)
        elif type(module).__name__.endswith("Attention"):
            self.silent[self._path_of(module)] = type(module).__name__

    def _observe_weights(self, module: nn.Module, weights: Tensor) -> None:
        row, (queries, keys) = self._row_of(module), weights.shape[2:]
        is_cross = row != self.layer
        causal = not is_cross and queries == keys and not weights.triu(1).any()
        real = self._real_for(keys) if not is_cross else _of_length(self.real_input, keys)
        visible = None if real is None else real[:, None, None, :].to(weights.device)
        if causal:
            later = torch.ones(queries, keys, dtype=torch.bool, device=weights.device).tril()
            visible = later if visible is None else visible & later
        real, parts = self._real_for(queries), self._parts(len(weights))
        self.observer.attention_weights(row, weights, visible, real=real, parts=parts)

    def _parts(self, batch: int) -> int:
        """How many entries of an attention call's batch are windows of one and the same image."""
        return max(1, batch // self.rows) if batch % self.rows == 0 else 1

    def explain(self) -> None:
        """Name the stacks that did not run, and the layers whose attention was not seen."""
        observer = self.observer
        for name, blocks in self.stacks.items():
            if not any(stack == name for stack, _ in self.numbers):
                observer.missing[f"{name} ({len(blocks)} layers)"] = "it did not run on these batches."
        if len(self.stacks) > 1 or self.further:
            for (stack, _), layer in self.numbers.items():
                observer.stacks.setdefault(stack, []).append(layer)
        self._number_further()
        observer.missing |= {path: _UNSEEN.format(kind) for path, kind in self.unseen.items()}
        unseen = {n: why for n, why in self.without_attention.items() if n not in observer.attention_statistics}
        if unseen and not observer.attention_statistics:
            observer.missing["attention"] = next(iter(unseen.values()))
        elif unseen:
            for why in dict.fromkeys(unseen.values()):
                numbers = [n for n, reason in unseen.items() if reason == why]
                observer.missing[f"attention of {layer_ranges(numbers).lower()}"] = why

    def _number_further(self) -> None:
        """Put cross-attention, and whatever else attends in a block after its first attention, behind the layers."""
        observer, last = self.observer, len(self.numbers)
        if self.further:
            places = {layer: f"{stack}.{self._index(stack, call)}" for (stack, call), layer in self.numbers.items()}
            observer.names = {
                n: f"{place}.{self.first[n]}" if n in self.first else place for n, place in places.items()
            }
        for (stack, path, layer), row in sorted(self.further.items()):
            last += 1
            observer.attention_statistics[last] = observer.attention_statistics.pop(row)
            observer.stacks.setdefault(f"{stack}.*.{path}", []).append(last)
            observer.names[last] = f"{places[layer]}.{path}"

    def _index(self, stack: str, call: int) -> int:
        return (call - 1) % len(self.stacks[stack])

    def find_dead(self, model: PreTrainedModel) -> None:
        """Weight matrices that are all zero: of the embedding, and of the attention in each layer."""
        try:
            embedding = getattr(model.get_input_embeddings(), "weight", None)
        except NotImplementedError:  # of models that take no tokens
            embedding = None
        if isinstance(embedding, Tensor) and _all_zero(embedding):
            self.observer.dead["the weight of the embedding"] = []
        for (stack, call), layer in self.numbers.items():
            index = self._index(stack, call)
            for path, weight in self.stacks[stack][index].named_parameters():
                if "att" in path.lower() and path.endswith("weight") and "lora_" not in path and _all_zero(weight):
                    self.observer.dead.setdefault(f"{stack}.{index}.{path}", []).append(layer)


def _real_tokens(mask: Tensor | None) -> Tensor | None:
    return mask.bool() if mask is not None and mask.dim() == 2 else None


def _of_length(real: Tensor | None, length: int) -> Tensor | None:
    return real if real is not None and real.shape[1] == length else None


def _all_zero(weight: Tensor) -> bool:
    return weight.dim() >= 2 and min(weight.shape) > 1 and not weight.is_meta and not bool(weight.detach().any())


_UNSEEN = "{} neither goes through transformers' AttentionInterface nor returns its weights."


def _why_without(block: nn.Module) -> str:
    """Why a block ran without attention that can be seen."""
    found = attention_modules(block)
    if found:
        return _UNSEEN.format(type(found[0]).__name__)
    mixers = [type(child).__name__ for name, child in block.named_children() if not name.endswith(("norm", "mlp"))]
    return f"{type(block).__name__} has no attention with a softmax ({', '.join(mixers[:2]) or 'no mixer was found'})."


KNOWN = frozenset({"dropout", "scaling", "is_causal", "position_bias", "softcap", "s_aux", "deterministic"})


def unknown(kwargs: dict[str, Any]) -> list[str]:
    """Keywords of an attention call whose meaning is not known here: then the weights tell."""
    return [name for name, value in kwargs.items() if value is not None and name not in KNOWN | HARMLESS]


# of this thread: that of a diagnosis, or those that read a training forward
ACTIVE: ContextVar[tuple[View, ...]] = ContextVar("active views", default=())

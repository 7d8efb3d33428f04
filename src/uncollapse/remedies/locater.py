"""LocAteR: the second paper's penalty on the query-key matrices, as a number and as a callback for any Trainer.

For W = W_Q^T W_K of a head it is kappa_scale tr(W^T W) + kappa_mean (tr W - 1)^2. docs/locater.md says where its
minimum is, and why the paper's theory does not call that localised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from uncollapse.metrics.spectrum import qk_trace, scale_of_grams
from uncollapse.models.convert import transformers_model
from uncollapse.models.families import QueryKeyWeights, each_query_key_weights, query_key_parameters
from uncollapse.models.reporters import Reporters

Normalisation = Literal["update", "tokens"]
HALF = (torch.float16, torch.bfloat16)  # dtypes whose products are summed in float32


def locater_penalty(
    model: nn.Module, kappa_scale: float, kappa_mean: float, reduction: Literal["sum", "none"] = "sum"
) -> Tensor:
    """The penalty kappa_scale tr(W^T W) + kappa_mean (tr W - 1)^2 of the query-key matrices W = W_Q^T W_K.

    It is differentiable. Only products of the size of a head are formed, in float32 for half precision weights.

    Args:
        model: of a family in docs/models.md; it may be wrapped by DDP, FSDP2, torch.compile or PEFT.
        kappa_scale: weight of tr(W^T W), kappa_1 of the paper.
        kappa_mean: weight of (tr W - 1)^2, kappa_2 of the paper.
        reduction: "sum" over layers and heads, or "none" for a table (N, H).

    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_embd=8, n_head=4, vocab_size=16, n_positions=8))
    >>> table = locater_penalty(model, kappa_scale=0.1, kappa_mean=1.0, reduction="none")
    >>> tuple(table.shape), torch.allclose(table.sum(), locater_penalty(model, 0.1, 1.0))
    ((2, 4), True)
    """
    check_kappas(kappa_scale, kappa_mean)
    if reduction not in ("sum", "none"):
        raise ValueError(f'reduction must be "sum" or "none", got {reduction!r}.')
    table = torch.stack([terms.penalty for terms in _each_layer(transformers_model(model), kappa_scale, kappa_mean)])
    return table.sum() if reduction == "sum" else table


class LocaterCallback(TrainerCallback):
    """Adds the gradient of `locater_penalty` once per update, in any Hugging Face Trainer.

    It is added to the gradients just before the optimizer's step, after clipping, so that it depends neither on the
    number of accumulation steps nor on that of processes (DDP, FSDP2). The Trainer's log gets `locater/penalty` (the
    sum), `locater/trace` and `locater/scale` (tr W and tr(W^T W), means over heads) of the step's weights.

    Args:
        kappa_scale: weight of tr(W^T W).
        kappa_mean: weight of (tr W - 1)^2.
        normalisation: what the penalty stands beside. "update" adds it to the mean loss of an update, "tokens" to the
            sum over its tokens, as a penalty inside a fairseq criterion is: its gradient is then divided by the number
            of input tokens of the update, over all micro-batches and processes.

    >>> import uncollapse as uc
    >>> callbacks = [uc.LocaterCallback(kappa_scale=0.01, kappa_mean=0.1)]
    """

    def __init__(self, kappa_scale: float, kappa_mean: float, normalisation: Normalisation = "update") -> None:
        check_kappas(kappa_scale, kappa_mean)
        if normalisation not in get_args(Normalisation):
            raise ValueError(f'normalisation must be "update" or "tokens", got {normalisation!r}.')
        self.kappa_scale, self.kappa_mean, self.normalisation = kappa_scale, kappa_mean, normalisation
        self._tokens = 0  # that the Trainer had counted before the present update
        self._last: dict[str, Tensor] = {}  # read when the Trainer logs, so that a step waits for no device
        self._reporters = Reporters()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse what cannot work before the first step."""
        if getattr(args, "deepspeed_plugin", None) is not None:
            raise ValueError(
                "LocaterCallback cannot add to the gradients that DeepSpeed keeps; train with DDP or FSDP2."
            )
        layers = query_key_parameters(transformers_model(kwargs["model"]))
        if not any(parameter.requires_grad for layer in layers for parameter in layer):
            raise ValueError(
                "LocaterCallback has nothing to train: the query and key weights of every layer are frozen; "
                "unfreeze them or leave the callback out."
            )
        if self.normalisation == "tokens":
            if (main := getattr(kwargs["model"], "main_input_name", "input_ids")) != "input_ids":
                raise ValueError(
                    f'normalisation="tokens" counts tokens of text, and {type(kwargs["model"]).__name__} takes {main}; '
                    'use normalisation="update".'
                )
            if args.include_num_input_tokens_seen == "no":
                args.include_num_input_tokens_seen = "non_padding"
            self._tokens = state.num_input_tokens_seen

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add the gradient."""
        _unscale(kwargs.get("optimizer"))
        divisor = self._tokens_of_update(state) if self.normalisation == "tokens" else 1
        kappas = (self.kappa_scale / divisor, self.kappa_mean / divisor)
        table = add_gradient(transformers_model(kwargs["model"]), *kappas)
        self._last = {
            "locater/penalty": table.penalty.sum(),
            "locater/trace": table.trace.mean(),
            "locater/scale": table.scale.mean(),
        }

    def _tokens_of_update(self, state: TrainerState) -> int:
        before, self._tokens = self._tokens, state.num_input_tokens_seen
        if self._tokens <= before:
            raise ValueError(
                'normalisation="tokens" needs the number of tokens, which this Trainer does not count; '
                'use normalisation="update" and divide the kappas by the tokens of an update.'
            )
        return self._tokens - before

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add to the Trainer's own entry of the step, which is in the history already and has been reported."""
        if logs is None or "loss" not in logs or not self._last:
            return
        numbers = {name: value.item() for name, value in self._last.items()}
        logs.update(numbers)
        if state.log_history:
            state.log_history[-1].update(numbers)
        if state.is_world_process_zero:
            self._reporters.log(numbers, args, state, control, kwargs["model"])


class LocaterTerms(NamedTuple):
    """The penalty, tr W and tr(W^T W) of each head: (H,) for a layer, (N, H) for a model."""

    penalty: Tensor
    trace: Tensor
    scale: Tensor


def add_gradient(model: PreTrainedModel, kappa_scale: float, kappa_mean: float) -> LocaterTerms:
    """Add the penalty's gradient to `.grad` of the weights that are trained; returns the terms (N, H).

    The gradient is written out, which takes fewer products than autograd; `locater_penalty` is its reference.
    """
    seen = []
    with torch.enable_grad():  # so that the gradient finds its way back to sharded weights
        for parameters, weights in zip(query_key_parameters(model), each_query_key_weights(model), strict=True):
            with torch.no_grad(), torch.autocast(weights.query.device.type, enabled=False):
                heads = _Heads.of(weights)
                seen.append(_terms(heads, kappa_scale, kappa_mean))
                slack = 2 * kappa_mean * (seen[-1].trace.view(*heads.query.shape[:2], 1, 1) - 1)  # (G, H/G, 1, 1)
                add = partial(_add_gradient_of_query, heads, slack, 2 * kappa_scale)
                _accumulate(parameters[0], weights.query, add)
                add = partial(_add_gradient_of_key, heads, slack, 2 * kappa_scale)
                _accumulate(parameters[-1], weights.key, add)
    return LocaterTerms(*(torch.stack(column) for column in zip(*seen, strict=True)))


def _add_gradient_of_query(heads: _Heads, slack: Tensor, factor: float, target: Tensor) -> None:
    """2 kappa_1 W_K W_K^T W_Q + 2 kappa_2 (tr W - 1) W_K into (H, D, M)."""
    group = heads.query.shape[1]
    target.baddbmm_(heads.key_gram[:, 0].repeat_interleave(group, 0), heads.query.flatten(0, 1), alpha=factor)
    target.view(heads.query.shape).addcmul_(slack, heads.key)


def _add_gradient_of_key(heads: _Heads, slack: Tensor, factor: float, target: Tensor) -> None:
    """The same with queries and keys exchanged into (G, D, M); a key serves its group, so it gets the sum over it."""
    target.baddbmm_(heads.query_gram.sum(1), heads.key[:, 0], alpha=factor)
    for head in range(heads.query.shape[1]):
        target.addcmul_(slack[:, head], heads.query[:, head])


def _accumulate(parameter: nn.Parameter, weight: Tensor, add: Callable[[Tensor], None]) -> None:
    """Let `add` write to the part of `.grad` that belongs to `weight`; through autograd where it is no view of it."""
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    is_part = weight._base is parameter and parameter.grad.stride() == parameter.stride()
    if is_part and weight.dtype not in HALF and weight.dtype == parameter.grad.dtype:
        offset = weight.storage_offset() - parameter.storage_offset() + parameter.grad.storage_offset()
        add(parameter.grad.as_strided(weight.shape, weight.stride(), offset))
        return
    gradient = torch.zeros_like(_wide(weight))
    add(gradient)
    parameter.grad.add_(torch.autograd.grad(weight, parameter, gradient.to(weight.dtype), retain_graph=True)[0])


def _each_layer(model: PreTrainedModel, kappa_scale: float, kappa_mean: float) -> Iterator[LocaterTerms]:
    for weights in each_query_key_weights(model):
        with torch.autocast(weights.query.device.type, enabled=False):
            terms = _terms(_Heads.of(weights), kappa_scale, kappa_mean)
        yield terms  # outside the block, so that the caller keeps its own autocast


class _Heads(NamedTuple):
    """Weights of one layer, at least in float32: each of G key heads serves the H/G query heads of its group."""

    query: Tensor  # (G, H/G, D, M)
    key: Tensor  # (G, 1, D, M)
    query_gram: Tensor  # W_Q W_Q^T, (G, H/G, D, D)
    key_gram: Tensor  # W_K W_K^T, (G, 1, D, D)

    @classmethod
    def of(cls, weights: QueryKeyWeights) -> _Heads:
        """The heads of a layer's weights."""
        query, key = _wide(weights.query), _wide(weights.key).unsqueeze(1)
        query = query.view(len(key), -1, *query.shape[1:])
        return cls(query, key, query @ query.mT, key @ key.mT)


def _terms(heads: _Heads, kappa_scale: float, kappa_mean: float) -> LocaterTerms:
    trace = qk_trace(heads.query, heads.key).flatten()
    scale = scale_of_grams(heads.query_gram, heads.key_gram).flatten()
    return LocaterTerms(kappa_scale * scale + kappa_mean * (trace - 1.0).square(), trace, scale)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def _unscale(optimizer: Any) -> None:
    """Undo float16's loss scaling, which the Trainer leaves to the optimizer's step when it does not clip."""
    scaler = getattr(optimizer, "scaler", None)
    if scaler is None or not scaler.is_enabled():
        return
    while hasattr(optimizer, "optimizer"):  # what accelerate wraps
        optimizer = optimizer.optimizer
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        if "already been called" not in str(error):
            raise


def check_kappas(kappa_scale: float, kappa_mean: float) -> None:
    """Raise unless both are numbers that are not negative."""
    for name, kappa in (("kappa_scale", kappa_scale), ("kappa_mean", kappa_mean)):
        if not isinstance(kappa, Real) or not (math.isfinite(kappa) and kappa >= 0):
            raise ValueError(f"{name} must be a number that is not negative, got {kappa!r}.")

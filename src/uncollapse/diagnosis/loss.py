"""Whether a model can read its sample: the loss on it, which is then compared with that of guessing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .model_pass import Batch
    from .sample import Sample

Way = Literal["next", "masked", "filled"]

# Their targets are in another language: a healthy one may predict the words of its own input worse than guessing.
TRANSLATORS = ("fsmt", "m2m_100", "marian", "mbart", "nllb-moe")
SPAN, PERIOD, FIRST = 3, 20, 5  # T5 was trained with 15 % of its tokens left out, in spans of three


class Loss:
    """The mean loss of a model that predicts tokens, added up over a pass.

    `way` is how: each token from those before it, in an encoder-decoder those of the decoder, which has the same text
    as the encoder; masked tokens; or, as T5 was trained, spans that sentinels stand for. None: `why_not` says why.
    """

    def __init__(self, model: PreTrainedModel, sample: Sample) -> None:
        self.model, self.sample = model, sample
        self.total, self.count = 0.0, 0
        self.way, self.why_not = _way(model, sample)

    @property
    def needs_a_pass(self) -> bool:
        """Whether the batches have to run once more, changed."""
        return self.way in ("masked", "filled")

    def see(self, batch: Batch, output: Any) -> None:
        """Take what the model gave for a batch of the diagnosis itself."""
        name = "decoder_input_ids" if "decoder_input_ids" in batch else "input_ids"
        ids, logits = batch.get(name), getattr(output, "logits", None)
        if self.way != "next" or ids is None or logits is None or logits.shape[:-1] != ids.shape:
            return
        mask = batch.get(name.replace("input_ids", "attention_mask"))
        real = (torch.ones_like(ids) if mask is None else mask)[:, 1:].bool()
        self._add(logits[:, :-1][real], ids[:, 1:][real])

    def run(self, batch: Batch) -> None:
        """Run a batch with some of its tokens taken out."""
        ids = batch["input_ids"]
        if self.way == "masked":
            hidden = torch.zeros_like(ids, dtype=torch.bool)
            hidden[:, 3::7] = True
            logits = self.model(**{**batch, "input_ids": ids.masked_fill(hidden, int(self.sample.mask_id or 0))}).logits
            self._add(logits[hidden], ids[hidden])
        elif ids.shape[1] > SPAN:
            kept, spans = without_spans(ids, self.sample.sentinel_ids)
            words = ~torch.isin(spans, torch.tensor(self.sample.sentinel_ids, device=spans.device))
            self._add(self.model(input_ids=kept, labels=spans).logits[words], spans[words])

    def _add(self, logits: Tensor, ids: Tensor) -> None:
        loss = functional.cross_entropy(logits.float(), ids, reduction="sum").item()
        self.total, self.count = self.total + loss, self.count + len(ids)

    def info(self) -> dict[str, float]:
        """Entries of `Diagnosis.info`; none where nothing was predicted, or nothing finite."""
        vocabulary = getattr(self.model.config.get_text_config(), "vocab_size", 0)
        if not self.count or not vocabulary or not math.isfinite(self.total):
            return {}
        return {"loss": self.total / self.count, "guessing": math.log(vocabulary)}

    def note(self) -> str:
        """A sentence for the report where the loss of a sample could not be compared with guessing."""
        if not self.sample.checked or self.count:
            return ""
        why = self.why_not or "its output holds no prediction for each of its tokens"
        return f"Whether the model can read the sample was not checked by its loss: {why}."


def _way(model: PreTrainedModel, sample: Sample) -> tuple[Way | None, str]:
    name, config = type(model).__name__, model.config
    if not sample.checked:
        return None, "the data was given by the caller"
    if name.endswith("ForMaskedLM"):
        return ("masked", "") if sample.mask_id is not None else (None, "no tokenizer names its mask token")
    if not model.can_generate():
        return None, f"{name} predicts no tokens, and the sample has no labels"
    if not config.is_encoder_decoder:
        return "next", ""
    if config.model_type in TRANSLATORS:
        return None, f"{name} translates, and the sample is in one language"
    return ("filled", "") if sample.sentinel_ids else ("next", "")


def without_spans(ids: Tensor, sentinels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) with a sentinel in place of each span, and the spans, each after its sentinel.

    >>> kept, spans = without_spans(torch.arange(12)[None], [100, 101])
    >>> kept.tolist(), spans.tolist()
    ([[0, 1, 2, 3, 4, 100, 8, 9, 10, 11]], [[100, 5, 6, 7]])
    """
    kept, spans, end = [], [], 0
    starts = range(min(FIRST, ids.shape[1] - SPAN), ids.shape[1] - SPAN + 1, PERIOD)
    for start, sentinel in zip(starts, sentinels, strict=False):
        mark = ids.new_full((len(ids), 1), sentinel)
        kept += [ids[:, end:start], mark]
        spans += [mark, ids[:, start : start + SPAN]]
        end = start + SPAN
    return torch.cat([*kept, ids[:, end:]], dim=1), torch.cat(spans, dim=1)

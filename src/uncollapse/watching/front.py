"""watch(): attention's vital signs inside any training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from uncollapse.diagnosis import Diagnosis
from uncollapse.diagnosis.listening import Listener, listeners_of
from uncollapse.diagnosis.tap import prepare, refuse_without_attention
from uncollapse.extras import MissingExtraError, require
from uncollapse.models.learned import learned_parameters
from uncollapse.models.plain import Plan, in_backward

from .alarm import Alarm
from .course import Course, News
from .detectors import Detector, chosen
from .detectors.spike import WINDOW
from .history import TABLES, History
from .logs import Log, Logger
from .measurement import UpdateMeasurement
from .optimizer_statistics import UpdateStatistics, gradient_norm
from .processes import Exchange
from .recent import MEASUREMENTS, Recent
from .schedule import Schedule
from .signals import Signals, loss_of

OnWarning = Callable[[News], Any]


def watch(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    every: int = 50,
    log: Log | None = None,
    on_warning: OnWarning | None = None,
    detectors: Iterable[str | Detector] | None = None,
) -> Watch:
    """Measure a model's attention while it trains, in the forward passes that train it; the loop stays as it is.

    On every `every`-th update the heads and layers are measured as `uc.diagnose` does, on the training batch. Loss,
    gradients and random state are those of a training that is not watched, bit for bit. Between measurements nothing
    is attached but a hook that counts.

    Args:
        model: any model that `uc.diagnose` takes, also inside DDP, FSDP2, a PEFT model, or what torch.compile gave.
        optimizer: its optimizer, whose steps are the updates; batches that are accumulated are one measurement. Without
            one, each training forward counts as an update, and `Watch.optimizer` stays empty.
        every: updates between two measurements.
        log: where numbers go: a callable that takes a dict and a step, such as `wandb.log`; a TensorBoard writer; or a
            path, to which one line of JSON is appended for each measurement (`uncollapse page FILE` draws it).
        on_warning: called with each warning, which has `step`, `kind`, `layers`, `heads` and `sentence`. What it raises
            ends the training. By default a Python warning is shown.
        detectors: what looks for trouble: names in `DETECTORS` or `ON_REQUEST` of `uncollapse.watching.detectors`, or
            functions of `Recent`; None takes `DETECTORS`.

    Returns:
        The watch: tables `heads`, `layers`, `optimizer`, `updates` and `warnings`, and `close()`. It is also a context
        manager.

    >>> import torch, uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> ids = torch.randint(16, (4, 8))
    >>> with uc.watch(model, optimizer, every=2) as watch:
    ...     for _ in range(4):
    ...         model(input_ids=ids, labels=ids).loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> watch.heads[["step", "layer", "head"]].drop_duplicates("step").values.tolist()
    [[2, 1, 1], [4, 1, 1]]
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a whole number of updates of at least 1, got {every!r}.")
    if on_warning is not None and not callable(on_warning):
        raise ValueError(f"on_warning must be callable, got {type(on_warning).__name__}.")
    if any(isinstance(listener, Watch) for listener in listeners_of(model)):
        raise ValueError(f"this {type(model).__name__} is watched already; close() the other watch first.")
    return Watch(model, _checked(optimizer, model), every, log, on_warning, chosen(detectors))


def _checked(optimizer: Any, model: nn.Module) -> Optimizer | None:
    """The optimizer inside wrappers such as Accelerate's; a ValueError if it is none, or that of another model."""
    if optimizer is None:
        return None
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError(
            f"the optimizer has no parameter of this {type(model).__name__}: it is that of another model, or was made "
            "before the model's parameters were replaced."
        )
    return optimizer


def _left_out(model: nn.Module, optimizer: Optimizer) -> str | None:
    """The first parameter that a remedy or a conversion has added and that the optimizer does not have."""
    there = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    added = (name for name, own in learned_parameters(model) if own.requires_grad and id(own) not in there)
    return next(added, None)


class Watch(Listener):
    """What `uc.watch` gives: the tables, and the way to end it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        every: int,
        log: Log | None,
        on_warning: OnWarning | None,
        detectors: dict[str, Detector],
    ) -> None:
        self.schedule = Schedule(every, by_forwards=optimizer is None)
        self.notes: list[str] = []
        self._name = type(model).__name__
        self._logger = Logger(log, {"model": self._name, "every": every})
        self._on_warning, self._detectors = on_warning, detectors
        self._history, self._signals, self._course = History(), Signals(), Course()
        self._warnings: list[News] = []
        self._exchange = Exchange()
        self._plans: list[Plan] = []
        self._measurement: UpdateMeasurement | None = None
        self._updating: UpdateStatistics | None = None
        self.diagnosis: Diagnosis | None = None  # the last measurement; its verdicts are those of `diagnose`
        self._last_step = 0
        self._seen_forward = False
        self._told: set[str] = set()
        refuse_without_attention(model)
        super().__init__(model)
        self._handles = []
        if optimizer is not None:
            self._handles = [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            ]
            if (left_out := _left_out(model, optimizer)) is not None:
                self._note(LEFT_OUT.format(left_out), told="optimizer")

    @property
    def heads(self) -> pd.DataFrame:
        """One row for each measurement and head: the columns of `Diagnosis.heads`, and step."""
        return self._history.table("heads")

    @property
    def layers(self) -> pd.DataFrame:
        """One row for each measurement and layer: the columns of `Diagnosis.layers`, and step."""
        return self._history.table("layers")

    @property
    def optimizer(self) -> pd.DataFrame:
        """One row for each measured update and layer: what it did to W_Q and W_K."""
        return self._history.table("optimizer")

    @property
    def updates(self) -> pd.DataFrame:
        """One row for each update: its loss, where the model gives one, and the norm of its gradient."""
        self._signals.read(self.schedule.done)
        return self._signals.table()

    @property
    def warnings(self) -> pd.DataFrame:
        """What was told: step, kind, layers, heads as (layer, head), and the sentence."""
        columns = ["step", "kind", "layers", "heads", "sentence"]
        return pd.DataFrame([[getattr(news, name) for name in columns] for news in self._warnings], columns=columns)

    def __repr__(self) -> str:
        measured, told = self.heads["step"].nunique(), len(self._warnings)
        return f"Watch of {self._name}: {self.schedule.done} updates, {measured} measured, {told} warnings"

    def _repr_html_(self) -> str | None:
        try:
            require("altair", "vl_convert")
        except MissingExtraError:
            return None  # a notebook then shows the text
        from .pages import notebook_view  # charts are loaded when they are drawn

        return notebook_view(self._name, self)

    def close(self) -> None:
        """End the watch: nothing is left in the model or the optimizer, and the tables stay."""
        if self.schedule.done and self.heads.empty and not self.notes:
            self._note(f"No update was measured: there were {self.schedule.done}, and every={self.schedule.every}.")
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._forget()
        self.stop_listening()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or in_backward():
            return
        if not self._seen_forward:
            prepare(self.model, args, kwargs, self._plans)  # what is wrong with the model is said now, not in an hour
        self._seen_forward = True
        update = self.schedule.forward()
        if update is None:
            return
        if self._measurement is None:
            self._measurement = UpdateMeasurement(self.model, update, self._plans)
        with self._going_on(update):
            self._measurement.open(module, args, kwargs)

    def left(self, module: nn.Module, output: Any, failed: bool) -> None:
        if failed:
            self._forget()
            return
        if self._measurement is not None:
            self._measurement.close()
        if torch.is_grad_enabled() and not in_backward():
            self._signals.add_loss(self.schedule.done + (not self.schedule.by_forwards), loss_of(output))
        if self._measurement is not None and self.schedule.by_forwards:
            self._read_weights()
            self._finish(self._measurement.step, None)

    def dropped(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Take a measurement that did not come to its end off the model."""
        if self._measurement is not None:
            self._measurement.close()
        self._measurement = self._updating = None

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.schedule.is_measured(self.schedule.done + 1):
            self._read_weights()

    def _read_weights(self) -> None:
        """Keep W_Q and W_K as they were in the forward."""
        try:
            self._updating = UpdateStatistics(self.model, self._plans)
        except ValueError as reason:
            self._note(f"W_Q and W_K are not followed: {str(reason).rstrip('.')}.")

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        update = self.schedule.step()
        norm = gradient_norm(optimizer)
        self._signals.add_gradient(update, norm)
        if self.schedule.is_measured(update):
            if self._measurement is None and not self._seen_forward:
                self._note(NO_FORWARD.format(type(self.model).__name__), told="forward")
            self._finish(update, norm)

    def _finish(self, step: int, norm: Tensor | None) -> None:
        """Turn what was read into rows, findings and lines of the log."""
        measurement = self._measurement or UpdateMeasurement(self.model, step, self._plans)
        updating, self._measurement, self._updating = self._updating, None, None
        news: list[News] = []
        with self._going_on(step):
            measurement.finish(self._exchange.all, {} if updating is None else updating.traces)
            for note in [*measurement.observer.notes, *_sentences(measurement.observer.missing)]:
                self._note(note)
            for what, why in measurement.observer.failures.items():
                self._note(f"{what} could not be measured at update {step} ({why.rstrip('.')}).", told="measurement")
            tables = {"heads": measurement.heads(), "layers": measurement.layers(), "optimizer": pd.DataFrame()}
            if updating is not None and norm is not None:
                tables["optimizer"] = updating.table(self.model, self._plans, norm.item())
            self._history.add(step, **tables)
            self._signals.read(self.schedule.done)
            news = self._judge(step, measurement)
            updates = self._signals.table(2 * self.schedule.every)
            tables["updates"] = updates[updates["step"] > self._last_step]
            self._last_step = step
            if self._exchange.is_first:
                self._logger.write(step, tables, news)
        for item in news if self._exchange.is_first else ():
            self._tell(item)

    def _judge(self, step: int, measurement: UpdateMeasurement) -> list[News]:
        self.diagnosis = diagnosis = measurement.diagnosis()
        recent = Recent(
            step,
            self._last_step,
            diagnosis,
            **{name: self._history.last(name, MEASUREMENTS) for name in TABLES},
            updates=self._signals.table(WINDOW + 2 * self.schedule.every),
        )
        alarms: list[Alarm] = []
        for name, detector in self._detectors.items():
            try:
                alarms += detector(recent)
            except Exception as error:  # of a user, maybe: the others are heard
                self._note(f"update {step} could not be judged by {name} ({_reason(error)}).", told=name)
        news = self._course.told(step, alarms)
        self._warnings += news
        return news

    @contextmanager
    def _going_on(self, step: int) -> Iterator[None]:
        """What fails in a measurement is told once; the training goes on without it."""
        try:
            yield
        except Exception as error:
            self._forget()
            self._note(f"update {step} could not be measured ({_reason(error)}).", told="measurement")

    def _tell(self, news: News) -> None:
        if self._on_warning is not None:
            self._on_warning(news)
        else:
            warnings.warn(news.sentence, stacklevel=2)

    def _note(self, note: str, told: str = "") -> None:
        """Keep a note; what it is `told` about is also shown, once."""
        if note not in self.notes:
            self.notes.append(note)
            if told and told not in self._told and self._exchange.is_first:
                warnings.warn(f"{note} The training goes on.", stacklevel=2)
            self._told.add(told)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _sentences(missing: dict[str, str]) -> list[str]:
    return [f"{what} is not measured: {why}" for what, why in missing.items()]


LEFT_OUT = (
    "{} was added to the model and is not in the optimizer, so it is not trained: make the optimizer after uc.apply "
    "and uc.convert."
)
NO_FORWARD = (
    "uncollapse.watch has seen no forward of this {}: it was compiled after the watch began, or its forward() is "
    "called directly; watch what torch.compile gives, and call the model itself."
)

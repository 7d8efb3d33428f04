"""The Hugging Face Trainer with the recipe's schedule, augmentation and verified checkpoints."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_utils import align_special_tokens

from uncollapse import files
from uncollapse.models.learned import parameter_groups
from uncollapse.remedies import apply

from . import checkpoints
from .callbacks import AlphaWarmup
from .model import remedies_of
from .processes import process_count
from .recipe import Recipe
from .run_folder import RunFolder
from .saving import NotSavedError, naming_failure
from .schedule import RateSchedule
from .tasks import Task

DEFAULT_SAVES = 10  # checkpoints and diagnoses per run if the recipe does not set their interval


class RunTrainer(Trainer):
    """Trains one run; overrides the Trainer only for the run folder, the schedule and the data."""

    def __init__(self, recipe: Recipe, task: Task, folder: RunFolder, **kwargs: Any) -> None:
        self.recipe, self.task, self.folder = recipe, task, folder
        self.updates = updates(recipe, len(task.train))  # type: ignore[arg-type]
        self.step_loss = torch.zeros(())  # loss of the current update
        super().__init__(
            args=arguments(recipe, folder, self.updates),
            train_dataset=task.train,
            eval_dataset=task.valid,
            data_collator=task.collate,
            processing_class=task.tokenizer,
            compute_loss_func=task.loss,
            compute_metrics=task.measures,
            preprocess_logits_for_metrics=task.preprocess_logits,
            **kwargs,
        )

    def create_accelerator_and_postprocess(self) -> None:
        """Enable FSDP on CPUs too, where accelerate ignores it without a warning."""
        super().create_accelerator_and_postprocess()
        if self.args.fsdp_plugin_args is not None and not self.is_fsdp_enabled:
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.accelerator.state.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # the state is rebuilt from it
            self.is_fsdp_enabled = True

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One micro-batch; augmented here, where a resumed run draws the same random numbers."""
        if self.task.augment is not None:
            inputs = self.task.augment(self._prepare_inputs(inputs))
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.step_loss = self.step_loss.to(loss.device) + loss.detach()
        return loss

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Drop the last incomplete batch in training, but not in evaluations."""
        self.args.dataloader_drop_last = True
        try:
            return super().get_train_dataloader()
        finally:
            self.args.dataloader_drop_last = False

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """What was added to the model gets the groups of `uncollapse.parameter_groups`; remedies follow the steps."""
        fresh = self.optimizer is None
        optimizer = super().create_optimizer(*args, **kwargs)
        if not fresh:
            return optimizer
        assert self.model is not None
        if self.recipe.learn_alpha or self.recipe.remedy:
            _, *apart = parameter_groups(self.model, lr=self.recipe.learning_rate)
            own = {id(parameter) for group in apart for parameter in group["params"]}
            for group in optimizer.param_groups:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in own]
            for group in apart:
                optimizer.add_param_group(group)
        for remedy in remedies_of(self.recipe):
            if remedy.needs_optimizer:
                apply(self.model, remedy, optimizer=optimizer)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning-rate schedule of the recipe."""
        if self.lr_scheduler is None:
            per_epoch = updates_per_epoch(self.recipe, len(self.task.train))  # type: ignore[arg-type]
            warmup = max(self.recipe.warmup_steps, round(self.recipe.warmup_epochs * per_epoch))
            warmup = min(warmup, self.updates)  # a recipe may be cut short with --steps
            cooldown = min(round(self.recipe.cooldown_epochs * per_epoch), self.updates - warmup)
            schedule = RateSchedule(
                peak=self.recipe.learning_rate,
                steps=self.updates,
                warmup=warmup,
                cooldown=cooldown,
                floor=self.recipe.lowest_rate,
                start=self.recipe.lowest_rate,
                decay=self.recipe.schedule,
            )
            self.lr_scheduler = schedule.scheduler(optimizer or self.optimizer)  # type: ignore[arg-type]
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log perplexity and bits per byte next to the losses."""
        if "train_runtime" in logs:  # the Trainer's summary, which does not include the time before a resume
            return
        kept = {name: value for name, value in logs.items() if name not in NOT_LOGGED}
        super().log(kept | self.task.readings(logs), start_time)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        target = self.folder.checkpoints / f"checkpoint-{self.state.global_step}"
        broken = next((n for n, p in model.named_parameters() if not bool(torch.isfinite(p).all())), None)
        if broken is not None:
            raise NotSavedError(f"no checkpoint was written at step {self.state.global_step}: {broken} is not finite.")
        if self.args.should_save:
            shutil.rmtree(target, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            with naming_failure(f"checkpoint of step {self.state.global_step}"):
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()  # each process writes its random state
                if self.args.should_save:
                    files.sync(self.folder.metrics_file)
                    checkpoints.seal(target, processes=self.args.world_size, **self.task.fingerprints)
                    checkpoints.rotate(target.parent, trusted=target)
        except NotSavedError:
            shutil.rmtree(target, ignore_errors=True)
            raise

    def load_finished(self, checkpoint: Path) -> None:
        """Take over the checkpoint of the last update, so that the model can be saved as after training."""
        assert self.model is not None
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / checkpoints.STATE))
        if self.processing_class is not None:
            # as `train` does before the first update
            align_special_tokens(self.model, self.processing_class)  # type: ignore[no-untyped-call]
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, AlphaWarmup):
                callback.set(self.model, self.state.global_step - 1)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save model and tokenizer, without the Trainer's pickled arguments, which the recipe replaces."""
        folder = Path(output_dir or self.folder.checkpoints)
        resumable = folder.parent == self.folder.checkpoints
        # The original format of a ViT has older parameter names, which the Trainer does not map back when it resumes.
        model = self.accelerator.unwrap_model(self.model)
        model.save_pretrained(folder, state_dict=state_dict, save_original_format=not resumable)
        if self.args.should_save and self.processing_class is not None:
            self.processing_class.save_pretrained(folder)


NOT_LOGGED = {
    *("eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "eval_model_preparation_time"),
    "num_input_tokens_seen",  # counted for LocAteR's normalisation
}


def updates_per_epoch(recipe: Recipe, examples: int) -> int:
    """Number of complete batches in one pass over the data."""
    if examples < recipe.batch_size:
        raise ValueError(
            f"the data has {examples:,} examples, which is less than one batch of {recipe.batch_size:,}; "
            "lower --batch_size."
        )
    return examples // recipe.batch_size


def updates(recipe: Recipe, examples: int) -> int:
    """Number of updates of the run."""
    per_epoch = updates_per_epoch(recipe, examples)
    return recipe.steps if recipe.steps is not None else max(1, round((recipe.epochs or 0) * per_epoch))


def every(value: int | None, total: int) -> int:
    """The interval `value`, or by default the one that gives DEFAULT_SAVES per run."""
    return max(1, total // DEFAULT_SAVES) if value is None else value


def arguments(recipe: Recipe, folder: RunFolder, total: int) -> TrainingArguments:
    """The TrainingArguments of a recipe."""
    processes = process_count()
    share = recipe.for_processes(processes).batch_size // (processes * recipe.accumulation)
    evaluating = recipe.eval_every is not None
    return TrainingArguments(
        output_dir=str(folder.checkpoints),
        max_steps=total,
        per_device_train_batch_size=share,
        per_device_eval_batch_size=max(1, (recipe.eval_batch_size or recipe.batch_size) // processes),
        gradient_accumulation_steps=recipe.accumulation,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        adam_epsilon=recipe.epsilon,
        max_grad_norm=recipe.clip,
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,  # would hide NaN
        include_num_input_tokens_seen="all" if recipe.normalisation == "tokens" else "no",
        eval_strategy="steps" if evaluating else "no",
        eval_steps=recipe.eval_every,
        prediction_loss_only=recipe.task == "language",
        save_strategy="steps",
        save_steps=every(recipe.save_every, total),
        seed=recipe.seed,
        data_seed=recipe.seed,
        bf16=recipe.precision == "bfloat16",
        gradient_checkpointing=recipe.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if recipe.gradient_checkpointing else None,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        label_names=["labels"],
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        report_to=["tensorboard"] if has_tensorboard() else [],
        ddp_find_unused_parameters=False,
        fsdp=recipe.parallel == "fsdp" and processes > 1,  # type: ignore[arg-type]
        use_cpu=not torch.accelerator.is_available(),
    )


def has_tensorboard() -> bool:
    """Whether tensorboard is installed."""
    return any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))

"""Augmentation, mixup, drop path and schedule together: a resumed run sees the same images and ends the same."""

from __future__ import annotations

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from uncollapse.data.images import ImageCollator, load_images
from uncollapse.training.augmentation import Augmentation, Mixup, augment_batch
from uncollapse.training.drop_path import add_drop_path
from uncollapse.training.loss import ImageLoss
from uncollapse.training.schedule import RateSchedule

VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 8,
    "patch_size": 4, "num_labels": 10, "hidden_dropout_prob": 0.1,
}  # fmt: skip


class AugmentingTrainer(Trainer):
    """Draws in the training step, and saves weights under the names that its own loading expects."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, augment_batch(inputs, self.augmentation, self.mixup), num_items_in_batch)

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        # transformers writes a ViT under older names, which the Trainer's resuming does not translate back
        self.model.save_pretrained(output_dir, state_dict=state_dict, save_original_format=False)


def final_weights(folder, resume=None):
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**VIT))
    add_drop_path(model, 0.3)
    data = load_images("digits")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = AugmentingTrainer(
        model,
        TrainingArguments(
            str(folder), max_steps=6, save_steps=3, per_device_train_batch_size=8, report_to=[], use_cpu=True,
            disable_tqdm=True, remove_unused_columns=False,
        ),
        data_collator=ImageCollator(8, data.mean, data.std, channels=3),
        train_dataset=data.train,
        compute_loss_func=ImageLoss(0.1),
        optimizers=(optimizer, RateSchedule(peak=1e-3, steps=6, warmup=2).scheduler(optimizer)),
    )  # fmt: skip
    trainer.augmentation = Augmentation(data.mean, data.std, randaugment=(2, 9), erasing=0.25)
    trainer.mixup = Mixup(10, cutmix_alpha=1.0)
    trainer.train(resume_from_checkpoint=resume)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_resumed_run_is_bit_identical(tmp_path):
    whole = final_weights(tmp_path / "whole")
    resumed = final_weights(tmp_path / "resumed", str(tmp_path / "whole" / "checkpoint-3"))
    assert torch.equal(whole, resumed)

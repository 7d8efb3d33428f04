"""The loss of images: torch's own on hard labels, and the same update whatever the accumulation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from uncollapse.data.images import ImageCollator, load_images
from uncollapse.training.augmentation import Mixup, augment_batch
from uncollapse.training.loss import ImageLoss, soft_cross_entropy


@given(st.integers(1, 6), st.integers(2, 5), st.floats(0.0, 0.9), st.integers(0, 99))
def test_hard_and_one_hot_labels_give_torchs_cross_entropy(images, classes, smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (images,), generator=generator)
    expected = functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    one_hot = functional.one_hot(labels, classes)
    torch.testing.assert_close(soft_cross_entropy(logits, labels, None, smoothing), expected)
    torch.testing.assert_close(soft_cross_entropy({"logits": logits}, one_hot, images, smoothing), expected)
    torch.testing.assert_close(soft_cross_entropy(logits, one_hot, 4 * images, smoothing), expected / 4)


def test_soft_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape of the logits \(2, 3\), got \(2, 4\)"):
        soft_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 4))


class MixingTrainer(Trainer):
    """A Trainer that mixes in the training step, with a weight and partner that the images decide."""

    mix = True

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.counted = int(num_items_in_batch)
        if self.mix:
            labels = functional.one_hot(inputs["labels"], 10).float()
            inputs = inputs | {"labels": 0.7 * labels + 0.03}
        return super().training_step(model, inputs, num_items_in_batch)


def trained(tmp_path, accumulation, mix, batches=8):
    torch.manual_seed(0)
    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4,
            num_channels=1, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    ).double()  # fmt: skip
    data = load_images("digits")
    collator = ImageCollator(8, data.mean, data.std, channels=1)
    arguments = TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=batches // accumulation, learning_rate=0.1,
        gradient_accumulation_steps=accumulation, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0,
        logging_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, seed=0,
        remove_unused_columns=False, per_device_eval_batch_size=60,
    )  # fmt: skip
    trainer = MixingTrainer(
        model,
        arguments,
        data_collator=collator,
        train_dataset=data.train,
        eval_dataset=torch.utils.data.Subset(data.valid, range(100)),
        compute_loss_func=ImageLoss(label_smoothing=0.1),
    )
    trainer.mix = mix
    trainer.train()
    assert trainer.counted == batches  # images of the whole update, not entries of soft labels
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer, losses, torch.cat([parameter.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("mix", [False, True], ids=["hard", "soft"])
def test_accumulation_of_four_is_the_same_update_as_one(tmp_path, mix):
    _, losses, weights = trained(tmp_path, 1, mix)
    _, losses_of_four, weights_of_four = trained(tmp_path, 4, mix)
    assert losses == pytest.approx(losses_of_four, rel=1e-4)  # the Trainer keeps its running loss in float32
    torch.testing.assert_close(weights, weights_of_four, rtol=1e-5, atol=1e-7)  # float32 pixels
    assert 1.5 < losses[0] < 4.0  # ln 10 = 2.3, not a tenth of it


def test_the_trainer_counts_every_entry_of_soft_labels(tmp_path):
    """Why labels are mixed in the training step and not by the collator."""
    trainer, _, _ = trained(tmp_path, 1, False)
    soft = {"labels": torch.full((8, 10), 0.1)}
    assert int(trainer._get_num_items_in_batch([soft], torch.device("cpu"))) == 80


def test_evaluation_reports_the_plain_cross_entropy(tmp_path):
    trainer, _, _ = trained(tmp_path, 1, True)
    reported = trainer.evaluate()["eval_loss"]
    batch = trainer.data_collator([trainer.eval_dataset[number] for number in range(100)])
    with torch.no_grad():
        expected = functional.cross_entropy(trainer.model(batch["pixel_values"]).logits, batch["labels"])
    assert reported == pytest.approx(float(expected), rel=1e-5)


def test_the_labels_of_augment_batch_suit_the_loss():
    batch = {"pixel_values": torch.rand(6, 1, 8, 8), "labels": torch.arange(6)}
    mixed = augment_batch(batch, mixup=Mixup(classes=10))
    assert torch.isfinite(soft_cross_entropy(torch.randn(6, 10), mixed["labels"]))
    assert torch.equal(batch["labels"], torch.arange(6))  # the batch that came is as it was

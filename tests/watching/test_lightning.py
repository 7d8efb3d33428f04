"""WatchCallback in a Lightning Trainer on the CPU."""

import warnings

import pytest
import torch
import transformers as hf
from torch import nn

pytest.importorskip("lightning", reason="needs the package lightning: pip install 'uncollapse[lightning]'")
import lightning.pytorch as pl

from uncollapse.watching.lightning import WatchCallback

IDS = torch.randint(16, (64, 12), generator=torch.Generator().manual_seed(0))


class PlainNetwork(nn.Module):
    """One layer of attention between an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, ids):
        return self.head(self.block(self.embedding(ids)))


def gpt2():
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 12}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


class Lit(pl.LightningModule):
    """Trains a network of its own, as most modules of Lightning do."""

    def __init__(self, network, fails_at=None):
        super().__init__()
        self.network, self.fails_at = network, fails_at
        self.losses, self.validated = [], 0

    def training_step(self, batch, index):
        if index == self.fails_at:
            raise KeyboardInterrupt if self.fails_at == 5 else ZeroDivisionError("a bug of the user")
        if isinstance(self.network, hf.PreTrainedModel):
            loss = self.network(input_ids=batch, labels=batch).loss
        else:
            loss = nn.functional.cross_entropy(self.network(batch).flatten(0, 1), batch.flatten())
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.network(batch)
        self.validated += 1

    def val_dataloader(self):
        return torch.utils.data.DataLoader(IDS[:8], batch_size=4)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


NETWORKS = {"transformers": gpt2, "plain": PlainNetwork}
both = pytest.mark.parametrize("kind", NETWORKS)


def module(kind, **arguments):
    torch.manual_seed(0)
    return Lit(NETWORKS[kind](), **arguments)


def fit(lit, callbacks, tmp_path, steps=6, resume=None, **options):
    settings = {"accelerator": "cpu", "max_steps": steps, "logger": False, "enable_progress_bar": False}
    settings |= {
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": tmp_path,
    } | options
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # of workers that would load faster
        warnings.filterwarnings("ignore", category=FutureWarning)
        trainer = pl.Trainer(callbacks=callbacks, **settings)
        trainer.fit(lit, torch.utils.data.DataLoader(IDS, batch_size=4), ckpt_path=resume)
    return trainer


def steps_of(callback):
    return sorted(set(callback.watch.heads["step"]))


def is_as_before(lit):
    return not any(m._forward_pre_hooks or m._forward_hooks for m in lit.modules())


@both
@pytest.mark.parametrize("path", ["", "network"])
def test_every_second_update_is_measured_and_nothing_is_changed(kind, path, tmp_path):
    callback, watched, plain = WatchCallback(path, every=2), module(kind), module(kind)
    trainer = fit(watched, [callback], tmp_path)
    fit(plain, [], tmp_path)
    assert watched.losses == plain.losses
    assert steps_of(callback) == [2, 4, 6]
    assert callback.watch.heads["entropy_mean"].notna().all()
    assert callback.watch.optimizer["update_ratio_query"].gt(0).all()
    assert callback.watch.updates["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert is_as_before(watched)
    assert not any(optimizer._optimizer_step_pre_hooks for optimizer in trainer.optimizers)


@both
def test_accumulated_batches_are_one_measurement(kind, tmp_path):
    callback, lit = WatchCallback("network", every=2), module(kind)
    fit(lit, [callback], tmp_path, steps=4, accumulate_grad_batches=3)
    assert len(lit.losses) == 12
    assert steps_of(callback) == [2, 4]
    assert set(callback.watch.heads["sequences"]) == {8}  # of twelve
    assert set(callback.watch.layers["batch"]) == {12}


@both
def test_validation_is_not_measured(kind, tmp_path):
    callback, lit = WatchCallback("network", every=2), module(kind)
    fit(lit, [callback], tmp_path, steps=4, val_check_interval=1, limit_val_batches=2)
    assert lit.validated
    assert steps_of(callback) == [2, 4]
    assert set(callback.watch.layers["batch"]) == {4}


@both
@pytest.mark.parametrize("fails_at", [3, 5])
def test_an_exception_and_ctrl_c_leave_nothing_behind(kind, fails_at, tmp_path):
    callback, lit = WatchCallback("network", every=1), module(kind, fails_at=fails_at)
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt, SystemExit)):
        fit(lit, [callback], tmp_path)
    assert steps_of(callback) == list(range(1, fails_at + 1))
    assert is_as_before(lit)


@both
def test_a_resumed_training_counts_on(kind, tmp_path):
    first, lit = WatchCallback("network", every=2), module(kind)
    trainer = fit(lit, [first], tmp_path, steps=3)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second = WatchCallback("network", every=2)
    fit(module(kind), [second], tmp_path, steps=6, resume=tmp_path / "half.ckpt")
    assert steps_of(first) == [2]
    assert steps_of(second) == [4, 6]


def test_one_callback_serves_two_trainings(tmp_path):
    callback = WatchCallback("network", every=2)
    for _ in range(2):
        lit = module("transformers")
        fit(lit, [callback], tmp_path, steps=2)
        assert steps_of(callback) == [2]
        assert is_as_before(lit)


def test_a_module_that_calls_itself_is_watched_as_a_whole(tmp_path):
    class Calling(Lit):
        def forward(self, ids):
            return self.network(ids)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self(batch).flatten(0, 1), batch.flatten())

    callback = WatchCallback(every=2)
    fit(Calling(PlainNetwork()), [callback], tmp_path, steps=2)
    assert steps_of(callback) == [2]


def test_of_several_parts_one_has_to_be_named(tmp_path):
    lit = module("plain")
    lit.teacher = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"parts with parameters are 'network', 'teacher'; name the one"):
        fit(lit, [WatchCallback()], tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(AttributeError, match="nowhere"):
        fit(module("plain"), [WatchCallback("nowhere")], tmp_path)

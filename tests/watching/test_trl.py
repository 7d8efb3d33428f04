"""DiagnoseCallback and watch in TRL's SFTTrainer, on a tiny model with data of its own."""

import pytest
import torch
import transformers as hf

import uncollapse as uc

pytest.importorskip("trl", reason="needs the package trl, which no extra installs: pip install trl")
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", *"abcdefghijklmn"]


@pytest.fixture
def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def trainer(tokenizer, tmp_path, callbacks=(), **options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = hf.LlamaConfig(**sizes, vocab_size=len(WORDS), pad_token_id=0, bos_token_id=None, eos_token_id=1)
    texts = [" ".join(WORDS[2 + (i + j) % 14] for j in range(5 + i % 7)) for i in range(64)]
    settings = {"max_steps": 4, "per_device_train_batch_size": 4, "report_to": [], "save_strategy": "no"}
    settings |= {"use_cpu": True, "bf16": False, "disable_tqdm": True, "max_length": 16, "logging_steps": 1} | options
    return SFTTrainer(
        hf.LlamaForCausalLM(config),
        args=SFTConfig(str(tmp_path), **settings),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def losses(trained):
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"gradient_checkpointing": True}])
def test_the_callback_measures_and_changes_nothing(options, tokenizer, tmp_path):
    plain = trainer(tokenizer, tmp_path / "plain", **options)
    plain.train()
    callback = uc.DiagnoseCallback(every=2, keep=True)
    watched = trainer(tokenizer, tmp_path / "watched", [callback], **options)
    watched.train()
    assert losses(watched) == losses(plain)
    assert list(callback.reports) == [2, 4]
    assert callback.watch.heads["entropy_mean"].notna().all()
    assert callback.watch.optimizer["update_ratio_query"].gt(0).all()
    assert set(callback.watch.layers["batch"]) == {4 * options.get("gradient_accumulation_steps", 1)}


def test_a_watch_around_the_trainer_measures(tokenizer, tmp_path):
    training = trainer(tokenizer, tmp_path)
    training.create_optimizer()
    with uc.watch(training.model, training.optimizer, every=2) as watch:
        training.train()
    assert sorted(set(watch.heads["step"])) == [2, 4]
    assert watch.updates["loss"].notna().all()

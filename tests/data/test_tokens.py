"""Blocks of tokens: nothing lost, nothing stale, and the bytes that perplexity is compared by."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, GPT2Config

from tests.data.datasets_here import needs_data
from uncollapse.data.text import Corpus, load_text
from uncollapse.data.tokenizers import load_tokenizer, tokenizer_sha256
from uncollapse.data.tokens import TokenBlocks, token_data

TEXT = Corpus("example", ("the cat sat\non the mat ß né\n" * 40, "the dog ran\n" * 40), ("the end is ß new\n" * 30,))


@given(st.integers(0, 50), st.integers(2, 12))
def test_blocks_and_what_is_dropped_are_all_tokens_in_order(count, length):
    blocks = TokenBlocks(np.arange(count, dtype=np.uint16), length)
    seen = [int(token) for number in range(len(blocks)) for token in blocks[number]["input_ids"]]
    assert seen == list(range(count - blocks.dropped))
    assert blocks.dropped < length


def test_bpe_blocks_decode_to_the_text_and_count_its_bytes():
    data = token_data(TEXT, "bpe", vocab_size=280, length=16)
    ids = torch.cat([block["input_ids"] for block in data.valid])
    text = "".join(TEXT.valid)
    assert text.startswith(data.tokenizer.decode(ids[:-8]))  # the last tokens may hold part of a character
    assert data.valid.dropped < 16
    assert data.bytes_per_token == len(text.encode()) / len(data.valid.tokens)
    assert data.tokenizer.decode(data.valid.tokens.tolist()) == text
    assert data.tokenizer.eos_token == "<|endoftext|>"
    assert data.vocab_size == len(data.tokenizer) <= 280


def test_a_uniform_guess_over_bytes_has_eight_bits_a_byte():
    data = token_data(TEXT, "bpe", vocab_size=257, length=16)
    assert math.log(256) / math.log(2) / data.bytes_per_token == pytest.approx(8.0)


def test_items_are_what_a_causal_model_takes():
    block = token_data(TEXT, "bpe", vocab_size=260, length=16).train[0]
    assert block["input_ids"].dtype == torch.int64
    assert torch.equal(block["input_ids"], block["labels"])


def test_words_follow_the_convention_of_wikitext():
    corpus = Corpus("words", ("a b <unk> b\n \nb c\n",), ("b d\n",))
    tokenizer = load_tokenizer("word", corpus)
    words = tokenizer.convert_ids_to_tokens(tokenizer("a b <unk> b\n \nb d\n")["input_ids"])
    assert words == ["a", "b", "<unk>", "b", "<eos>", "<eos>", "b", "<unk>", "<eos>"]
    assert sorted(tokenizer.get_vocab()) == ["<eos>", "<unk>", "a", "b", "c"]
    assert sorted(load_tokenizer("word", corpus, vocab_size=3).get_vocab()) == ["<eos>", "<unk>", "b"]


def test_the_cache_is_used_and_a_changed_file_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text("one two three four\n" * 50)
    first = token_data(load_text(str(path)), "word", length=4)
    written = {array: array.stat().st_ino for array in (tmp_path / "cache" / "tokens").glob("*/*.npy")}
    again = token_data(load_text(str(path)), "word", length=4)
    assert {array: array.stat().st_ino for array in written} == written  # the same files: not encoded again
    assert len(written) == 2
    assert np.array_equal(first.train.tokens, again.train.tokens)
    path.write_text("one two three five\n" * 50)
    changed = token_data(load_text(str(path)), "word", length=4)
    assert "five" in changed.tokenizer.get_vocab()
    assert changed.tokenizer_sha256 != first.tokenizer_sha256


def test_a_truncated_array_is_encoded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("UNCOLLAPSE_CACHE", str(tmp_path))
    first = np.array(token_data(TEXT, "word", length=4).train.tokens)
    array = next(tmp_path.glob("tokens/*/train.npy"))
    array.write_bytes(array.read_bytes()[:-10])
    assert np.array_equal(token_data(TEXT, "word", length=4).train.tokens, first)


def test_training_a_tokenizer_twice_gives_the_same(tmp_path, monkeypatch):
    hashes = set()
    for place in "ab":
        monkeypatch.setenv("UNCOLLAPSE_CACHE", str(tmp_path / place))
        hashes.add(tokenizer_sha256(load_tokenizer("bpe", load_text("embedded"), vocab_size=400)))
    assert len(hashes) == 1


@pytest.mark.parametrize("config", [GPT2Config(), BertConfig()], ids=["gpt2", "bert"])
def test_a_model_without_a_tokenizer_has_none_rather_than_an_empty_one(config, tmp_path):
    """transformers makes one of its special tokens: no token at all for GPT-2, unknown words alone for BERT."""
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="give the path of a folder with a tokenizer"):
        load_tokenizer(str(tmp_path), Corpus("example", ("a text\n",), ("a text\n",)))


def test_a_folder_with_a_tokenizer_is_read(tmp_path):
    tokenizer = load_tokenizer("bpe", TEXT, vocab_size=270)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path), TEXT)
    assert loaded("the cat")["input_ids"] == tokenizer("the cat")["input_ids"]


@pytest.mark.parametrize(
    ("name", "vocab_size", "length", "message"),
    [
        ("bpe", None, 8, "vocab_size of at least 257"),
        ("word", 2, 8, "at least 3"),
        ("word", None, 1, "at least two tokens"),
        ("word", None, 10_000, "fewer than one block of 10000"),
        ("./no/such/folder", None, 8, "give the path of a folder with a tokenizer"),
    ],
)
def test_bad_requests_are_one_sentence(name, vocab_size, length, message):
    with pytest.raises(ValueError, match=message):
        token_data(TEXT, name, vocab_size, length)


@needs_data
def test_wikitext_2_has_its_published_vocabulary_and_tokens():
    corpus = load_text("wikitext-2")
    tokenizer = load_tokenizer("word", corpus)
    assert len(tokenizer) == 33_278
    small = Corpus("valid", corpus.valid, corpus.valid)  # the train split takes several seconds to encode
    data = token_data(small, tokenizer, length=512)
    assert len(data.valid.tokens) == 217_646


@needs_data
def test_gpt2_tokenizer_is_found():
    tokenizer = load_tokenizer("gpt2", TEXT)
    assert tokenizer("Hello world")["input_ids"] == [15496, 995]
    with pytest.raises(ValueError, match="has 50257 entries, and vocab_size is 1000"):
        load_tokenizer("gpt2", TEXT, vocab_size=1000)

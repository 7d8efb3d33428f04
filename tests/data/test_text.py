"""Text is found where the user said, split as promised, and its absence is told in one sentence."""

from __future__ import annotations

import json
import lzma

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.datasets_here import needs_data
from uncollapse.data.text import Corpus, _joined, _pieces, load_text


@pytest.fixture(autouse=True)
def _own_datasets_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


def joined(split):
    return "".join(split)


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 20))
def test_pieces_joined_are_the_text_and_end_at_line_ends(text, size):
    pieces = _pieces(text, size)
    assert joined(pieces) == text
    assert all(piece.endswith("\n") for piece in pieces[:-1])
    assert joined(_joined(text.splitlines(keepends=True), size)) == text


def test_embedded_topics_are_held_out_whole_and_make_a_tenth():
    corpus = load_text("embedded")
    assert not set(corpus.train) & set(corpus.valid)
    share = len(joined(corpus.valid)) / len(joined(corpus.train) + joined(corpus.valid))
    assert 0.05 < share <= 0.1
    assert corpus == load_text("embedded")


@pytest.mark.parametrize("suffix", [".txt", ".txt.xz"])
def test_one_file_validates_on_its_last_twentieth(tmp_path, suffix):
    text = "".join(f"line {number} ß é\n" for number in range(1000))
    path = tmp_path / f"book{suffix}"
    path.write_bytes(lzma.compress(text.encode()) if suffix.endswith("xz") else text.encode())
    corpus = load_text(str(path))
    assert joined(corpus.train) + joined(corpus.valid) == text
    assert len(joined(corpus.train)) == int(0.95 * len(text))
    assert corpus.files == (path,)


def test_splits_beside_a_train_file_and_in_a_folder_are_taken(tmp_path):
    for split, ending in (("train", "tokens"), ("valid", "tokens"), ("test", "tokens")):
        (tmp_path / f"wiki.{split}.{ending}").write_text(f"{split} text\n")
    by_file, by_folder = load_text(str(tmp_path / "wiki.train.tokens")), load_text(str(tmp_path))
    for corpus in (by_file, by_folder):
        assert (corpus.train, corpus.valid, corpus.test) == (("train text\n",), ("valid text\n",), ("test text\n",))
    assert by_file.fingerprint == by_folder.fingerprint


def test_a_path_comes_before_the_data_folder(tmp_path, monkeypatch):
    for place, word in (("here", "path"), ("data", "variable")):
        (tmp_path / place / "mine").mkdir(parents=True)
        (tmp_path / place / "mine" / "train.txt").write_text(f"{word}\n" * 50)
    monkeypatch.setenv("UNCOLLAPSE_DATA", str(tmp_path / "data"))
    assert load_text("mine").train[0].startswith("variable")
    monkeypatch.chdir(tmp_path / "here")
    assert load_text("mine").train[0].startswith("path")


@pytest.mark.parametrize("form", ["jsonl", "parquet", "saved"])
def test_what_datasets_loads_from_a_folder(tmp_path, form):
    rows = {"train": ["one\n", "two", ""], "validation": ["three"]}
    for split, texts in rows.items():
        folder = tmp_path / "corpus"
        folder.mkdir(exist_ok=True)
        if form == "jsonl":
            (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        elif form == "parquet":
            datasets.Dataset.from_dict({"text": texts}).to_parquet(str(folder / f"{split}.parquet"))
    if form == "saved":
        splits = {split: datasets.Dataset.from_dict({"text": texts}) for split, texts in rows.items()}
        datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "corpus"))
    corpus = load_text(str(tmp_path / "corpus"))
    assert joined(corpus.train) == "one\ntwo\n\n"
    assert joined(corpus.valid) == "three\n"


def test_rows_without_validation_are_split(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(5000)))
    corpus = load_text(str(path))
    train, valid = joined(corpus.train), joined(corpus.valid)
    assert train + valid == "".join(f"row {number}\n" for number in range(5000))
    assert len(valid) == pytest.approx(0.05 * len(train + valid), rel=0.05)


def test_fingerprint_tells_content_and_split_apart():
    same = [Corpus("a", ("x", "y"), ("z",)), Corpus("b", ("xy",), ("z",))]
    other = [Corpus("a", ("x",), ("yz",)), Corpus("a", ("xy",), ("z",), ())]
    assert same[0].fingerprint == same[1].fingerprint
    assert len({corpus.fingerprint for corpus in (same[0], *other)}) == 3


def test_missing_data_says_how_to_give_a_path(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"there is no file or folder .*--data"):
        load_text(str(tmp_path / "nowhere.txt"))

    def no_network(*args, **kwargs):
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    with pytest.raises(ValueError, match=r"wikitext-999 .*Couldn't reach the hub.*give the path of .* with --data\.$"):
        load_text("wikitext-999")


def test_two_candidates_for_a_split_and_wrong_columns_are_refused(tmp_path):
    for name in ("train.txt", "wiki.train.raw"):
        (tmp_path / name).write_text("a\n")
    with pytest.raises(ValueError, match="two train files"):
        load_text(str(tmp_path))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text('{"a": "x", "b": "y"}\n')
    with pytest.raises(ValueError, match="columns a, b; one named text"):
        load_text(str(tmp_path / "rows"))


@needs_data
def test_wikitext_2_and_tinyshakespeare_have_their_published_sizes():
    wikitext = load_text("wikitext-2")
    sizes = [len(joined(split).encode()) for split in (wikitext.train, wikitext.valid, wikitext.test)]
    assert sizes == [10_797_148, 1_121_681, 1_256_449]
    shakespeare = load_text("tinyshakespeare")
    assert [len(joined(split)) for split in (shakespeare.train, shakespeare.valid)] == [1_003_854, 111_540]

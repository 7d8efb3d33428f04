"""The table of contents: every remedy, its evidence, which go together, and the page that tells it."""

import json
import re
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.models.builders import SPECIAL, batch
from uncollapse.remedies import contents
from uncollapse.remedies.contents import APART, BY_NAME, ENTRIES, UNTESTED, together
from uncollapse.report.remedies_picture import remedies_picture

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_contents_lists_every_remedy():
    table = uc.remedies.list()
    assert table["name"].tolist() == list(BY_NAME)
    assert {"name", "against", "checkpoint", "evidence"} <= set(table)
    for entry in ENTRIES:
        file, _, kind = entry.home.partition(":")
        assert getattr(uc.remedies, kind).name == entry.name, file


def test_evidence_is_what_studies_wrote_or_the_words_that_there_is_none(tmp_path, monkeypatch):
    written = json.loads(contents.EVIDENCE.read_text())
    assert written.keys() <= BY_NAME.keys()
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps({"sink": "helped in 3 of 5 networks"}))
    monkeypatch.setattr(contents, "EVIDENCE", file)
    contents.evidence.cache_clear()
    try:
        told = uc.remedies.list().set_index("name")["evidence"]
    finally:
        contents.evidence.cache_clear()
    assert told.pop("sink") == "helped in 3 of 5 networks"
    assert set(told) == {UNTESTED} == {"not tested here"}


SMALL = {
    "qk_clip": {"threshold": 1.0},
    "qk_rate": {"factor": 0.5},
    "soft_cap": {"cap": 2.0},
    "value_mixing": {"own": 0.3},
    "hopfield": {"alpha": 0.0, "alpha_hidden": 0.3},
    "locater": {},
    "qk_norm": {},
    "sigma_reparam": {},
    "sink": {},
    "output_gate": {},
}


def two_layers():
    torch.manual_seed(0)
    names = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 24}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**names, **SPECIAL, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))


@pytest.mark.parametrize("first", BY_NAME)
def test_which_remedies_go_together(first):
    """Each pair acts in either order, or is refused naming both."""
    for second in BY_NAME:
        if second == first:
            continue
        model, inputs = two_layers(), batch("gpt2", length=6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        uc.apply(model, first, optimizer=optimizer, **SMALL[first])
        if frozenset((first, second)) in APART:
            with pytest.raises(ValueError, match=f"{second} does not go with {first}"):
                uc.apply(model, second, optimizer=optimizer, **SMALL[second])
            continue
        uc.apply(model, second, optimizer=optimizer, **SMALL[second])
        model(**inputs).logits.square().mean().backward()
        optimizer.step()
        proof = uc.remedies.check(model, inputs, saving=False)
        assert set(proof.table["remedy"]) == {first, second}
        assert proof.acts, (first, second)


def test_refused_pairs_name_remedies():
    assert all(set(pair) <= BY_NAME.keys() for pair in APART)
    with pytest.raises(ValueError, match="sink does not go with hopfield"):
        together("sink", ["qk_norm", "hopfield"])


def rows_below(heading, page):
    """The rows of the table whose heading starts so: the names in backticks of each of the first two cells."""
    lines = page[page.index(heading) :].splitlines()[2:]
    cells = [line.split("|")[1:3] for line in lines[: lines.index("")]]
    return [[re.findall(r"`(\w+)`", cell) for cell in row] for row in cells]


def test_the_page_tells_every_remedy_an_example_of_each_and_what_is_refused():
    page = (DOCS / "remedies.md").read_text(encoding="utf-8")
    assert [row[0] for row in rows_below("| remedy |", page)] == [[name] for name in BY_NAME]
    refused = [frozenset(pair) for row in rows_below("| | and |", page) for pair in product(*row)]
    assert sorted(map(sorted, refused)) == sorted(map(sorted, APART))
    code = "".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
    for entry in ENTRIES:
        assert f'"{entry.name}"' in code or f"remedies.{entry.home.partition(':')[2]}" in code, entry.name


def test_the_picture_of_the_page_is_the_one_that_the_command_draws():
    rows = [{"name": entry.name, "place": entry.place} for entry in ENTRIES]
    assert (DOCS / "images" / "remedies.svg").read_text(encoding="utf-8") == remedies_picture(rows)

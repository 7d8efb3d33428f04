"""Remedies and the tokens that are seen: caches, generation, padding and packing change nothing."""

import pytest
import torch

import uncollapse as uc
from tests.models import modules
from tests.models.builders import batch, logits
from tests.remedies.formulas import shaken
from tests.remedies.test_formulas import EDITS, every_edit
from tests.remedies.test_in_use import changed, main_edits


@every_edit
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_cache_changes_nothing(name, remedy):
    model, inputs = changed(name, remedy), batch(name)
    ids = inputs["input_ids"]
    whole = logits(model, input_ids=ids)
    with torch.no_grad():
        first = model(input_ids=ids[:, :6], use_cache=True)
        second = model(input_ids=ids[:, 6:9], past_key_values=first.past_key_values, use_cache=True)
        third = model(input_ids=ids[:, 9:], past_key_values=second.past_key_values, use_cache=True)
    got = torch.cat([first.logits, second.logits, third.logits], 1)
    torch.testing.assert_close(got, whole, rtol=1e-5, atol=1e-6)  # LLaMA's norms run in float32


@main_edits
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_is_the_same_with_each_kind_of_cache_and_without(name, remedy):
    model, ids = changed(name, remedy), batch(name)["input_ids"]
    how = {"max_new_tokens": 5, "do_sample": False, "min_new_tokens": 5}
    wanted = model.generate(ids, use_cache=False, **how)
    assert torch.equal(model.generate(ids, **how), wanted)
    static = model.generate(ids, cache_implementation="static", disable_compile=True, **how)
    assert torch.equal(static, wanted)


@main_edits
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_from_padded_prompts_is_that_of_each_alone(name, remedy):
    model, ids = changed(name, remedy), batch(name)["input_ids"]
    how = {"max_new_tokens": 4, "do_sample": False, "min_new_tokens": 4}
    short = ids[1:, 4:]
    padded = torch.cat([ids[:1], torch.cat([torch.zeros(1, 4, dtype=torch.long), short], 1)])
    got = model.generate(padded, attention_mask=(padded != 0).long(), **how)[:, ids.shape[1] :]
    wanted = [model.generate(one, **how)[0, one.shape[1] :] for one in (ids[:1], short)]
    assert torch.equal(got, torch.stack(wanted))


@every_edit
def test_padding_on_the_left_changes_nothing(remedy):
    model, ids = changed("llama", remedy), batch("llama", rows=1)["input_ids"]
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
    mask = torch.cat([torch.zeros(1, 3, dtype=torch.long), torch.ones_like(ids)], 1)
    got = logits(model, input_ids=padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    torch.testing.assert_close(got[:, 3:], logits(model, input_ids=ids), rtol=1e-5, atol=1e-6)


@every_edit
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_sequences_packed_into_one_row_do_not_see_each_other(name, remedy):
    model, ids = changed(name, remedy), batch(name)["input_ids"]
    positions = torch.arange(ids.shape[1]).repeat(2).unsqueeze(0)
    packed = logits(model, input_ids=ids.view(1, -1), position_ids=positions, use_cache=False)
    torch.testing.assert_close(packed.view(2, ids.shape[1], -1), logits(model, input_ids=ids), rtol=1e-5, atol=1e-6)


@every_edit
def test_padding_changes_nothing_in_a_plain_module(remedy):
    model, example = modules.build("encoder_pre")
    shaken(uc.apply(model, remedy.partition(" ")[0], **EDITS[remedy], example=example))
    longer = torch.cat([example, torch.ones_like(example[:, :3])], 1)
    padding = (torch.arange(longer.shape[1]) >= example.shape[1]).expand(len(example), -1)
    with torch.no_grad():
        torch.testing.assert_close(model(longer, padding)[:, : example.shape[1]], model(example), rtol=1e-9, atol=1e-9)

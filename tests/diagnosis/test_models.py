"""What models come in: half precision, training mode, shared layers, attention that cannot be seen, NaN, bad input."""

import re
import sys

import numpy as np
import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import uncollapse as uc
from tests.diagnosis import oracle
from tests.models.builders import batch, build
from tests.processes import printed_alone
from uncollapse.models.families import query_key_weights

SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}
IDS = {"input_ids": torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
@pytest.mark.parametrize("convert", [False, True])
def test_bfloat16_gives_nearly_the_numbers_of_float32(name, convert):
    single, half = build(name).float(), build(name).float().bfloat16()
    single.load_state_dict({key: value.float() for key, value in half.state_dict().items()})
    if convert:
        uc.convert(single), uc.convert(half)
    wanted, got = uc.diagnose(single, batch(name)), uc.diagnose(half, batch(name))
    assert np.isfinite(got.layers.to_numpy()).all()
    # bfloat16 keeps three digits; four layers with large weights make it some percent
    for column in ("residual_ratio", "residual_frobenius", "cosine_mean", "entropy_mean", "entropy_normalised"):
        np.testing.assert_allclose(got.layers[column], wanted.layers[column], atol=0.1, err_msg=column)
    np.testing.assert_allclose(got.heads["qk_trace"], wanted.heads["qk_trace"])  # the weights are the same


def test_dropout_of_training_mode_is_off_during_the_pass():
    config = hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=16)  # dropout 0.1
    model = hf.GPT2LMHeadModel(config)
    evaluated, trained = uc.diagnose(model.eval(), IDS), uc.diagnose(model.train(), IDS)
    close = {"rtol": 1e-5, "atol": 1e-6}  # float32 sums round by where their memory lies; dropout changes far more
    np.testing.assert_allclose(evaluated.layers, trained.layers, **close)
    np.testing.assert_allclose(evaluated.heads, trained.heads, **close)


@pytest.mark.parametrize("path", ["attn.c_attn.weight", "mlp.c_fc.weight", "attn.c_proj.bias"])
def test_nan_in_layer_3_is_named_and_the_layers_before_have_numbers(path):
    model = build("gpt2")
    with torch.no_grad():
        model.transformer.h[2].get_parameter(path).view(-1)[0] = float("nan")
    report = uc.diagnose(model, batch("gpt2"))
    assert report.not_finite == 3
    assert report.verdicts[0].kind == "not finite"
    assert all(verdict.kind not in ("healthy", "rank collapse") for verdict in report.verdicts)
    assert "Layer 3" in report.verdicts[0].sentence
    assert report.layers["residual_ratio"].notna().tolist() == [True, True, False, False]
    assert report.heads.query("layer < 3").notna().all().all()
    assert report.heads.query("layer == 4")["qk_trace"].notna().all()  # weights have numbers whatever the tokens
    healthy = uc.diagnose(build("gpt2"), batch("gpt2"))
    before, wanted = report.layers.query("layer < 3"), healthy.layers.query("layer < 3")
    np.testing.assert_allclose(before, wanted, rtol=1e-6, atol=1e-7)  # float32 sums round by where their memory lies
    assert "NaN" in str(report)


def test_sequences_without_nan_are_still_measured():
    model = build("gpt2")
    inputs = batch("gpt2", rows=4)
    inputs["input_ids"][1, 3] = 39
    inputs["input_ids"][[0, 2, 3]] = inputs["input_ids"][[0, 2, 3]].clamp(max=38)
    rest = {"input_ids": inputs["input_ids"][[0, 2, 3]]}
    with torch.no_grad():
        model.transformer.wte.weight[39] = float("inf")
    report, wanted = uc.diagnose(model, inputs), uc.diagnose(model, rest)
    assert (report.not_finite, wanted.not_finite) == (1, None)
    columns = ["residual_ratio", "cosine_mean", "effective_rank"]
    np.testing.assert_allclose(report.layers[columns], wanted.layers[columns], rtol=1e-6, atol=1e-7)


def test_albert_runs_one_block_twelve_times_and_has_twelve_layers():
    config = hf.AlbertConfig(**SMALL, embedding_size=8, num_hidden_layers=12, max_position_embeddings=16)
    model = hf.AlbertForMaskedLM(config).double().eval()
    report = uc.diagnose(model, IDS)
    assert report.layers["layer"].tolist() == list(range(1, 13))
    assert len(report.heads) == 24
    assert "albert" in report.missing["spectrum"]
    with torch.no_grad():
        states = model(**IDS, output_hidden_states=True).hidden_states
    for n, x in enumerate(states[1:], start=1):
        seen = oracle.Seen()
        oracle.add(seen, x, torch.zeros(2, 2, 9, 9))
        assert report.layers["residual_ratio"][n - 1] == pytest.approx(oracle.layer_row(seen)["residual_ratio"])


def test_a_block_in_two_places_is_two_layers():
    shared, copied = build("gpt2"), build("gpt2")
    shared.config.use_cache = copied.config.use_cache = False  # a block caches its keys once, not per layer
    shared.transformer.h[2] = shared.transformer.h[0]
    copied.transformer.h[2].load_state_dict(copied.transformer.h[0].state_dict())
    got, wanted = uc.diagnose(shared, batch("gpt2")), uc.diagnose(copied, batch("gpt2"))
    np.testing.assert_allclose(got.layers, wanted.layers, rtol=1e-6, atol=1e-7)  # float32 sums round by where they lie
    np.testing.assert_allclose(got.heads, wanted.heads, rtol=1e-6, atol=1e-7)


def test_token_ids_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="token id 500 is outside the model's vocabulary of 40"):
        uc.diagnose(build("gpt2"), {"input_ids": torch.tensor([[3, 500]])})


def test_weights_of_whole_numbers_are_refused():
    model = build("gpt2")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.char()
    with pytest.raises(ValueError, match=r"are stored as torch.int8; dequantise the model first"):
        uc.diagnose(model, batch("gpt2"))


def test_sliding_windows_hide_keys():
    config = hf.MistralConfig(**SMALL, num_hidden_layers=2, num_key_value_heads=2, sliding_window=3)
    model = hf.MistralForCausalLM(config).double().eval()
    report = uc.diagnose(model, IDS)
    for n, seen in enumerate(oracle.eager(model, [IDS]), start=1):
        assert (seen.scores[0][0, -1] > oracle.HIDDEN).sum() == 3
        wanted = [head["sink"] for head in oracle.head_rows(seen)]
        np.testing.assert_allclose(report.heads.query(f"layer == {n}")["sink"], wanted, rtol=1e-5)


def test_experts_inside_a_block_are_not_taken_for_blocks():
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(9))

        def forward(self, x):
            return sum(expert(x) for expert in self.experts)

    config = hf.OlmoConfig(**SMALL, num_hidden_layers=2, num_key_value_heads=2, pad_token_id=0)
    model = hf.OlmoForCausalLM(config).eval()
    for layer in model.model.layers:
        layer.mlp = Experts()
    assert uc.diagnose(model, IDS).layers["layer"].tolist() == [1, 2]


def test_a_block_that_stands_twice_in_the_list_counts_once_a_call():
    config = hf.OlmoConfig(**SMALL, num_hidden_layers=3, num_key_value_heads=2, pad_token_id=0, use_cache=False)
    model = hf.OlmoForCausalLM(config).eval()
    model.model.layers[2] = model.model.layers[0]
    assert uc.diagnose(model, IDS).layers["layer"].tolist() == [1, 2, 3]


def test_a_subclass_of_an_attention_module_can_run_eagerly():
    model = build("gpt2")
    model.set_attn_implementation("eager")
    attention = model.transformer.h[0].attn
    attention.__class__ = type("Mine", (type(attention),), {"__module__": __name__})
    assert uc.diagnose(model, batch("gpt2")).missing == {}


@pytest.mark.parametrize(("name", "target"), [("gpt2", "c_attn"), ("llama", "q_proj"), ("llama", "k_proj")])
def test_the_spectrum_under_an_adapter_is_not_guessed(name, target):
    model = get_peft_model(build(name), LoraConfig(target_modules=[target], r=2))
    report = uc.diagnose(model, batch(name))
    assert "merge the adapter first" in report.missing["spectrum"]
    assert report.heads["entropy_mean"].notna().all()
    assert "qk_trace" not in report.heads
    merged = model.merge_and_unload()
    assert uc.diagnose(merged, batch(name)).heads["qk_trace"].notna().all()


def test_an_adapter_elsewhere_does_not_matter_for_the_spectrum():
    model = get_peft_model(build("llama"), LoraConfig(target_modules=["v_proj"], r=2))
    assert uc.diagnose(model, batch("llama")).missing == {}


def test_quantised_weights_have_no_spectrum_and_a_reason():
    model = build("llama")
    packed = torch.zeros(32, 32, dtype=torch.int8)
    model.model.layers[0].self_attn.q_proj.weight = torch.nn.Parameter(packed, requires_grad=False)
    with pytest.raises(ValueError, match=r"q_proj is stored as torch\.int8"):
        query_key_weights(model)


def test_normalised_queries_are_said_with_the_spectrum():
    assert any("normalised" in note for note in uc.diagnose(build("qwen3"), batch("qwen3")).notes)


def test_another_attention_implementation_is_said_to_be_replaced():
    hf.AttentionInterface.register("mine", sdpa_attention_forward)
    hf.AttentionMaskInterface.register("mine", sdpa_mask)
    model = build("gpt2")
    model.set_attn_implementation("mine")
    assert any("'mine'" in note for note in uc.diagnose(model, batch("gpt2")).notes)
    assert model.config._attn_implementation == "mine"


@pytest.mark.parametrize(
    ("name", "sample"), [("gpt2", "wrote itself"), ("llama", "wrote itself"), ("vit", "photographs")]
)
def test_without_batches_a_sample_is_made_and_named(name, sample):
    report = uc.diagnose(build(name).float())
    assert report.info["sequences"] == 8
    assert sample in report.info["sample"]


def test_without_a_tokenizer_a_model_that_cannot_write_says_what_it_needs():
    with pytest.raises(
        ValueError,
        match=r"no tokenizer that fits .* this BertForMaskedLM.*--tokenizer, or token ids with --data",
    ):
        uc.diagnose(build("bert"))


BAD = {
    "empty": ([], "no batch was given"),
    "one token": ({"input_ids": torch.ones(2, 1, dtype=torch.long)}, "at least two tokens"),
    "no rows": ({"input_ids": torch.ones(0, 5, dtype=torch.long)}, "at least two tokens"),
    "one dimension": ({"input_ids": torch.ones(5, dtype=torch.long)}, "at least two tokens"),
    "outside the vocabulary": ({"input_ids": torch.tensor([[1, 40]])}, "token id 40 .* vocabulary of 40"),
    "negative": ({"input_ids": torch.tensor([[1, -100]])}, "token id -100"),
    "lists": ({"input_ids": [[1, 2, 3]]}, "must be a tensor"),
    "not a dict": ([torch.ones(2, 5, dtype=torch.long)], "a batch must be a dict"),
    "a tensor": (torch.ones(2, 5, dtype=torch.long), "a batch must be a dict"),
    "a number": (3, "iterable of batches"),
    "all padding": (
        {"input_ids": torch.ones(2, 5, dtype=torch.long), "attention_mask": torch.tensor([[1, 0, 0, 0, 0]] * 2)},
        "two real tokens",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_answered_in_one_sentence(case):
    batches, words = BAD[case]
    model = build("gpt2")
    with pytest.raises(ValueError, match=words) as caught:
        uc.diagnose(model, batches)
    assert re.fullmatch(r"[^\n]{20,200}\.", str(caught.value))
    assert model.config._attn_implementation == "sdpa"


def test_models_without_attention_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="Linear cannot be run on this batch: TypeError"):
        uc.diagnose(torch.nn.Linear(2, 2), IDS)
    model = hf.ResNetModel(hf.ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1]))
    with pytest.raises(ValueError, match="no attention was found"):
        uc.diagnose(model, {"pixel_values": torch.rand(1, 3, 32, 32)})


def tensors_of(thing, seen):
    """Bytes of all tensors reachable from an object's attributes."""
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return thing.untyped_storage().nbytes()
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else ()
    return sum(tensors_of(part, seen) for part in [*parts, *getattr(thing, "__dict__", {}).values()])


def test_what_is_kept_does_not_grow_with_the_number_of_batches():
    with uc.Observer() as observer:
        sizes = []
        for step in range(6):
            generator = torch.Generator().manual_seed(step)
            observer.tokens(1, torch.randn(2, 30 + step, 8, generator=generator))
            q, k = torch.randn(2, 2, 2, 30 + step, 4, generator=generator)
            observer.attention(1, q, k, is_causal=True)
            sizes.append(tensors_of(observer, set()))
    assert len(set(sizes)) == 1
    assert 0 < sizes[0] < 50_000


MANY_BATCHES = """
import torch, transformers as hf, uncollapse as uc

def peak():  # unlike ru_maxrss, not inherited from the process that started this one
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

config = hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=40, n_positions=256)
model = hf.GPT2Model(config).eval()
inputs = {"input_ids": torch.randint(40, (4, 256))}  # 4 MB of scores a layer
for count in (2, 12):
    uc.diagnose(model, (inputs for _ in range(count)))
    print(peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_peak_memory_does_not_grow_with_the_number_of_batches():
    two, twelve = map(int, printed_alone(MANY_BATCHES).split())
    assert (twelve - two) / 1024 < 30  # megabytes; keeping the scores of every batch would add 100

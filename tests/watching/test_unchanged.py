"""Training is the same with and without a watch, bit for bit, and nothing is left behind."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import uncollapse as uc
from tests.diagnosis.test_left_as_found import fingerprint
from tests.models.builders import batch, build
from tests.models.modules import build as build_plain
from tests.watching.loops import call, loss_of, random_states, sgd, train


def dropping(name):
    """A model in training mode with dropout, and batches."""
    if name in ("nanogpt", "nanogpt_written", "encoder_post"):
        model, inputs = build_plain(name if name != "nanogpt_written" else "nanogpt")
        for module in model.modules():
            if hasattr(module, "flash"):
                module.flash = name == "nanogpt"
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.2
        return model.float().train(), [inputs.float() if inputs.is_floating_point() else inputs] * 3
    model = build(name).float()
    model.config.attention_dropout = 0.1
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.2
    inputs = [batch(name, rows=2, seed=seed) for seed in range(3)]
    return model.train(), [{k: v.float() if v.is_floating_point() else v for k, v in b.items()} for b in inputs]


def run(name, attention, checkpointing, watched):
    torch.manual_seed(3)
    model, batches = dropping(name)
    if attention == "converted":
        uc.convert(model, alpha=0.3, alpha_hidden=0.5, example=batches[0])
    elif attention is not None:
        model.set_attn_implementation(attention)
    if checkpointing is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpointing})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(4)
    watch = uc.watch(model, optimizer, every=2, on_warning=lambda news: None) if watched else None
    losses = train(model, optimizer, batches)
    return losses, [p.detach().clone() for p in model.parameters()], random_states(), watch


CASES = [
    *((name, attention, None) for name in ("gpt2", "llama", "bert", "vit") for attention in ("sdpa", "eager")),
    *(("gpt2", attention, reentrant) for attention in ("sdpa", "eager") for reentrant in (False, True)),
    ("gpt2", "converted", None),
    ("gpt2", "converted", False),
    ("nanogpt", None, None),
    ("nanogpt_written", None, None),
    ("encoder_post", None, None),
]


@pytest.mark.parametrize(("name", "attention", "checkpointing"), CASES)
def test_losses_weights_and_random_numbers_are_bit_identical(name, attention, checkpointing):
    losses, weights, states, _ = run(name, attention, checkpointing, watched=False)
    seen_losses, seen_weights, seen_states, watch = run(name, attention, checkpointing, watched=True)
    assert losses == seen_losses
    assert all(torch.equal(one, other) for one, other in zip(weights, seen_weights, strict=True))
    assert states == seen_states
    assert set(watch.heads["step"]) == {2}
    assert watch.heads["entropy_mean"].notna().all()
    assert watch.notes == []
    sequences = {"vit": 2}.get(name)
    assert sequences is None or set(watch.heads["sequences"]) == {sequences}  # once, not again in recomputation


def all_hooks(module):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
    return [dict(getattr(m, kind)) for m in module.modules() for kind in (*kinds, "_forward_pre_hooks_with_kwargs")]


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("error", [None, StoppedError(), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["gpt2", "nanogpt"])
def test_nothing_is_left_behind(name, error):
    model, batches = dropping(name)
    inner = model.transformer.h[1].mlp if name == "gpt2" else model.h[1].mlp
    before, functions = all_hooks(model), dict(ALL_ATTENTION_FUNCTIONS)
    optimizer = sgd(model)

    def loop():
        with uc.watch(model, optimizer, every=1):
            train(model, optimizer, batches[:1])
            if error is not None:
                failing = inner.register_forward_pre_hook(stop(error))
                try:
                    call(model, batches[0])
                finally:
                    failing.remove()

    if error is None:
        loop()
    else:
        with pytest.raises(type(error)):
            loop()
    assert all_hooks(model) == before
    assert dict(ALL_ATTENTION_FUNCTIONS) == functions
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert torch.overrides._get_current_function_mode_stack() == []


def stop(error):
    def hook(module, args):
        raise error

    return hook


def test_after_ctrl_c_the_next_forward_is_measured_as_ever():
    model, inputs = build("gpt2").train(), batch("gpt2")
    watch = uc.watch(model, every=1)
    handle = model.transformer.h[1].mlp.register_forward_pre_hook(stop(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        model(**inputs)
    handle.remove()
    model(**inputs)
    watch.close()
    assert watch.heads["step"].tolist() == [2] * 16
    assert watch.heads["sequences"].tolist() == [2] * 16


def test_between_measurements_the_model_is_stock():
    model, inputs = build("gpt2").train(), batch("gpt2")
    before = all_hooks(model)
    changed = []

    def look(module, args):
        changed.append(sum(one != other for one, other in zip(all_hooks(model), before, strict=True)))

    model.transformer.h[0].register_forward_pre_hook(look)
    before = all_hooks(model)
    functions = dict(ALL_ATTENTION_FUNCTIONS)
    watch = uc.watch(model, every=2)
    model(**inputs)
    of_roots = changed[-1]
    assert of_roots == 10  # a hook before and one behind, of the model and of its base, with their flags
    assert dict(ALL_ATTENTION_FUNCTIONS) == functions
    model(**inputs)
    assert changed[-1] > of_roots
    watch.close()


def test_a_watched_model_can_be_copied_pickled_saved_and_converted(tmp_path):
    model, inputs = build("gpt2").train(), batch("gpt2")
    optimizer = sgd(model)
    with uc.watch(model, optimizer, every=1) as watch:
        train(model, optimizer, [inputs])
        twin, other = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        copy.deepcopy(optimizer), pickle.dumps(optimizer)
        model.save_pretrained(tmp_path / "model")
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        twin(**inputs), other(**inputs)
        assert set(watch.heads["step"]) == {1}  # copies are not watched
        uc.convert(model, alpha=0.2, alpha_hidden=0.5)
        train(model, optimizer, [inputs])
        uc.restore(model)
        train(model, optimizer, [inputs])
    assert watch.heads.groupby("step").size().tolist() == [16, 16, 16]
    assert watch.heads["entropy_mean"].notna().all()
    assert model.config._attn_implementation == "sdpa"


def test_a_forgotten_watch_does_not_keep_the_model_alive():
    model, inputs = build("gpt2").train(), batch("gpt2")
    uc.watch(model, every=1)
    loss_of(model(**inputs))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_evaluation_is_neither_counted_nor_measured():
    model, inputs = build("gpt2"), batch("gpt2")
    with uc.watch(model, every=1) as watch, torch.no_grad():
        model(**inputs)
    assert watch.heads.empty
    assert fingerprint(model)

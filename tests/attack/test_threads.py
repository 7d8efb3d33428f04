"""A model that another thread uses while it is diagnosed: nothing is miscounted and nothing runs in the wrong mode."""

import threading
import time

import numpy as np
import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.diagnosis.test_left_as_found import fingerprint
from tests.models.builders import batch

FORMS = ["sdpa", "eager", "converted"]
REFUSED = "the model is being diagnosed in another thread"


def model_in(form):
    """In training mode its dropout drops all embeddings, so that the two modes give fixed and different logits."""
    torch.manual_seed(0)
    config = hf.GPT2Config(n_embd=32, n_layer=4, n_head=4, vocab_size=40, n_positions=48, embd_pdrop=1.0)
    config.attn_pdrop = config.resid_pdrop = 0.0
    model = hf.GPT2LMHeadModel(config).double().train()
    if form == "converted":
        return uc.convert(model)
    model.set_attn_implementation(form)
    return model


def logits(model):
    with torch.no_grad():
        return model(**batch("gpt2")).logits


def outcome(call):
    """What a call in a thread of its own gives or raises."""
    found = []

    def run():
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=60)
    assert found, "the thread did not come to an end"
    return found[0]


def batches_around(call):
    """Two batches, and what another thread does between them."""
    yield batch("gpt2")
    call()
    yield batch("gpt2", seed=1)


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_or_a_diagnosis_from_another_thread_is_refused(form):
    model = model_in(form)
    before, trained = fingerprint(model), logits(model)
    wanted = uc.diagnose(model, [batch("gpt2"), batch("gpt2", seed=1)])
    refusals = []

    def meanwhile():
        refusals.append(outcome(lambda: logits(model)))
        refusals.append(outcome(lambda: uc.diagnose(model, batch("gpt2"))))
        with pytest.raises(RuntimeError, match="is being diagnosed already"):  # nor in the same thread
            uc.diagnose(model, batch("gpt2"))

    report = uc.diagnose(model, batches_around(meanwhile))
    assert [type(error) for error in refusals] == [RuntimeError, RuntimeError]
    assert REFUSED in str(refusals[0])
    assert "is being diagnosed already" in str(refusals[1])
    np.testing.assert_allclose(report.layers, wanted.layers, rtol=1e-6, atol=1e-7)  # float32 sums, by memory
    np.testing.assert_allclose(report.heads, wanted.heads, rtol=1e-6, atol=1e-7)
    assert fingerprint(model) == before
    assert torch.equal(logits(model), trained)


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_that_is_under_way_when_a_diagnosis_begins_is_refused(form):
    model = model_in(form)
    wanted = uc.diagnose(model, [batch("gpt2"), batch("gpt2", seed=1)])
    inside, go_on = threading.Event(), threading.Event()
    passing = []

    def hold(*_):
        if threading.current_thread() is other:
            inside.set()
            go_on.wait(60)

    def run():
        try:
            passing.append(logits(model))
        except RuntimeError as error:
            passing.append(error)

    other = threading.Thread(target=run)
    handle = model.transformer.h[1].attn.register_forward_pre_hook(hold)  # between the guard and the attention itself
    other.start()
    assert inside.wait(60)

    def meanwhile():
        go_on.set()
        other.join(60)

    report = uc.diagnose(model, batches_around(meanwhile))
    handle.remove()
    assert REFUSED in str(passing[0])
    np.testing.assert_allclose(report.heads, wanted.heads, rtol=1e-6, atol=1e-7)


def update(model):
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.add_(0.1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (update, "the weights changed while the model was being diagnosed"),
        (lambda model: model.train(), "the model was put into training mode while it was being diagnosed"),
    ],
)
def test_numbers_of_a_model_that_changed_are_refused(change, sentence):
    model = model_in("sdpa")
    with pytest.raises(RuntimeError, match=sentence):
        uc.diagnose(model, batches_around(lambda: outcome(lambda: change(model))))
    assert uc.diagnose(model, batch("gpt2")).missing == {}  # and the next one is undisturbed


def test_a_thread_that_goes_on_using_the_model(full, promise):
    """No order is forced here: passes and diagnoses of one model, as fast as they come."""
    rounds = 60 if full else 8
    passes = diagnoses = right_passes = right_diagnoses = refused = 0
    for form in FORMS:
        model = model_in(form)
        trained, report = logits(model), uc.diagnose(model, batch("gpt2"))
        stop, seen = threading.Event(), []

        def use(model=model, stop=stop, seen=seen):
            while not stop.is_set():
                try:
                    seen.append(logits(model))
                except Exception as error:
                    seen.append(error)
                    time.sleep(0.005)  # as one who waits would

        other = threading.Thread(target=use)
        other.start()
        for _ in range(rounds):
            got = uc.diagnose(model, batch("gpt2"))
            diagnoses += 1
            right_diagnoses += got.heads.shape == report.heads.shape and np.allclose(
                got.heads, report.heads, 1e-6, 1e-7
            )
        stop.set()
        other.join(60)
        passes += len(seen)
        errors = [s for s in seen if isinstance(s, Exception)]
        refused += len(errors)
        right_passes += sum(isinstance(e, RuntimeError) and REFUSED in str(e) for e in errors)
        right_passes += sum(torch.equal(s, trained) for s in seen if torch.is_tensor(s))
    assert refused > 0, "the two threads never met"
    promise(
        "diagnoses beside a thread that uses the model, with undisturbed numbers", tried=diagnoses, kept=right_diagnoses
    )
    promise("passes beside a diagnosis that were right or refused", tried=passes, kept=right_passes)

"""A model that another thread uses while it is diagnosed: nothing is miscounted and nothing runs in the wrong mode."""

import threading

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


def caught(call):
    """What a call gives or raises."""
    try:
        return call()
    except Exception as error:
        return error


def outcome(call):
    """What a call in a thread of its own gives or raises."""
    found = []
    thread = threading.Thread(target=lambda: found.append(caught(call)))
    thread.start()
    thread.join(timeout=600)
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


HELD = {  # where in the second block the pass is when the diagnosis begins
    "between the guard and the attention": lambda block, hold: block.attn.register_forward_pre_hook(hold),
    "after the last module": lambda block, hold: block.mlp.register_forward_hook(hold),
}


@pytest.mark.parametrize("where", HELD)
@pytest.mark.parametrize("form", FORMS)
def test_a_pass_that_is_under_way_when_a_diagnosis_begins_is_refused(form, where):
    model = model_in(form)
    wanted = uc.diagnose(model, [batch("gpt2"), batch("gpt2", seed=1)])
    inside, go_on = threading.Event(), threading.Event()
    passing = []

    def hold(*_):
        if threading.current_thread() is other:
            inside.set()
            go_on.wait(600)

    other = threading.Thread(target=lambda: passing.append(caught(lambda: logits(model))))
    handle = HELD[where](model.transformer.h[1], hold)
    other.start()
    assert inside.wait(600)

    def meanwhile():
        go_on.set()
        other.join(600)

    report = uc.diagnose(model, batches_around(meanwhile))
    handle.remove()
    assert REFUSED in str(passing[0])
    np.testing.assert_allclose(report.layers, wanted.layers, rtol=1e-6, atol=1e-7)
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


class Passes:
    """A thread that runs the model again and again, whether it is refused or not, and what each pass gave."""

    def __init__(self, model):
        self.model, self.seen, self.done = model, [], threading.Condition()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.stop.is_set():
            found = caught(lambda: logits(self.model))
            with self.done:
                self.seen.append(found)
                self.done.notify_all()
            if isinstance(found, Exception):
                self.stop.wait(0.005)  # as one who tries again would

    def wait_for_one_more(self):
        """Until a pass has ended that began after this call."""
        with self.done:
            enough = len(self.seen) + 2  # the next one may be under way already
            assert self.done.wait_for(lambda: len(self.seen) >= enough, timeout=600)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(600)


def test_a_thread_that_goes_on_using_the_model(full, promise):
    """Passes of one thread and diagnoses of another, in any order, and at least one pass within each diagnosis."""
    rounds = 60 if full else 2
    diagnoses = right_diagnoses = 0
    outcomes = []
    for form in FORMS:
        model = model_in(form)
        trained, report = logits(model), uc.diagnose(model, [batch("gpt2"), batch("gpt2", seed=1)])
        with Passes(model) as passes:
            for _ in range(rounds):
                passes.wait_for_one_more()
                got = uc.diagnose(model, batches_around(passes.wait_for_one_more))
                diagnoses += 1
                right_diagnoses += got.heads.shape == report.heads.shape and np.allclose(
                    got.heads, report.heads, 1e-6, 1e-7
                )
        errors = [found for found in passes.seen if isinstance(found, Exception)]
        assert rounds <= len(errors) < len(passes.seen)  # some were refused, and some were not
        outcomes += [isinstance(error, RuntimeError) and REFUSED in str(error) for error in errors]
        outcomes += [torch.equal(found, trained) for found in passes.seen if torch.is_tensor(found)]
    promise(
        "diagnoses beside a thread that uses the model, with undisturbed numbers", tried=diagnoses, kept=right_diagnoses
    )
    promise("passes beside a diagnosis that were right or refused", tried=len(outcomes), kept=sum(outcomes))

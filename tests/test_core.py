"""The core needs torch, numpy, pandas and tqdm; where an extra is missing, the error names it.

Each test runs code in a process of its own, in which the packages of the extras cannot be imported: because they are
not installed, or because the finders of modules hide them.
"""

from tests.processes import process
from uncollapse.extras import EXTRA_OF

HIDE = f"""
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *args):
        return None if name.partition(".")[0] in {sorted(EXTRA_OF)!r} else self.finder.find_spec(name, *args)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""
OBSERVED = """
import torch, uncollapse as uc

def observe(name, seed=0, size=1.0):
    random = torch.Generator().manual_seed(seed)
    with uc.Observer(name) as observer:
        for layer in (1, 2):
            observer.tokens(layer, torch.randn(2, 9, 16, generator=random))
            q, k = size * torch.randn(2, 2, 4, 9, 4, generator=random)
            observer.attention(layer, q, k, is_causal=True)
    return observer.diagnosis
"""


def in_the_core(code):
    run = process(HIDE + code)
    out, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    return out.splitlines()


def test_attention_metrics_and_theory_work():
    code = """
import torch, uncollapse as uc
q, k, v = torch.randn(3, 2, 4, 6, 8).unbind()
out, state = uc.hopfield_attention(q, k, v, is_causal=True)
out, state = uc.hopfield_attention(q, k, v, state, is_causal=True)
print(tuple(out.shape), tuple(state.scores().shape))
x = uc.AttentionOnly(4, 16, 2)(torch.randn(2, 6, 16))[-1]
print(uc.metrics.residual_ratio(x).isfinite().all().item())
print(round(float(uc.theory.signal_propagation(0.5, xi=0.0, eta=2.0)), 3))
print(uc.theory.HopfieldNetwork([[1.0, 0.0], [0.0, 1.0]], beta=8.0).softmax_update([0.9, 0.1]).round(3))
uc.release_memory()
"""
    assert in_the_core(code) == ["(2, 4, 6, 8) (2, 4, 6, 6)", "True", "0.458", "[0.998 0.002]"]


def test_a_diagnosis_is_made_printed_saved_loaded_and_compared(tmp_path):
    code = f"""
report = observe("mine")
loaded = uc.Diagnosis.load(report.save({str(tmp_path / "saved")!r}))
assert str(loaded) == str(report)
assert loaded._repr_html_() is None  # a notebook shows the text
print(str(report).splitlines()[0])
print(*uc.compare([report, observe("sharp", size=9.0)]).findings, sep="\\n")
"""
    first, *findings = in_the_core(OBSERVED + code)
    assert first.startswith("Diagnosis of mine: 2 layers, 2 sequences, 18 tokens")
    assert any("entropy" in sentence for sentence in findings)


HF, REPORT, TRAIN = (f"pip install 'uncollapse[{extra}]'." for extra in ("hf", "report", "train"))
MISSING = {
    "uc.from_pretrained('gpt2')": HF,
    "uc.LocaterCallback": HF,
    "uc.locater_penalty": HF,
    "uc.DiagnoseCallback": HF,
    "uc.train": TRAIN,
    "uc.Recipe": TRAIN,
    "uc.compare(['a-run'])": TRAIN,
    "observe('mine').to_html('page.html')": REPORT,
    "uc.compare([observe('a'), observe('b')]).to_html('page.html')": REPORT,
    "uc.theory.HopfieldNetwork([[1.0, 0.0], [0.0, 1.0]]).solve([1.0, 0.0])": TRAIN,
    "uc.theory.simulate([(0.0, 0.1)], draws=2)": TRAIN,
}


def test_a_missing_extra_is_named_in_one_sentence():
    code = f"""
from uncollapse.extras import MissingExtraError
for expression in {list(MISSING)!r}:
    try:
        eval(expression)
    except MissingExtraError as error:
        print(error)
    else:
        print("nothing was missing")
"""
    for expression, sentence, end in zip(MISSING, in_the_core(OBSERVED + code), MISSING.values(), strict=True):
        assert sentence.startswith("this needs the package "), expression
        assert sentence.endswith(end), expression


def test_the_rooms_can_be_imported():
    rooms = ["attention", "data.sample", "diagnosis", "metrics", "models", "remedies", "statistics", "theory"]
    code = "".join(f"import uncollapse.{room}\n" for room in [*rooms, "training", "watching"])
    assert in_the_core(code + "print('imported')") == ["imported"]


def test_every_extra_is_hidden():
    """Guards the tests above: in their processes the extras are missing even where they are installed."""
    code = f"""
from importlib import import_module
for package in {sorted(EXTRA_OF)!r}:
    try:
        import_module(package)
    except ModuleNotFoundError:
        print(package)
"""
    assert in_the_core(code) == sorted(EXTRA_OF)

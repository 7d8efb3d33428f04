"""The data room with the core alone: what needs no extra works, what does names it."""

import pytest

from tests.processes import process

CORE = """
import sys
for name in ("datasets", "sklearn", "tokenizers", "transformers", "PIL"):
    sys.modules[name] = None
"""
WORKS = """
from uncollapse.data.batches import load_batches
from uncollapse.data.sample import embedded_bytes
from uncollapse.data.text import load_text
print(tuple(embedded_bytes(2, 8).shape), load_text("embedded").name)
"""


def printed(code):
    with process(CORE + code) as run:
        out, said = run.communicate(timeout=120)
    assert run.returncode == 0, said
    return out


def test_text_and_bytes_need_no_extra():
    assert printed(WORKS) == "(2, 8) embedded\n"


@pytest.mark.parametrize(
    ("call", "package", "extra"),
    [
        ("from uncollapse.data.sample import embedded_images as f; f(1, (8, 8))", "sklearn", "hf"),
        ("from uncollapse.data.images import load_images as f; f('digits')", "sklearn", "hf"),
        ("from uncollapse.data.text import load_text as f; f('wikitext-999')", "datasets", "train"),
        ("from uncollapse.data.batches import load_batches as f; f(None, 'squad')", "datasets", "train"),
    ],
)
def test_a_missing_extra_is_named(call, package, extra):
    code = f"\ntry:\n    {call}\nexcept ImportError as error:\n    print(error)\n"
    sentence = f"this needs the package {package}, which is not installed; "
    assert printed(code) == f"{sentence}install it with: pip install 'uncollapse[{extra}]'.\n"

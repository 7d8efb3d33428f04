"""Names of version 0.1 still work, and say once what to use instead."""

import pytest

import uncollapse as uc
from tests.processes import process

pytest.importorskip("transformers", reason="version 0.1 could not be installed without transformers")

OLD_NAMES = {  # statement of version 0.1 -> what it gave, and what to use instead
    "from uncollapse.huggingface import convert as old": ("uc.convert", "uncollapse.convert"),
    "from uncollapse.huggingface import restore as old": ("uc.restore", "uncollapse.restore"),
    "from uncollapse.huggingface import set_alpha as old": ("uc.set_alpha", "uncollapse.set_alpha"),
    "from uncollapse.huggingface import from_pretrained as old": ("uc.from_pretrained", "uncollapse.from_pretrained"),
    "from uncollapse.huggingface import locater_penalty as old": ("uc.locater_penalty", "uncollapse.locater_penalty"),
    "from uncollapse.huggingface import LocaterCallback as old": ("uc.LocaterCallback", "uncollapse.LocaterCallback"),
    "from uncollapse.huggingface.convert import convert as old": ("uc.convert", "uncollapse.models.convert.convert"),
    "from uncollapse.huggingface.families import FAMILIES as old": (
        "importlib.import_module('uncollapse.models.families').FAMILIES",
        "uncollapse.models.families.FAMILIES",
    ),
    "from uncollapse.huggingface.locater import locater_penalty as old": (
        "uc.locater_penalty",
        "uncollapse.remedies.locater.locater_penalty",
    ),
    "from uncollapse.diagnosis import DiagnoseCallback as old": ("uc.DiagnoseCallback", "uncollapse.DiagnoseCallback"),
    "from uncollapse.diagnosis import compare_html as old": (
        "importlib.import_module('uncollapse.diagnosis.pages').compare_html",
        "uncollapse.compare(reports).to_html(path)",
    ),
    "from uncollapse import compare_html as old": (
        "importlib.import_module('uncollapse.diagnosis.pages').compare_html",
        "uncollapse.compare(reports).to_html(path)",
    ),
    "from uncollapse import compare_runs as old": (
        "importlib.import_module('uncollapse.training.compare').compare_runs",
        "uncollapse.compare(runs)",
    ),
}


def test_every_old_name_works_and_warns_once_of_the_new_one():
    """In one process that counts from anew: each warning is given at the first use only."""
    code = f"""
import importlib, sys, warnings
import uncollapse as uc
for number, (statement, (wanted, _)) in enumerate({OLD_NAMES!r}.items()):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(statement, f"line-{{number}}", "exec"))
    caught = [w for w in caught if "will be removed in version" in str(w.message)]
    assert old is eval(wanted), statement
    assert [w.category for w in caught] == [DeprecationWarning], (statement, [str(w.message) for w in caught])
    assert caught[0].filename == f"line-{{number}}", caught[0].filename  # the user's line, not one of ours
    print(str(caught[0].message).partition("use ")[2])
"""
    run = process(code)
    out, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert out.splitlines() == [f"{instead}." for _, instead in OLD_NAMES.values()]


def test_a_submodule_does_not_hide_the_function_of_its_name():
    code = """
import warnings
warnings.simplefilter("ignore")
import uncollapse.huggingface.convert, uncollapse as uc
print(uncollapse.huggingface.convert is uc.convert)
"""
    out, said = process(code).communicate(timeout=300)
    assert out == "True\n", said


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_unknown_name_is_no_attribute():
    import uncollapse.huggingface

    with pytest.raises(AttributeError, match=r"module 'uncollapse\.huggingface' has no attribute 'covnert'"):
        _ = uncollapse.huggingface.covnert


def test_the_pool_of_version_0_1_releases_the_memory():
    import torch

    from uncollapse.attention.memory import held_bytes
    from uncollapse.attention.pool import POOL

    q, k, v = torch.randn(3, 1, 2, 512, 8).unbind()
    state = uc.hopfield_attention(q, k, v, backend="carried")[1]
    del state
    assert held_bytes() > 0
    with pytest.warns(DeprecationWarning, match=r"use uncollapse\.release_memory\(\)"):
        POOL.release()
    assert held_bytes() == 0
